"""A SentencePiece model as a tokenizer of the Rust library `tokenizers`: the same ids, with exact characters.

So one object serves training on all cores, SQuAD answers and `transformers`. What SentencePiece does to a text is
its `normalizer.cc` (the model's own character map, then blanks), `unigram_model.cc` and `bpe_model.cc`.
"""

import collections
import functools
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringbert.errors import InputError

BLANK = "▁"
# The names that models give to BERT's special tokens, the first one found counts.
SPECIAL_NAMES = {
    "[PAD]": ("[PAD]", "<pad>"),
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<cls>"),
    "[SEP]": ("[SEP]", "<sep>"),
    "[MASK]": ("[MASK]", "<mask>"),
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # sentencepiece_model.proto
UNIGRAM, BPE = 1, 2
COMPOSING_RULES = ("nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
CODE_POINTS = 0x20000  # the planes that hold blanks
BYTE_PIECE = r"(?<=<)(?=0x[0-9A-F]{2}>)"


def read_model(path: Path, flag: str = "--spm_model_file"):
    """The parsed `.model` file (a `sentencepiece_model_pb2.ModelProto`). Raises InputError: absent, damaged, or a
    kind of model that has no equal in `tokenizers`."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error} ({flag})") from error
    except DecodeError as error:
        raise InputError(f"{path}: damaged, or no SentencePiece model ({flag}): {error}") from error
    spec = model.trainer_spec
    if not model.pieces or not model.IsInitialized():
        raise InputError(f"{path}: a SentencePiece model without pieces: truncated? ({flag})")
    if spec.model_type not in (UNIGRAM, BPE):
        raise InputError(f"{path}: model type {spec.model_type} is neither 1 (unigram) nor 2 (BPE) ({flag})")
    if spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        raise InputError(f"{path}: blanks must be ▁ before a word: train it without other settings ({flag})")
    unused = sum(piece.type == UNUSED for piece in model.pieces)
    if unused:
        raise InputError(
            f"{path}: {unused} of {len(model.pieces)} pieces are marked unused: train it anew ({flag})"
        )
    return model


def read_ids(path: Path) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids.

    JSON: a list, an object piece -> id, or either under `idx_to_token` or `token_to_idx` (GluonNLP's form, which
    KoBERT is published in). Text: one piece per line, what follows a tab is not read (SentencePiece's `.vocab`).

    Raises InputError: unreadable, a piece twice, or ids that are not 0, 1, 2, ….
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            values = json.loads(text)
            if isinstance(values, dict):
                values = values.get("idx_to_token") or values.get("token_to_idx") or values
        else:
            values = [line.rstrip("\r").split("\t")[0] for line in text.removesuffix("\n").split("\n")]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error} (--vocab_file)") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (--vocab_file): {error}") from error
    except ValueError as error:
        raise InputError(f"{path}: truncated or not JSON (--vocab_file): {error}") from error
    if isinstance(values, dict) and all(type(number) is int for number in values.values()):
        if sorted(values.values()) != list(range(len(values))):
            raise InputError(
                f"{path}: ids must be 0 to {len(values) - 1} for its {len(values)} pieces, each once; they are "
                f"{min(values.values())} to {max(values.values())} (--vocab_file)"
            )
        values = sorted(values, key=values.__getitem__)
    if not isinstance(values, list) or not all(isinstance(piece, str) for piece in values):
        raise InputError(f"{path}: neither a list of pieces nor an object piece -> id (--vocab_file)")
    if len(set(values)) < len(values):
        twice = collections.Counter(values).most_common(1)[0][0]
        raise InputError(f"{path}: {len(values)} lines, {len(set(values))} pieces: {twice!r} twice (--vocab_file)")
    return values


def convert(model, source: str, tokens: list[str] | None, vocab_source: str, lower_case: bool):
    """The `tokenizers.Tokenizer` that gives the ids of a SentencePiece model.

    Args:
      model: of `read_model`; `source` its name for messages.
      tokens: pieces in the order of their ids (`read_ids` of `vocab_source`), None for the model's own order.
        Every piece that the model can make must be there: one that is not is refused, where KoBERT's own code
        would take it for [UNK].
      lower_case: decompose (NFKD), strip accents and lower-case before, as ALBERT does: `lower_casing`.
    Raises InputError: no [MASK] (or another special token), pieces that the vocabulary lacks.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    made = {p.piece: p for p in model.pieces if p.type in (NORMAL, USER_DEFINED, BYTE)}
    order = [p.piece for p in model.pieces] if tokens is None else tokens
    unknown = next((p.piece for p in model.pieces if p.type == UNKNOWN and p.piece in order), "")
    names = special_names(order, source, vocab_source, unknown)
    listed = set(order)
    lacking = [piece for piece in made if piece not in listed and piece not in names]
    if lacking:
        raise InputError(
            f"{vocab_source} lacks {len(lacking)} of the {len(made)} pieces of {source}, {lacking[0]!r} first: "
            "--vocab_file and --spm_model_file do not belong together"
        )
    for name in names:  # trained as user-defined symbols they would be found in a text
        made.pop(name, None)
    scores = _scores(model)
    if model.trainer_spec.model_type == UNIGRAM:
        core: models.Model = models.Unigram(
            [(piece, scores[piece] if piece in made else 0.0) for piece in order],
            order.index(names[1]),
            model.trainer_spec.byte_fallback,
        )
    else:
        core = models.BPE(
            {piece: number for number, piece in enumerate(order)},
            _merges({piece: scores[piece] for piece, entry in made.items() if entry.type == NORMAL}),
            unk_token=names[1],
            fuse_unk=True,
            byte_fallback=model.trainer_spec.byte_fallback,
            ignore_merges=any(entry.type == USER_DEFINED for entry in made.values()),  # no pairs make these
        )
    backend = Tokenizer(core)
    if steps := _normalizers(model.normalizer_spec, lower_case):
        backend.normalizer = normalizers.Sequence(steps)
    never = [piece for piece in order if piece not in made]
    never += [p.piece for p in model.pieces if p.type == BYTE][:1]
    backend.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(model, source, backend, made, never))
    backend.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    controls = [p.piece for p in model.pieces if p.type == CONTROL and p.piece in listed]
    return finish(backend, names, controls)


def finish(backend, names: list[str], controls: list[str]):
    """Declares the special tokens and BERT's form of one and two texts, for `transformers`."""
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
    """What this vocabulary calls [PAD], [UNK], [CLS], [SEP] and [MASK], in this order.

    `unknown` is the model's own unknown piece, where it is known. Raises InputError: names those that are missing.
    """
    present = set(order)
    found = [next((name for name in names if name in present), "") for names in SPECIAL_NAMES.values()]
    found[1] = unknown or found[1]
    absent = [token for token, name in zip(SPECIAL_NAMES, found, strict=True) if not name]
    if absent:
        where = f"{vocab_source} (ids for {source})" if vocab_source else source
        needed = "give a --vocab_file that lists it" if not vocab_source else "--vocab_file must list it"
        raise InputError(f"{where} has no {', '.join(absent)}: {needed}, or another --spm_model_file")
    return found


def without_literals(backend, names: list[str]):
    """Makes special tokens written in a text text, in a tokenizer.json that somebody else saved: ours are so."""
    from tokenizers import Regex, pre_tokenizers

    vocabulary = set(backend.get_vocab())
    steps = json.loads(backend.to_str())["pre_tokenizer"]
    patterns = [step["pattern"].get("Regex", "") for step in steps.get("pretokenizers", []) if "pattern" in step]
    cuts = "|".join(patterns).split("|")
    found = [name for name in names if not any(cut in cuts for cut in _cuts(name))]
    if found:
        cut = pre_tokenizers.Split(Regex(guard(found, vocabulary - set(names))), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, cut])
    return backend


def guard(strings, pieces) -> str:
    """A pattern of the (empty) places inside `strings` where a text is cut, so that none is ever found whole.

    Each is cut between two characters that no other piece holds side by side: no other piece is lost by it.
    """
    pairs = {piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1)}
    found = []
    for string in strings:
        if re.fullmatch("<0x[0-9A-F]{2}>", string):
            found.append(BYTE_PIECE)
        elif len(string) > 1:
            free = (k for k in range(1, len(string)) if string[k - 1 : k + 1] not in pairs)
            found.append(_cuts(string)[next(free, 1) - 1])
    return "|".join(found)


def _cuts(string: str) -> list[str]:
    """Patterns of the places inside a string, first to last."""
    return [f"(?<={re.escape(string[:k])})(?={re.escape(string[k:])})" for k in range(1, len(string))]


def _scores(model) -> dict[str, float]:
    """Scores of the pieces; user-defined ones get what `unigram_model.cc` gives them, so that they always win."""
    best = max((p.score for p in model.pieces if p.type == NORMAL), default=0.0)
    return {
        p.piece: len(p.piece.encode()) * best - 0.1 if p.type == USER_DEFINED else p.score for p in model.pieces
    }


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best piece first: SentencePiece merges by the score of the result."""
    merges = []
    for piece, score in scores.items():
        for k in range(1, len(piece)):
            if piece[:k] in scores and piece[k:] in scores:
                merges.append((-score, k, piece[:k], piece[k:]))
    return [(left, right) for _, _, left, right in sorted(merges)]


def lower_casing():
    """google-research/albert's preprocess_text, and composed again, so that Hangul stays whole."""
    from tokenizers import normalizers

    steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.NFC()]
    return normalizers.Sequence(steps)


def _normalizers(spec, lower_case: bool) -> list:
    from tokenizers import Regex, normalizers

    steps: list = []
    if lower_case:
        steps.append(lower_casing())
    # The character map of these rules composes too; `tokenizers` looks up single characters only.
    composes = spec.name in COMPOSING_RULES
    if composes:
        steps.append(normalizers.NFC())
    if spec.precompiled_charsmap:
        charsmap = normalizers.Precompiled(spec.precompiled_charsmap)
        # `tokenizers` loses the places of what follows a character that the map drops: drop those first.
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


def _pre_tokenizers(model, source: str, backend, made: dict, never: list[str]) -> list:
    from tokenizers import Regex, pre_tokenizers

    steps: list = [
        pre_tokenizers.Metaspace(
            replacement=BLANK,
            prepend_scheme="always" if model.normalizer_spec.add_dummy_prefix else "never",
            split=not any(BLANK in piece[1:] for piece in made),
        )
    ]
    symbols = [piece for piece, entry in made.items() if entry.type == USER_DEFINED]
    for symbol in symbols:
        if backend.normalizer and backend.normalizer.normalize_str(symbol) != symbol and BLANK not in symbol:
            raise InputError(f"{source}: its user-defined symbol {symbol!r} is changed by its own normalization")
    inside = [s for s in symbols if len(s) > 1 or any(s in piece for piece in made if piece != s)]
    if inside:
        longest_first = sorted(inside, key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated"))
    if pattern := guard(never, made):
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    return steps


@functools.cache
def _invisible() -> tuple[str, ...]:
    kinds = ("Cc", "Cf", "Zs", "Zl", "Zp")
    return (BLANK, *(c for c in map(chr, range(CODE_POINTS)) if unicodedata.category(c) in kinds))


def blanks(backend) -> np.ndarray:
    """bool [CODE_POINTS]: the characters that this tokenizer's normalization turns into a blank or drops."""
    table = np.zeros(CODE_POINTS, bool)
    for character in _invisible():
        text = f"a{character}a"
        after = backend.normalizer.normalize_str(text) if backend.normalizer else text
        table[ord(character)] = after.replace(BLANK, " ") in ("aa", "a a")
    return table


def trim(texts: Sequence[str], spans: Sequence[np.ndarray], blank: np.ndarray) -> list[np.ndarray]:
    """Spans without the blanks around a word, and with what was composed with their last character (an accent).

    `▁word` spans `word`. A `▁` alone spans the first character of the word that it begins, as `tokenizers` has it
    at the start of a text.

    Args:
      spans: of each text int32 [n, 2], the characters of its pieces.
      blank: bool [CODE_POINTS], of `blanks`.
    """
    # All texts at once, a letter between two of them.
    codes = np.frombuffer("a".join(texts).encode("utf-32-le"), np.uint32)
    kept = ~blank[np.where(codes < CODE_POINTS, codes, ord("a"))]
    size, place = len(codes), np.arange(len(codes))
    next_kept = _next(np.where(kept, place, size))
    next_blank = _next(np.where(kept, size, place))
    kept_end = np.maximum.accumulate(np.append(0, np.where(kept, place + 1, 0)))

    numbers = np.array([len(found) for found in spans])
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
    """For each place the smallest value from there on; one more entry, for the end."""
    return np.minimum.accumulate(np.append(places, len(places))[::-1])[::-1]
