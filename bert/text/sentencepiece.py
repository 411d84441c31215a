"""A SentencePiece model as a tokenizer of the Rust library `tokenizers`: the same ids, with exact
spans.

One object then serves training on all cores, SQuAD answers and `transformers`. The reference is
SentencePiece's `normalizer.cc` (the model's own character map, then blanks), `unigram_model.cc` and
`bpe_model.cc`. With ALBERT's and KoBERT's models 333,676 texts of NSMC, SQuAD and ten novels get
its ids, but for ties in float32, and two texts in which NFC puts ㄳ and ㄵ into the
syllable before them.

`transformers` has converters too. With 5.23 and ALBERT's model 82% of SQuAD's paragraphs get other
ids: a ▁ follows each user-defined symbol, such as a full stop or a bracket. They also find special
tokens in a text, drop some accents, and take no ids from a vocabulary.
"""

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ringbase.errors import InputError
from ringbase.files import SMALL_BYTES, read_json, read_text
from ringbase.ragged import Array

BLANK = "▁"
# types of pieces in sentencepiece_model.proto
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2  # types of models
SPECIAL = ("pad", "unk", "cls", "sep", "mask")  # written [PAD] or <pad> in different models
FAIRSEQ = {"cls": "<s>", "sep": "</s>"}  # in RoBERTa and XLM-R
GEMMA = {"cls": "<bos>", "sep": "<eos>"}
COMPOSING_RULES = ("nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
CUT_OF_BYTES = r"(?<=<)(?=0x[0-9A-F]{2}>)"
CODE_POINTS = 0x20000  # all planes that contain blanks
BASIC_PLANE = (*range(1, 0xD800), *range(0xE000, 0x10000))
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")  # categories of blanks and of characters without a width


Scores = dict[str, float]  # of pieces


def convert(path: Path, vocab_file: Path | None, lower_case: bool) -> tuple[Tokenizer, list[str]]:
    """The `tokenizers.Tokenizer` that gives the ids of a `.model` file, and the names of its
    special tokens.

    `vocab_file` lists the pieces in the order of their ids, if that is not the model's. It must
    include all that the model can produce. (KoBERT's own code would map the others to [UNK].)
    Raises InputError: a special token or a piece is missing, or `tokenizers` cannot represent this
    kind of model; or an error of a library.
    """
    model = _read(path)
    source = str(vocab_file or path)
    order = [piece.piece for piece in model.pieces]
    if vocab_file:
        order = pieces_of(vocab_file)
    listed = set(order)
    unknown = next(piece.piece for piece in model.pieces if piece.type == UNKNOWN)
    names = special_names(listed, source, unknown)
    scores: dict[int, Scores] = {NORMAL: {}, USER_DEFINED: {}, BYTE: {}}
    for piece in model.pieces:
        # A model may hold special tokens as user-defined symbols, which would match in a text.
        if piece.type in scores and piece.piece not in names:
            scores[piece.type][piece.piece] = piece.score
    normal, symbols, byte_pieces = scores.values()
    usable = normal | symbols | byte_pieces  # what a text can produce
    absent = [piece for piece in usable if piece not in listed]
    if absent:
        raise InputError(
            f"{source} lacks {len(absent)} of the {len(usable)} pieces of {path}, such as"
            f" {absent[0]!r}: --vocab_file and --spm_model_file do not belong together"
        )
    if model.trainer_spec.model_type == UNIGRAM:
        core = _unigram(model, order, names[1], usable, symbols)
    else:
        core = _bpe(model, order, names[1], normal, symbols)
    backend = Tokenizer(core)
    steps = _normalizers(model.normalizer_spec, lower_case)
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
        for symbol in symbols:
            normalized = backend.normalizer.normalize_str(symbol).removeprefix(" ")
            if BLANK not in symbol and normalized != symbol:
                raise InputError(
                    f"{path}: its user-defined symbol {symbol!r} is changed by its own"
                    " normalization"
                )
    never = [piece for piece in order if piece not in usable]
    cuts = _cuts_inside(never, usable)
    if byte_pieces:
        cuts.append(CUT_OF_BYTES)
    steps = _pre_tokenizers(model.normalizer_spec.add_dummy_prefix, usable, symbols, cuts)
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    add_special(backend, names)
    # the scores' last digits as after saving and loading
    return Tokenizer.from_str(backend.to_str()), names


def _read(path: Path) -> ModelProto:
    content = path.read_bytes()
    model = ModelProto.FromString(content)
    SentencePieceProcessor(model_proto=content)  # checks the pieces
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    has_other_blanks = trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces
    has_unused = any(piece.type == UNUSED for piece in model.pieces)
    if trainer.model_type not in (UNIGRAM, BPE) or has_other_blanks or has_unused:
        raise InputError(
            f"{path}: only unigram and BPE models can be used, which mark the beginning of words by"
            f" {BLANK} and have no unused pieces: train it again"
        )
    return model


def _unigram(model, order, unknown, usable, symbols):
    """Of all pieces in the order of their ids; `usable` gives the scores of those that a text can
    produce, among them the user's symbols."""
    normal_scores = [piece.score for piece in model.pieces if piece.type == NORMAL]
    best = max(normal_scores, default=0.0)
    scores = dict(usable)
    for symbol in symbols:
        scores[symbol] = len(symbol.encode()) * best - 0.1  # so that they always win
    pieces = [(piece, scores.get(piece, 0.0)) for piece in order]
    return models.Unigram(pieces, order.index(unknown), model.trainer_spec.byte_fallback)


def _bpe(model, order, unknown, normal, symbols):
    """Of all pieces in the order of their ids; `normal` gives the scores of those that merges
    make. SentencePiece merges the pair whose result has the best score."""
    ids = {piece: number for number, piece in enumerate(order)}
    merges = []
    for piece, score in normal.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                merges.append((-score, cut, (left, right)))
    pairs = [pair for _, _, pair in sorted(merges)]
    return models.BPE(
        ids,
        pairs,
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.trainer_spec.byte_fallback,
        ignore_merges=bool(symbols),  # which have no merges
    )


def lower_casing() -> normalizers.Normalizer:
    """Decomposes, strips accents and lower-cases, like google-research/albert's preprocess_text;
    then composes again, so that Hangul syllables stay whole."""
    return normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.NFC(),
        ]
    )


def _normalizers(spec, lower_case: bool) -> list:
    steps: list = [lower_casing()] if lower_case else []
    # The character map of these rules also composes, but `tokenizers` looks up single characters
    # only.
    composing = [normalizers.NFC()] if spec.name in COMPOSING_RULES else []
    steps += composing
    if spec.precompiled_charsmap:
        charsmap = normalizers.Precompiled(spec.precompiled_charsmap)
        # `tokenizers` gives wrong spans after a character that the map drops, so drop such
        # characters first.
        dropped = [code for code in BASIC_PLANE if not charsmap.normalize_str(chr(code))]
        if dropped:
            escaped = "".join(f"\\x{{{code:04x}}}" for code in dropped)
            steps.append(normalizers.Replace(Regex(f"[{escaped}]"), ""))
        steps.append(charsmap)
    steps += composing
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex("^ +| +$"), ""))
    elif spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))  # Metaspace adds none before a blank
    return steps


def _pre_tokenizers(
    add_prefix: bool, usable: Iterable[str], symbols: Iterable[str], cuts: list[str]
) -> list:
    """Cuts a text at blanks, around the user's symbols, and where these patterns say."""
    scheme = "always" if add_prefix else "never"
    is_cut_at_blanks = not any(BLANK in piece[1:] for piece in usable)
    steps: list = [pre_tokenizers.Metaspace(BLANK, scheme, is_cut_at_blanks)]
    longest_first = sorted(symbols, key=len, reverse=True)
    around_symbols = list(map(re.escape, longest_first))
    for patterns in (around_symbols, cuts):
        if patterns:
            pattern = Regex("|".join(patterns))
            steps.append(pre_tokenizers.Split(pattern, "isolated"))
    return steps


def _cuts_inside(never: Iterable[str], usable: Iterable[str]) -> list[str]:
    """Patterns of a place inside each piece that a text must `never` produce: between two
    characters that are neighbours in no usable piece, so that none of those is lost."""
    neighbours = set[str]()
    for piece in usable:
        neighbours.update(map("".join, itertools.pairwise(piece)))
    patterns = []
    for piece in never:
        if len(piece) > 1:
            places = range(1, len(piece))
            cuts = (place for place in places if piece[place - 1 : place + 1] not in neighbours)
            cut = next(cuts, 1)
            before, behind = re.escape(piece[:cut]), re.escape(piece[cut:])
            patterns.append(f"(?<={before})(?={behind})")
    return patterns


# -- vocabulary files and special tokens, also of WordPiece ----------------------------------------


def lines_of(path: Path) -> list[str]:
    """The lines of a vocabulary, the tokens in the order of their ids. Raises InputError: one is
    blank."""
    where = f"--vocab_file {path}"
    text = read_text(path, where, SMALL_BYTES).removesuffix("\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if "" in lines:
        number = lines.index("") + 1
        raise InputError(
            f"{where}: line {number} is blank; each line must hold the token of its id"
        )
    return lines


def pieces_of(path: Path) -> list[str]:
    """The pieces in the order of their ids: the lines of a text file up to a tab, as in
    SentencePiece's `.vocab` files, or a list in JSON, perhaps under `idx_to_token` like KoBERT's
    (GluonNLP's format)."""
    where = f"--vocab_file {path}"
    if path.suffix == ".json":
        values = read_json(path, where)
        if isinstance(values, dict):
            values = values.get("idx_to_token")
    else:
        values = [line.split("\t")[0] for line in lines_of(path)]
    is_list = isinstance(values, list) and all(isinstance(piece, str) for piece in values)
    if not values or not is_list:
        raise InputError(
            f"{where}: neither a list of pieces nor an object with one under idx_to_token"
        )
    piece, count = collections.Counter(values).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where}: the piece {piece!r:.40} is listed {count} times")
    return values


def special_names(pieces: Iterable[str], source: str, unknown: str = "") -> list[str]:
    """This vocabulary's names of [PAD], [UNK], [CLS], [SEP] and [MASK], in this order; `unknown` is
    that of the model, where it is known. Raises InputError: some are missing."""
    present = set(pieces)
    names = []
    for kind in SPECIAL:
        forms = f"[{kind.upper()}]", f"<{kind}>", FAIRSEQ.get(kind, ""), GEMMA.get(kind, "")
        names.append(next((form for form in forms if form in present), ""))
    if unknown in present:
        names[1] = unknown
    absent = [f"[{kind.upper()}]" for kind, name in zip(SPECIAL, names, strict=True) if not name]
    if absent:
        raise InputError(
            f"{source} has no {', '.join(absent)}: give a --vocab_file that lists all pieces"
        )
    return names


def add_special(backend: Tokenizer, names: Sequence[str], separators: int = 1) -> Tokenizer:
    """Declares the special tokens, and for `transformers` the template of one text, or of two with
    so many [SEP] between them."""
    special = [AddedToken(name, special=True) for name in names]
    backend.add_special_tokens(special)
    _, _, cls, sep, _ = names
    between = f" {sep}:0" * separators
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0{between} $B:1 {sep}:1",
        special_tokens=[(name, backend.token_to_id(name)) for name in (cls, sep)],
    )
    return backend


def blanks(normalizer, is_marked: bool) -> Array:
    """bool [CODE_POINTS]: the characters that this normalization drops or turns into a blank, and ▁
    as a mark."""
    table = np.zeros(CODE_POINTS, bool)
    characters = [BLANK] if is_marked else []
    for character in map(chr, range(CODE_POINTS)):
        if unicodedata.category(character) in INVISIBLE:
            characters.append(character)
    for character in characters:
        text = f"a{character}a"
        if normalizer:
            text = normalizer.normalize_str(text)
        table[ord(character)] = text.replace(BLANK, " ").strip() in ("aa", "a a")
    return table


def trim(texts: Sequence[str], spans: Sequence[Array], blank: Array) -> list[Array]:
    """Spans without the blanks around a word, and with the accents that were composed with their
    last character.

    `▁word` spans `word`. A single `▁` spans the first character of the word that it begins, as in
    `tokenizers` at the start of a text. The spans of a text are int32 [n, 2]; `blank` is that of
    `blanks`.
    """
    # All texts at once, separated by a letter; each span by its places there.
    together = "a".join(texts).encode("utf-32-le")
    codes = np.frombuffer(together, np.uint32)
    size = len(codes)
    is_blank = blank[np.minimum(codes, CODE_POINTS - 1)]  # the last one is no blank
    counts = [len(of_text) for of_text in spans]
    lengths = np.array([len(text) for text in texts], np.int64)
    begins = np.cumsum(lengths + 1) - lengths - 1
    # of each span's text
    begin = np.repeat(begins, counts)
    end = begin + np.repeat(lengths, counts)
    within_texts = np.concatenate([np.zeros((0, 2), np.int32), *spans])
    flat = within_texts + begin[:, None]

    # From the first character that is kept to behind the last one; at least one character.
    kept = np.append(np.flatnonzero(~is_blank), size)
    behind_kept = np.append(0, kept + 1)
    start = kept[np.searchsorted(kept, flat[:, 0])]
    stop = behind_kept[np.searchsorted(kept, flat[:, 1])]
    stop = np.maximum(stop, start + 1)

    # Accents that were composed with the last character stand before the next blank and span.
    gaps = np.append(np.flatnonzero(is_blank), size)
    next_gap = gaps[np.searchsorted(gaps, np.minimum(stop, size))]
    next_start = np.append(flat[1:, 0], size)
    next_start = np.minimum(next_start, end)
    stop = np.maximum(stop, np.minimum(next_gap, next_start))

    trimmed = np.stack([start, stop], axis=1)
    is_empty = start >= end  # nothing but blanks up to the end of the text: as it was
    trimmed[is_empty] = flat[is_empty]
    if not counts:
        return []
    trimmed = (trimmed - begin[:, None]).astype(np.int32)
    return np.split(trimmed, np.cumsum(counts)[:-1])
