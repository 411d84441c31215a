"""Trains a vocabulary on a text: WordPiece and byte-level BPE with `tokenizers`, unigram and BPE
with `sentencepiece`."""

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from bert.settings import VocabularySettings
from bert.text import sentencepiece, tokenizer
from ringbase.errors import InputError
from ringbase.files import filled_beside

# written in this order
FILES = ("vocab.txt", "spiece.model", "tokenizer_config.json", "tokenizer.json")
NAMES = {"wordpiece": "vocab.txt", "byte_bpe": "tokenizer.json"}  # of the file; else spiece.model
LONGEST_LINE_BYTES = 1 << 24
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPM_THREADS = 8  # constant, because the last digits of the pieces' scores depend on it
MOST_KOREAN_SHARE = 0.01
HANGUL = re.compile("[\uac00-\ud7a3]")
ANY_WORD = re.compile("[^ \t\r\n]+")
NO_TEXT = "the text to train a vocabulary on is empty (--input_file)"


def train(sentences: Iterable[str], output_dir: Path, settings: VocabularySettings) -> Path:
    """Trains on a stream of texts, read once; returns `vocab.txt`, `spiece.model` or
    `tokenizer.json` in `output_dir`.

    The folder also gets what `tokenizer.load` and `transformers.AutoTokenizer` read. The same texts
    in the same order give the same bytes. Memory holds a count of each distinct word (WordPiece,
    byte-level BPE), or all texts (SentencePiece). Raises InputError: the text does not suffice for
    `vocab_size`, or the folder already holds a tokenizer.
    """
    refuse_present(output_dir, FILES)
    trained = {"wordpiece": _wordpiece, "byte_bpe": _byte_bpe}.get(settings.kind, _sentencepiece)
    name = NAMES.get(settings.kind, "spiece.model")

    def fill(folder):
        (folder / name).write_bytes(trained(sentences, settings))
        tokenizer.load(folder=folder, do_lower_case=settings.lower_case).save(folder)

    with filled_beside(output_dir, fill) as new:
        output_dir.mkdir(exist_ok=True)
        written = sorted(new.iterdir(), key=lambda path: FILES.index(path.name))
        for path in written:
            path.replace(output_dir / path.name)
    return output_dir / name


def refuse_present(folder: Path, files: Sequence[str]) -> None:
    """Raises InputError if the folder is a file, or has one of these files."""
    present = [name for name in files if (folder / name).exists()]
    if present or (folder.exists() and not folder.is_dir()):
        raise InputError(
            f"--output_dir {folder} is a file, or holds {' '.join(present or files)}: give another"
            " folder"
        )


def _wordpiece(sentences: Iterable[str], settings: VocabularySettings) -> bytes:
    """A line for each token: special ones, characters, what joining frequent pairs gives."""
    words = _words(sentences, settings.lower_case)
    frequent = _frequent_characters(words, settings.character_coverage)
    firsts = frequent.intersection(word[0] for word in words)
    others = frequent.intersection(itertools.chain.from_iterable(word[1:] for word in words))
    continuing = [f"##{character}" for character in sorted(others)]
    initial = [*SPECIAL_TOKENS, *sorted(firsts), *continuing]
    size = settings.vocab_size
    if len(initial) > size:
        raise InputError(
            f"--vocab_size {size} cannot hold the {len(initial)} special tokens and characters of"
            " the text: increase it, or lower --character_coverage"
        )
    extra = others - firsts  # the trainer accepts `##x` only if it knows `x`
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # As special tokens the characters keep this order. The trainer's own order of them, and with it
    # the choice between equally frequent pairs, changes from run to run.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + len(extra),
        min_frequency=settings.min_frequency,
        limit_alphabet=0,
        special_tokens=[*initial, *sorted(extra)],
        continuing_subword_prefix="##",
        show_progress=False,
    )
    trained.train_from_iterator(_repeated(words), trainer)
    ids = trained.get_vocab(with_added_tokens=False)
    pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in extra]
    if len(pieces) < size:
        raise InputError(
            f"--vocab_size {size} is more than the {len(pieces)} entries that the text gives with"
            f" --min_frequency {settings.min_frequency}: give more text, or a smaller size"
        )
    return "".join(f"{piece}\n" for piece in pieces).encode()


def _words(sentences: Iterable[str], lower_case: bool) -> Counter[str]:
    """How often each word of the normalized text occurs. Raises InputError: no word, or Korean in
    lower case."""
    # BERT's normalization keeps the white space between words, so only distinct words need to be
    # normalized.
    counts = Counter[str]()
    for sentence in sentences:
        counts.update(ANY_WORD.findall(sentence))
    if not counts:
        raise InputError(NO_TEXT)
    num_korean = sum(count for word, count in counts.items() if HANGUL.search(word))
    korean_share = num_korean / counts.total()
    if lower_case and korean_share > MOST_KOREAN_SHARE:
        raise InputError(
            f"{korean_share:.0%} of the words are Korean, and BERT's lower-casing, which strips"
            " accents, takes Hangul syllables apart into letters: give --nodo_lower_case"
        )
    normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = Counter[str]()
    for chunk, count in counts.items():
        normalized = normalizer.normalize_str(chunk)
        for word, _ in splitter.pre_tokenize_str(normalized):
            words[word] += count
    return words


def _frequent_characters(words: Counter[str], coverage: float) -> set[str]:
    """The most frequent characters, as many as make up the share `coverage` of the text."""
    counts = Counter[str]()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    needed = coverage * counts.total()
    kept = set[str]()
    total = 0
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if total >= needed:
            break
        kept.add(character)
        total += counts[character]
    return kept


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Repeats each word as often as it was counted, with many words per line."""
    for word, count in words.items():
        for start in range(0, count, 4096):
            times = min(count - start, 4096)
            yield " ".join([word] * times)


def _byte_bpe(sentences: Iterable[str], settings: VocabularySettings) -> bytes:
    """A tokenizer.json with the parts of ModernBERT's and its special tokens, which come first.

    Each sentence begins with a blank (`add_prefix_space`), so that its first word has the same
    piece alone, in a row of a corpus and after other words. ModernBERT's own has none.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(SPECIAL_TOKENS) + len(alphabet)
    size = settings.vocab_size
    if size < smallest:
        raise InputError(
            f"--vocab_size {size} cannot hold the {smallest} special tokens and bytes of byte_bpe:"
            " increase it"
        )
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    if settings.lower_case:
        trained.normalizer = sentencepiece.lower_casing()
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=settings.min_frequency,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    texts = _with_text(sentences)
    trained.train_from_iterator(texts, trainer)
    number = trained.get_vocab_size()
    if number < size:
        raise InputError(
            f"--vocab_size {size} is more than the {number} entries that the text gives with"
            f" --min_frequency {settings.min_frequency}: give more text, or a smaller size"
        )
    return trained.to_str().encode()


def _with_text(sentences: Iterable[str]) -> Iterator[str]:
    """Those that are not blank. Raises InputError if all are."""
    texts = filter(str.strip, sentences)
    first = next(texts, None)
    if first is None:
        raise InputError(NO_TEXT)
    return itertools.chain([first], texts)


def _sentencepiece(sentences: Iterable[str], settings: VocabularySettings) -> bytes:
    # SentencePiece skips a text that contains ▅, its own mark of an unknown character.
    texts = [text.replace("\n", " ").replace("▅", " ") for text in sentences if text.strip()]
    if not texts:
        raise InputError(NO_TEXT)
    lines = iter(texts)
    if settings.lower_case:
        lines = map(sentencepiece.lower_casing().normalize_str, texts)
    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=written,
            model_type=settings.kind,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            shuffle_input_sentence=False,
            max_sentence_length=LONGEST_LINE_BYTES,
            num_threads=SPM_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            minloglevel=3,
        )
    # such as "Vocabulary size too high (9000). Please set it to a value <= 5012."
    except RuntimeError as error:
        one_liner = " ".join(str(error).split())
        reason = one_liner.split("] ")[-1]
        raise InputError(
            f"--vocab_size {settings.vocab_size}, {len(texts):,} texts: {reason}"
        ) from error
    return written.getvalue()
