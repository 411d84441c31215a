"""A SentencePiece model as a tokenizer of the Rust library `tokenizers`: the same ids, with exact spans.

One object then serves training on all cores, SQuAD answers and `transformers`. The reference is SentencePiece's
`normalizer.cc` (the model's own character map, then blanks), `unigram_model.cc` and `bpe_model.cc`.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from bert.text.sentencepiece_model import BYTE, CONTROL, NORMAL, UNIGRAM, UNKNOWN, USER_DEFINED
from ringbase.errors import InputError

BLANK = "▁"
# The names of BERT's special tokens in different models; the first one that a model has is used.
SPECIAL_NAMES = {
    "[PAD]": ("[PAD]", "<pad>"),
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<cls>"),
    "[SEP]": ("[SEP]", "<sep>"),
    "[MASK]": ("[MASK]", "<mask>"),
}
COMPOSING_RULES = ("nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
CODE_POINTS = 0x20000  # all planes that contain blanks
BYTE_PIECE = r"(?<=<)(?=0x[0-9A-F]{2}>)"


def convert(model, source: str, tokens: list[str] | None, vocab_source: str, lower_case: bool):
    """The `tokenizers.Tokenizer` that gives the ids of a SentencePiece model.

    Args:
      model: from `read_model`; `source` is its name, for messages.
      tokens: pieces in the order of their ids (`read_ids` of `vocab_source`); None for the model's own order.
        They must include every piece that the model can produce. (KoBERT's own code would map the others to
        [UNK].)
      lower_case: lower-case the text first, as ALBERT does (`lower_casing`).
    Raises InputError: a special token is missing, or `tokens` lacks pieces of the model.
    """
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    usable = {p.piece: p for p in model.pieces if p.type in (NORMAL, USER_DEFINED, BYTE)}
    order = [p.piece for p in model.pieces] if tokens is None else tokens
    unknown = next((p.piece for p in model.pieces if p.type == UNKNOWN and p.piece in order), "")
    names = special_names(order, source, vocab_source, unknown)
    listed = set(order)
    absent = [piece for piece in usable if piece not in listed and piece not in names]
    if absent:
        raise InputError(
            f"{vocab_source} lacks {len(absent)} of the {len(usable)} pieces of {source}, such as {absent[0]!r}: "
            "--vocab_file and --spm_model_file do not belong together"
        )
    for name in names:  # a model may hold them as user-defined symbols, which would match in a text
        usable.pop(name, None)
    backend = Tokenizer(_core(model, order, names[1], usable))
    if steps := _normalizers(model.normalizer_spec, lower_case):
        backend.normalizer = normalizers.Sequence(steps)
    never = [piece for piece in order if piece not in usable]
    never += [p.piece for p in model.pieces if p.type == BYTE][:1]
    backend.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(model, source, backend, usable, never))
    backend.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    controls = [p.piece for p in model.pieces if p.type == CONTROL and p.piece in listed]
    return _finish(backend, names, controls)


def _core(model, order: list[str], unknown: str, usable: dict):
    """The `tokenizers` model of these pieces, in the order of their ids; a text can produce those in `usable`."""
    from tokenizers import models

    spec, scores = model.trainer_spec, _scores(model)
    if spec.model_type == UNIGRAM:
        pieces = [(piece, scores[piece] if piece in usable else 0.0) for piece in order]
        return models.Unigram(pieces, order.index(unknown), spec.byte_fallback)
    return models.BPE(
        {piece: number for number, piece in enumerate(order)},
        _merges({piece: scores[piece] for piece, entry in usable.items() if entry.type == NORMAL}),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
        ignore_merges=any(entry.type == USER_DEFINED for entry in usable.values()),  # they have no merges
    )


def _finish(backend, names: list[str], controls: list[str]):
    """Declares the special tokens, and the template of BERT's inputs of one or two texts, for `transformers`."""
    from tokenizers import AddedToken, processors

    special = [*names, *(piece for piece in controls if piece not in names)]
    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    cls, sep = names[2], names[3]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, backend.token_to_id(cls)), (sep, backend.token_to_id(sep))],
    )
    return backend


def special_names(order, source: str, vocab_source: str, unknown: str = "") -> list[str]:
    """This vocabulary's names of [PAD], [UNK], [CLS], [SEP] and [MASK], in this order.

    `unknown` is the model's own unknown piece, where it is known. Raises InputError: some are missing.
    """
    present = set(order)
    chosen = [next((name for name in names if name in present), "") for names in SPECIAL_NAMES.values()]
    chosen[1] = unknown or chosen[1]
    absent = [token for token, name in zip(SPECIAL_NAMES, chosen, strict=True) if not name]
    if absent:
        where = f"{vocab_source} (ids for {source})" if vocab_source else source
        advice = "--vocab_file must list it" if vocab_source else "give a --vocab_file that lists it"
        raise InputError(f"{where} has no {', '.join(absent)}: {advice}, or another --spm_model_file")
    return chosen


def without_literals(backend, names: list[str]):
    """Makes a tokenizer saved by others treat special tokens written in a text as plain text, as ours do."""
    from tokenizers import Regex, pre_tokenizers

    vocabulary = set(backend.get_vocab())
    steps = json.loads(backend.to_str())["pre_tokenizer"]
    patterns = [step["pattern"].get("Regex", "") for step in steps.get("pretokenizers", []) if "pattern" in step]
    cuts = "|".join(patterns).split("|")
    unguarded = [name for name in names if not any(cut in cuts for cut in _cuts(name))]
    if unguarded:
        cut = pre_tokenizers.Split(Regex(_guard(unguarded, vocabulary - set(names))), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, cut])
    return backend


def _guard(strings, pieces) -> str:
    """A pattern that cuts a text at (empty) places inside `strings`, so that none of them is matched as a whole.

    Each is cut between two characters that are neighbours in no other piece, so that no other piece is lost.
    """
    pairs = {piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1)}
    cuts = []
    for string in strings:
        if re.fullmatch("<0x[0-9A-F]{2}>", string):
            cuts.append(BYTE_PIECE)
        elif len(string) > 1:
            free = (k for k in range(1, len(string)) if string[k - 1 : k + 1] not in pairs)
            cuts.append(_cuts(string)[next(free, 1) - 1])
    return "|".join(cuts)


def _cuts(string: str) -> list[str]:
    """A pattern for each place inside a string, from first to last."""
    return [f"(?<={re.escape(string[:k])})(?={re.escape(string[k:])})" for k in range(1, len(string))]


def _scores(model) -> dict[str, float]:
    """The pieces' scores. User-defined pieces get the score of `unigram_model.cc`, so that they always win."""
    best = max((p.score for p in model.pieces if p.type == NORMAL), default=0.0)
    return {
        p.piece: len(p.piece.encode()) * best - 0.1 if p.type == USER_DEFINED else p.score for p in model.pieces
    }


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that join to a piece, best piece first: SentencePiece merges by the result's score."""
    merges = []
    for piece, score in scores.items():
        for k in range(1, len(piece)):
            if piece[:k] in scores and piece[k:] in scores:
                merges.append((-score, k, piece[:k], piece[k:]))
    return [(left, right) for _, _, left, right in sorted(merges)]


def lower_casing():
    """Decomposes, strips accents and lower-cases, like google-research/albert's preprocess_text; then composes
    again, so that Hangul syllables stay whole.
    """
    from tokenizers import normalizers

    steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.NFC()]
    return normalizers.Sequence(steps)


def _normalizers(spec, lower_case: bool) -> list:
    from tokenizers import Regex, normalizers

    steps: list = []
    if lower_case:
        steps.append(lower_casing())
    # The character map of these rules also composes, but `tokenizers` looks up single characters only.
    composes = spec.name in COMPOSING_RULES
    if composes:
        steps.append(normalizers.NFC())
    if spec.precompiled_charsmap:
        charsmap = normalizers.Precompiled(spec.precompiled_charsmap)
        # `tokenizers` gives wrong spans after a character that the map drops, so drop such characters first.
        dropped = [c for c in (*range(1, 0xD800), *range(0xE000, 0x10000)) if not charsmap.normalize_str(chr(c))]
        if dropped:
            pattern = Regex("[" + "".join(f"\\x{{{c:04x}}}" for c in dropped) + "]")
            steps.append(normalizers.Replace(pattern, ""))
        steps.append(charsmap)
    if composes:
        steps.append(normalizers.NFC())
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ +| +$"), "")]
    return steps


def _pre_tokenizers(model, source: str, backend, usable: dict, never: list[str]) -> list:
    from tokenizers import Regex, pre_tokenizers

    steps: list = [
        pre_tokenizers.Metaspace(
            replacement=BLANK,
            prepend_scheme="always" if model.normalizer_spec.add_dummy_prefix else "never",
            split=not any(BLANK in piece[1:] for piece in usable),
        )
    ]
    symbols = [piece for piece, entry in usable.items() if entry.type == USER_DEFINED]
    for symbol in symbols:
        if backend.normalizer and backend.normalizer.normalize_str(symbol) != symbol and BLANK not in symbol:
            raise InputError(f"{source}: its user-defined symbol {symbol!r} is changed by its own normalization")
    inside = [s for s in symbols if len(s) > 1 or any(s in piece for piece in usable if piece != s)]
    if inside:
        longest_first = sorted(inside, key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated"))
    if pattern := _guard(never, usable):
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    return steps


@functools.cache
def _invisible() -> tuple[str, ...]:
    kinds = ("Cc", "Cf", "Zs", "Zl", "Zp")
    return (BLANK, *(c for c in map(chr, range(CODE_POINTS)) if unicodedata.category(c) in kinds))


def blanks(backend) -> np.ndarray:
    """bool [CODE_POINTS]: the characters that this tokenizer's normalization drops or turns into a blank."""
    table = np.zeros(CODE_POINTS, bool)
    for character in _invisible():
        text = f"a{character}a"
        after = backend.normalizer.normalize_str(text) if backend.normalizer else text
        table[ord(character)] = after.replace(BLANK, " ") in ("aa", "a a")
    return table


def trim(texts: Sequence[str], spans: Sequence[np.ndarray], blank: np.ndarray) -> list[np.ndarray]:
    """Spans without the blanks around a word, and with the accents that were composed with their last character.

    `▁word` spans `word`. A single `▁` spans the first character of the word that it begins, as in `tokenizers` at
    the start of a text.

    Args:
      spans: for each text int32 [n, 2], the characters of its pieces.
      blank: bool [CODE_POINTS], from `blanks`.
    """
    # All texts at once, separated by a letter.
    codes = np.frombuffer("a".join(texts).encode("utf-32-le"), np.uint32)
    kept = ~blank[np.where(codes < CODE_POINTS, codes, ord("a"))]
    size, place = len(codes), np.arange(len(codes))
    next_kept = _next(np.where(kept, place, size))
    next_blank = _next(np.where(kept, size, place))
    kept_end = np.maximum.accumulate(np.append(0, np.where(kept, place + 1, 0)))

    numbers = np.array([len(pieces) for pieces in spans])
    lengths = np.array([len(text) for text in texts])
    begins = np.cumsum(lengths + 1) - lengths - 1
    begin = np.repeat(begins, numbers)
    end = begin + np.repeat(lengths, numbers)
    flat = np.concatenate([np.zeros((0, 2), np.int32), *spans]) + begin[:, None]
    following = np.append(flat[1:, 0], size)
    following = np.minimum(following, end)
    start, stop = next_kept[flat[:, 0]], kept_end[flat[:, 1]]
    stop = np.where(start < stop, stop, start + 1)
    stop = np.maximum(stop, np.minimum(next_blank[np.minimum(stop, size)], following))
    trimmed = np.where((start < end)[:, None], np.stack([start, stop], axis=1), flat) - begin[:, None]
    return np.split(trimmed.astype(np.int32), np.cumsum(numbers)[:-1])


def _next(places: np.ndarray) -> np.ndarray:
    """For each place the smallest value from there to the end, and one more entry for the end."""
    return np.minimum.accumulate(np.append(places, len(places))[::-1])[::-1]
