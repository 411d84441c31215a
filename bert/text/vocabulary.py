"""Trains a vocabulary on a text: WordPiece with `tokenizers`, unigram or BPE with `sentencepiece`."""

import io
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert.text import sentencepiece, tokenizer
from bert.text.case import HANGUL_SYLLABLES
from bert.text.tokenizer_files import SPECIAL_TOKENS
from ringbase.errors import InputError
from ringbase.files import add_to_folder
from ringbase.settings import Settings, check_at_least, check_at_most, setting

FILES = ("vocab.txt", "spiece.model", "tokenizer_config.json", "tokenizer.json")
LONGEST_LINE_BYTES = 1 << 24
SPM_THREADS = 8  # constant, because the last digits of the pieces' scores depend on it
MOST_KOREAN_SHARE = 0.01
ANY_WORD = re.compile("[^ \t\r\n]+")


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """Which vocabulary is trained."""

    kind: Literal["wordpiece", "unigram", "bpe"] = setting(
        "wordpiece", "unigram and bpe are SentencePiece models", "training"
    )
    vocab_size: int = setting(30522, "number of entries, special tokens included", "training")
    do_lower_case: bool | None = setting(
        None,
        "lower-case the text and strip its accents",
        "training",
        shown_default="true for wordpiece, else false",
    )
    min_frequency: int = setting(
        2, "number of times that a pair of pieces must occur to be joined (wordpiece)", "training"
    )
    character_coverage: float = setting(
        0.9995, "share of the text's characters that get a piece of their own, most frequent first", "training"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, len(SPECIAL_TOKENS) + 1, "vocab_size")
        check_at_least(self, 0, "min_frequency")
        check_at_most(self, tokenizer.MOST_IDS, "vocab_size")
        check_at_most(self, 1 << 32, "min_frequency")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"--character_coverage must be above 0 and at most 1, got {self.character_coverage}")

    @property
    def lower_case(self) -> bool:
        return self.kind == "wordpiece" if self.do_lower_case is None else self.do_lower_case


def train(
    sentences: Iterable[str],
    output_dir: Path,
    settings: VocabularySettings,
    *,
    max_sentences: int = 2_000_000,
    seed: int = 12345,
) -> Path:
    """Trains on a stream of texts, read once; returns `output_dir/vocab.txt` or `output_dir/spiece.model`.

    The folder also gets tokenizer.json and tokenizer_config.json, so that it loads by itself (`tokenizer.load`,
    `transformers.AutoTokenizer`). Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK]. The same texts in the same order
    give the same bytes. Memory holds a count of each distinct word (WordPiece), or `max_sentences` texts drawn at
    random with `seed` (SentencePiece).

    Raises InputError: the text is empty; it has too few or too many different pieces for `vocab_size`; the folder
    already holds a tokenizer; WordPiece with lower-casing, which takes Hangul syllables apart, for Korean text.
    """
    present = [name for name in FILES if (output_dir / name).exists()]
    if present:
        raise InputError(
            f"--output_dir {output_dir} already holds {', '.join(present)}: remove them, or give another folder"
        )
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir {output_dir} is a file: give a folder")
    name = "vocab.txt" if settings.kind == "wordpiece" else "spiece.model"

    def fill(folder: Path) -> None:
        file = folder / name
        if settings.kind == "wordpiece":
            lines = _wordpiece(sentences, settings)
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            trained = tokenizer.load(str(file), do_lower_case=settings.lower_case)
        else:
            file.write_bytes(_sentencepiece(sentences, settings, max_sentences, seed))
            trained = tokenizer.load(spm_model_file=str(file), do_lower_case=settings.lower_case)
        trained.save(folder)

    add_to_folder(output_dir, fill, last="tokenizer.json")
    return output_dir / name


def _wordpiece(sentences: Iterable[str], settings: VocabularySettings) -> list[str]:
    from tokenizers import normalizers, pre_tokenizers

    # BERT's normalization keeps the white space between words, so only distinct words need to be normalized.
    counts = _counted(sentences)
    if settings.lower_case:
        _check_hangul(counts)
    normalizer = normalizers.BertNormalizer(lowercase=settings.lower_case)
    words = _words(counts, normalizer, pre_tokenizers.BertPreTokenizer())
    firsts, others = _characters(words, settings.character_coverage)
    initial = [*SPECIAL_TOKENS, *firsts, *(f"##{character}" for character in others)]
    if len(initial) > settings.vocab_size:
        raise _too_small(settings.vocab_size, len(initial))
    # The trainer accepts `##x` only if it knows `x`.
    extra = set(others) - set(firsts)
    pieces = [piece for piece in _merged(words, initial, sorted(extra), settings) if piece not in extra]
    if len(pieces) < settings.vocab_size:
        raise _too_large(settings.vocab_size, len(pieces), f" with --min_frequency {settings.min_frequency}")
    return pieces


def _merged(words: Counter[str], initial: list[str], extra: list[str], settings: VocabularySettings) -> list[str]:
    """The pieces `initial` and `extra`, and those that result from joining frequent pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size + len(extra),
        min_frequency=settings.min_frequency,
        # As special tokens they keep this order. The trainer's own order of them, and with it the choice between
        # equally frequent pairs, changes from run to run.
        special_tokens=[*initial, *extra],
        limit_alphabet=0,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    trained.train_from_iterator(_repeated(words), trainer)
    ids = trained.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _too_small(vocab_size: int, least: int | str) -> InputError:
    return InputError(
        f"--vocab_size {vocab_size} cannot hold the {least} special tokens and characters of the text: increase "
        "it, or lower --character_coverage"
    )


def _too_large(vocab_size: int, most: int | str, reason: str = "") -> InputError:
    return InputError(
        f"--vocab_size {vocab_size} is more than the {most} entries that the text gives{reason}: give more text, "
        "or a smaller size"
    )


def _counted(sentences: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(ANY_WORD.findall(sentence))
    return counts


def _check_hangul(counts: Counter[str]) -> None:
    korean = sum(count for word, count in counts.items() if HANGUL_SYLLABLES.search(word))
    if korean > MOST_KOREAN_SHARE * counts.total():
        raise InputError(
            f"{korean / counts.total():.0%} of the words are Korean, and BERT's lower-casing, which strips "
            "accents, takes Hangul syllables apart into letters: give --nodo_lower_case"
        )


def _words(counts: Counter[str], normalizer, pre_tokenizer) -> Counter[str]:
    words: Counter[str] = Counter()
    for chunk, count in counts.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(chunk)):
            words[word] += count
    if not words:
        raise InputError("the text to train a vocabulary on is empty (--input_file)")
    return words


def _characters(words: Counter[str], coverage: float) -> tuple[list[str], list[str]]:
    """The characters that start words and those that continue them, among the most frequent ones that together
    make up `coverage` of the text.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    wanted, kept = coverage * counts.total(), set()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if wanted <= 0:
            break
        kept.add(character)
        wanted -= count
    firsts = {word[0] for word in words} & kept
    others = {character for word in words for character in word[1:]} & kept
    return sorted(firsts), sorted(others)


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Repeats each word as often as it was counted, with many words per line."""
    for word, count in words.items():
        while count > 0:
            yield " ".join([word] * min(count, 4096))
            count -= 4096


def _sentencepiece(sentences: Iterable[str], settings: VocabularySettings, max_sentences: int, seed: int) -> bytes:
    import sentencepiece as library

    texts = _drawn((text for text in sentences if text.strip()), max_sentences, seed)
    if not texts:
        raise InputError("the text to train a vocabulary on is empty (--input_file)")
    count, normalizer = len(texts), sentencepiece.lower_casing() if settings.lower_case else None
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=_released(texts, normalizer),
            model_writer=written,
            model_type=settings.kind,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            input_sentence_size=0,  # its own sampling differs between processes even with a fixed seed
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
    except RuntimeError as error:
        raise _explained(" ".join(str(error).split()), count, settings.vocab_size) from error
    return written.getvalue()


def _drawn(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """At most `most` texts, each chosen with the same probability (reservoir sampling, Vitter's algorithm R)."""
    chance = random.Random(seed)
    drawn: list[str] = []
    for number, text in enumerate(texts):
        if number < most:
            drawn.append(text)
        elif (place := int(chance.random() * (number + 1))) < most:
            drawn[place] = text
    return drawn


def _released(texts: list[str], normalizer) -> Iterator[str]:
    """The texts, last first, each freed once SentencePiece has its copy."""
    while texts:
        # SentencePiece skips a text that contains ▅, its own mark of an unknown character.
        text = texts.pop().replace("\n", " ").replace("▅", " ")
        yield normalizer.normalize_str(text) if normalizer else text


def _explained(message: str, count: int, vocab_size: int) -> InputError:
    """SentencePiece's error as a message that names our flags."""
    if upper := re.search(r"Vocabulary size too high .*value <= (\d+)", message):
        return _too_large(vocab_size, upper[1])
    if lower := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        return _too_small(vocab_size, lower[1])
    return InputError(f"SentencePiece cannot train {vocab_size} pieces on {count} texts: {message}")
