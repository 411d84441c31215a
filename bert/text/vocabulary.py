"""Trains a vocabulary on a text: WordPiece with `tokenizers`, unigram or BPE with `sentencepiece`."""

import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from bert.text import sentencepiece, tokenizer
from ringbert.errors import InputError

FILES = ("vocab.txt", "spiece.model", "tokenizer_config.json", "tokenizer.json")
LONGEST_LINE_BYTES = 1 << 24
SPM_THREADS = 8  # a constant: the pieces depend on it, in the last digits of their scores
MOST_KOREAN_SHARE = 0.01
ANY_WORD = re.compile("[^ \t\r\n]+")


def train(
    sentences: Iterable[str],
    output_dir: Path,
    kind: Literal["wordpiece", "unigram", "bpe"],
    vocab_size: int,
    *,
    do_lower_case: bool,
    min_frequency: int = 2,
    character_coverage: float = 0.9995,
    max_sentences: int = 2_000_000,
    seed: int = 12345,
) -> Path:
    """Trains on a stream of texts, read once; returns `output_dir/vocab.txt` or `output_dir/spiece.model`.

    The folder also gets tokenizer.json and tokenizer_config.json, so that it loads by itself (`tokenizer.load`,
    `transformers.AutoTokenizer`). Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK]. The same texts in the same order
    give the same bytes. WordPiece keeps a count of each different word in memory; SentencePiece `max_sentences`
    texts, drawn at random (`seed`) from all.

    Args:
      do_lower_case: lower-case and strip accents before; the tokenizer that is saved does it too.
      min_frequency: a pair of pieces is joined if it occurs so often (WordPiece).
      character_coverage: share of the text's characters that get a piece, the most frequent ones first.
    Raises InputError: no text, a `vocab_size` that the text cannot fill or that cannot hold its characters, a
      folder that already holds a tokenizer, or lower-casing of Korean for WordPiece, which splits its syllables.
    """
    present = [name for name in FILES if (output_dir / name).exists()]
    if present:
        raise InputError(f"{output_dir} already holds {', '.join(present)}: remove them, or another --output_dir")
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir {output_dir}: a file of this name is there")
    if kind not in ("wordpiece", "unigram", "bpe"):
        raise InputError(f"a vocabulary of kind {kind!r}: wordpiece, unigram or bpe")
    if not 0 < character_coverage <= 1:
        raise InputError(f"--character_coverage {character_coverage}: more than 0, at most 1")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}.", dir=output_dir.parent))
    try:
        if kind == "wordpiece":
            name = "vocab.txt"
            lines = _wordpiece(sentences, vocab_size, do_lower_case, min_frequency, character_coverage)
            (unfinished / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            trained = tokenizer.load(str(unfinished / name), do_lower_case=do_lower_case)
        else:
            name = "spiece.model"
            model = _sentencepiece(
                sentences, kind, vocab_size, do_lower_case, character_coverage, max_sentences, seed
            )
            (unfinished / name).write_bytes(model)
            trained = tokenizer.load(spm_model_file=str(unfinished / name), do_lower_case=do_lower_case)
        trained.save(unfinished)
        _publish(unfinished, output_dir)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return output_dir / name


def _wordpiece(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool, min_frequency: int, coverage: float
) -> list[str]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    # White space of BERT's normalization ends a word: only different words need to be normalized.
    counts = _counted(sentences)
    if do_lower_case:
        _check_hangul(counts)
    words = _words(counts, normalizers.BertNormalizer(lowercase=do_lower_case), pre_tokenizers.BertPreTokenizer())
    firsts, others = _characters(words, coverage)
    initial = [*tokenizer.SPECIAL_TOKENS, *firsts, *(f"##{character}" for character in others)]
    if len(initial) > vocab_size:
        raise InputError(
            f"--vocab_size {vocab_size} cannot hold the {len(initial)} special tokens and characters of the text: "
            "enlarge it or lower --character_coverage"
        )
    # Given as special tokens these keep this order; the trainer's own order of them, and with it the choice
    # between equally frequent pairs, changes from run to run.
    helpers = set(others) - set(firsts)  # the trainer looks for `##x` only where it knows `x`
    builder = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    builder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size + len(helpers),
        min_frequency=min_frequency,
        special_tokens=[*initial, *sorted(helpers)],
        limit_alphabet=0,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    builder.train_from_iterator(_repeated(words), trainer)
    found = builder.get_vocab(with_added_tokens=False)
    lines = [token for token in sorted(found, key=found.__getitem__) if token not in helpers]
    if len(lines) < vocab_size:
        raise InputError(
            f"--vocab_size {vocab_size} is more than the {len(lines)} entries that the text gives with "
            f"--min_frequency {min_frequency}: more text, or a smaller one"
        )
    return lines


def _counted(sentences: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(ANY_WORD.findall(sentence))
    return counts


def _check_hangul(counts: Counter[str]) -> None:
    korean = sum(count for word, count in counts.items() if tokenizer.HANGUL_SYLLABLES.search(word))
    if korean > MOST_KOREAN_SHARE * counts.total():
        raise InputError(
            f"{korean / counts.total():.0%} of the words are Korean, and lower-casing in BERT, which strips "
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
    """The characters that start words and those that continue them: of the most frequent ones, until they make up
    `coverage` of the text."""
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
    """Each word as often as it was counted, many to a line."""
    for word, count in words.items():
        while count > 0:
            yield " ".join([word] * min(count, 4096))
            count -= 4096


def _sentencepiece(
    sentences: Iterable[str],
    kind: str,
    vocab_size: int,
    do_lower_case: bool,
    coverage: float,
    max_sentences: int,
    seed: int,
) -> bytes:
    import io

    import sentencepiece as library

    texts = _drawn((text for text in sentences if text.strip()), max_sentences, seed)
    if not texts:
        raise InputError("the text to train a vocabulary on is empty (--input_file)")
    count = len(texts)
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=_released(texts, sentencepiece.lower_casing() if do_lower_case else None),
            model_writer=written,
            model_type=kind,
            vocab_size=vocab_size,
            character_coverage=coverage,
            input_sentence_size=0,  # its own draw differs from process to process, whatever the seed
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
        raise _explained(" ".join(str(error).split()), count, vocab_size) from error
    return written.getvalue()


def _drawn(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """At most so many texts, each with the same chance (reservoir sampling: Vitter's algorithm R)."""
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
        # SentencePiece leaves out a text with ▅, its own mark of an unknown character.
        text = texts.pop().replace("\n", " ").replace("▅", " ")
        yield normalizer.normalize_str(text) if normalizer else text


def _explained(message: str, count: int, vocab_size: int) -> InputError:
    if most := re.search(r"Vocabulary size too high .*value <= (\d+)", message):
        return InputError(
            f"--vocab_size {vocab_size} is more than the {most[1]} entries that the text gives: more text, or a "
            "smaller one"
        )
    if least := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        return InputError(
            f"--vocab_size {vocab_size} cannot hold the {least[1]} special tokens and characters of the text: "
            "enlarge it or lower --character_coverage"
        )
    return InputError(f"SentencePiece cannot train {vocab_size} pieces on {count} texts: {message}")


def _publish(unfinished: Path, output_dir: Path) -> None:
    """Moves a finished folder to its name; into a folder that already holds other files, one after the other,
    tokenizer.json last."""
    unfinished.chmod(0o755)
    for path in unfinished.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    try:
        unfinished.rename(output_dir)
    except OSError:  # not empty
        for name in FILES:
            if (unfinished / name).exists():
                (unfinished / name).replace(output_dir / name)
    for folder in (output_dir, output_dir.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
