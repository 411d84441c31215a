"""WordPiece, SentencePiece and byte-level BPE: text -> token ids, and the characters of each."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from bert.text import added, sentencepiece
from bert.text.characters import begins_without_blank
from ringbase.errors import InputError, one_line, unread
from ringbase.files import read_object
from ringbase.ragged import Array
from ringbase.settings import shown

WORDPIECE_ONLY = "max_input_chars_per_word"  # a key of a tokenizer.json's model
MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; 100 in transformers
TEXTS_AT_ONCE = 4096  # an encoding takes far more memory than its ids
MOST_UNKNOWN_SHARE = 0.10
# WordPiece marks the pieces that continue a word, the others those that begin one.
WORD_MARKS = {"wordpiece": "##", "sentencepiece": sentencepiece.BLANK, "bytes": "Ġ"}
IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# The first of the three bytes of kana and ideographs, alone or with the second one.
FIRST_BYTES = {
    "bytes": re.compile("[\u00e3-\u00e9][\u00a1-\u00ff\u0100-\u0143]?"),
    "sentencepiece": re.compile("<0xE[3-9]>"),
}
MOST_IDS = 1 << 24
TRIAL = "The cat sat, 고양이 1 ☃."
# What a tokenizer_config.json says of BERT's normalization, by its names in `tokenizers`.
NORMALIZATION = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# Classes, without "Fast", whose ids follow from a folder's files.
BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
TOKENIZER_CLASSES = (
    *BERT_CLASSES,
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "AlbertTokenizer",
    "XLNetTokenizer",
    "KoBertTokenizer",
    "PreTrainedTokenizer",
    "TokenizersBackend",
)
# Those whose ids follow from a tokenizer.json alone.
JSON_CLASSES = ("GemmaTokenizer", "LlamaTokenizer")
# Those whose models get types of tokens if nothing else is said; with PreTrainedTokenizer those of
# transformers 4.
CLASSES_WITH_TYPES = ("BertTokenizer", "ElectraTokenizer", "KoBertTokenizer", "PreTrainedTokenizer")
# besides "uncased" ones
LOWER_CASE_CHECKPOINTS = ("multilingual_l-12_h-768_a-12", "chinese_l-12_h-768_a-12")


class Tokenizer:
    """A WordPiece or SentencePiece tokenizer, over one of the Rust library `tokenizers`.

    `lower_case` says whether text is lower-cased and stripped of accents. `vocab_size` is the
    largest id + 1. Equal digests mean equal ids.
    """

    def __init__(
        self,
        backend: RustTokenizer,
        lower_case: bool,
        source: str,
        names: list[str],
        spm: bytes | None,
        has_types: bool = True,
    ):
        """`source` is the file, `names` are those of the special tokens, `spm` is a SentencePiece
        model's file, `has_types` says whether the tokens of a second text have type 1."""
        self.backend = backend
        self.lower_case = lower_case
        self.source = source
        self.has_types = has_types
        self._names = names
        self._spm = spm
        backend.no_truncation()
        backend.no_padding()
        self.kind = "sentencepiece"
        if isinstance(backend.model, models.WordPiece):
            backend.model.max_input_chars_per_word = MAX_CHARACTERS_PER_WORD
            self.kind = "wordpiece"
        elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
            self.kind = "bytes"
        self._reader = added.reader_of(backend, names, names[1])
        self.word_mark = WORD_MARKS[self.kind]
        vocabulary = backend.get_vocab()
        ids = [vocabulary[name] for name in names]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.vocab_size = max(vocabulary.values()) + 1
        if len(set(ids)) < len(ids):
            raise InputError(f"{source}: the ids of the special tokens must differ, got {ids}")
        # Between two texts: RoBERTa's have two.
        self.separators = backend.encode("a", "a").ids.count(self.sep_id) - 1
        self.digest = hashlib.sha256(self._reader.to_str().encode()).hexdigest()
        # A token that the vocabulary lists twice has its last id.
        self._tokens = [f"[unassigned {number}]" for number in range(self.vocab_size)]
        for token, number in vocabulary.items():
            self._tokens[number] = token

    def __reduce__(self):
        parts = self.backend, self.lower_case, self.source, self._names, self._spm, self.has_types
        return Tokenizer, parts

    def with_backend(self, backend: RustTokenizer) -> "Tokenizer":
        """The tokenizer with more entries, which `backend` has."""
        names = self._names
        return Tokenizer(backend, self.lower_case, self.source, names, None, self.has_types)

    @property
    def added_tokens(self) -> list[str]:
        """The tokens that somebody added to the vocabulary, each of which is one token wherever a
        text has it."""
        return [token.content for token in added.own(self.backend, self._names)]

    @functools.cached_property
    def continues_word(self) -> Array:
        """bool [vocab_size]: the pieces that continue a word, so that whole words can be masked:
        those with ## in front (WordPiece) or without ▁ (SentencePiece) or Ġ (bytes), never special
        or added tokens. Where words have no blanks between them, such as in Japanese and Thai, each
        piece is one, as ideographs are for BERT."""
        is_marked = np.array([token.startswith(self.word_mark) for token in self._tokens])
        table = is_marked if self.kind == "wordpiece" else ~is_marked
        for number in np.flatnonzero(table):
            table[number] = not self._is_own_word(self._tokens[number])
        table[[*self.backend.get_added_tokens_decoder()]] = False
        return table

    def _is_own_word(self, token: str) -> bool:
        """Whether a piece begins with a character, or the first byte of one, of a script whose
        words have no blanks between them."""
        text = token
        if self.kind == "wordpiece":
            text = token.removeprefix(self.word_mark)
        elif FIRST_BYTES[self.kind].fullmatch(token):
            return True
        elif self.kind == "bytes":
            text = decoders.ByteLevel().decode([token])
        return begins_without_blank(text)

    @functools.cached_property
    def _blanks(self) -> Array:
        return sentencepiece.blanks(self.backend.normalizer, self.kind == "sentencepiece")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens of these ids as the vocabulary writes them (`##ing`, `▁the`)."""
        return [self._tokens[number] for number in ids]

    def text_of(self, ids: Iterable[int]) -> str:
        """The text of consecutive tokens, with a blank before each that begins a word."""
        pieces = self.pieces(ids)
        if self.kind == "bytes":
            return decoders.ByteLevel().decode(pieces)
        if self.kind == "sentencepiece":
            return "".join(pieces).replace(self.word_mark, " ")
        return "".join(f" {piece}" for piece in pieces).replace(f" {self.word_mark}", "")

    def encode(self, texts: Sequence[str]) -> tuple[list[Array], list[Array]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of
        each text.

        No special tokens are added. The Rust library uses all cores.
        """
        ids = list[Array]()
        spans = list[Array]()
        for encoding in self._reader.encode_batch(list(texts), add_special_tokens=False):
            ids.append(np.asarray(encoding.ids, np.int32))
            spans.append(np.asarray(encoding.offsets, np.int32).reshape(-1, 2))
        if self.kind != "wordpiece":
            spans = sentencepiece.trim(texts, spans, self._blanks)
        return ids, spans

    def encode_ids(self, texts: Sequence[str]) -> list[Array]:
        """The token ids that `encode` gives, without the spans, which take extra time."""
        ids = list[Array]()
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = list(texts[start : start + TEXTS_AT_ONCE])
            encodings = self._reader.encode_batch_fast(part, add_special_tokens=False)
            ids += [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        return ids

    @property
    def case_problem(self) -> str:
        """What this vocabulary loses without lower-casing, and the flag to give; "" if nothing."""
        tokens = [token for token in self._tokens if not re.fullmatch(r"\[.*\]", token)]
        used = set("".join(tokens))
        has_capitals = not used.isdisjoint(ascii_uppercase)
        if self.lower_case or has_capitals or not used.issuperset(ascii_lowercase):
            return ""
        return (
            f"{self.source} has no capital letters, so that they become [UNK]: give --do_lower_case"
        )

    def save(self, folder: Path, has_types: bool = True, num_positions: int | None = None) -> None:
        """Writes the tokenizer's files, from which `transformers.AutoTokenizer` gives the same ids,
        and types of tokens if the model has some. With `truncation=True` it cuts to
        `num_positions`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._written().save(str(folder / "tokenizer.json"))
        # The class BertTokenizer would rebuild it from the vocabulary, with a limit of 100
        # characters per word.
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "do_lower_case": self.lower_case,
        }
        normalizer = self.backend.normalizer
        if isinstance(normalizer, normalizers.BertNormalizer):
            for theirs, ours in NORMALIZATION.items():
                config[theirs] = getattr(normalizer, ours)
        types = ["token_type_ids"] if has_types and self.has_types else []
        config["model_input_names"] = ["input_ids", *types, "attention_mask"]
        if num_positions:
            config["model_max_length"] = num_positions
        for kind, name in zip(sentencepiece.SPECIAL, self._names, strict=True):
            config[f"{kind}_token"] = name
        own = added.own(self.backend, self._names)
        special = [token.content for token in own if token.special]
        if special:
            config["additional_special_tokens"] = special
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")
        if self.kind == "wordpiece":
            lines = "".join(f"{token}\n" for token in self._tokens)
            (folder / "vocab.txt").write_text(lines, encoding="utf-8")
        if self._spm is not None:
            (folder / "spiece.model").write_bytes(self._spm)

    def _written(self) -> RustTokenizer:
        """The tokenizer for files. The blank before a byte-level [MASK] belongs to it, as in
        RoBERTa's and ModernBERT's: in a masked row too there is no token for it."""
        if self.kind != "bytes":
            return self.backend
        written = RustTokenizer.from_str(self.backend.to_str())
        *_, mask = self._names
        written.add_special_tokens([AddedToken(mask, special=True, lstrip=True)])
        return written


def load(
    vocab_file: str | None = None,
    folder: Path | None = None,
    do_lower_case: bool | None = None,
    checkpoint_name: str = "",
    spm_model_file: str | None = None,
) -> Tokenizer:
    """The tokenizer of a SentencePiece model, a vocabulary file or a model folder, whichever is
    given first.

    A SentencePiece model takes its ids from `vocab_file`, if that is given too; alone, a .json is a
    tokenizer.json. In a folder, the
    first of these that exists is used: tokenizer.json; a `.model` file, with ids from vocab.txt if
    there is one; vocab.txt. The tokenizer_config.json beside `vocab_file`, or in the folder,
    decides about lower case, accents and Chinese characters, before tokenizer.json unless its class
    is that of tokenizer.json (as transformers' AutoTokenizer). Without any statement and
    `do_lower_case`, text is lower-cased for WordPiece only. The names of Google's published
    checkpoints, if `checkpoint_name` is one, tell their case.

    Raises InputError: there is no vocabulary; a file is damaged, or lacks a special token;
    `do_lower_case` contradicts the files or the name; the tokenizer's class needs other code; the
    SentencePiece model and the vocabulary do not belong together.
    """
    vocabulary = Path(vocab_file).expanduser() if vocab_file else None
    model = Path(spm_model_file).expanduser() if spm_model_file else None
    folders = vocabulary and vocabulary.parent, folder
    statements = [_stated(place) for place in folders if place]
    stated = next(filter(None, statements), Stated({}))
    normalization, is_bert, has_types = stated
    saved = None
    place = folder if not (vocabulary or model) else None
    if place is not None:
        files = place / "tokenizer.json", place / "vocab.txt"
        saved, vocabulary = (path if path.is_file() else None for path in files)
        present = list(place.glob("*.model"))
        model = present[0] if len(present) == 1 else None
    elif vocabulary and not model and vocabulary.suffix == ".json":
        place = saved = vocabulary
    if saved:
        normalization, is_bert = _normalization_of(saved, normalization, is_bert)
    if place is not None:
        of_files = normalization.get("lowercase")
        if None not in (of_files, do_lower_case) and of_files != do_lower_case:
            raise InputError(
                f"--do_lower_case={do_lower_case}, but {place} says do_lower_case={of_files}"
            )
    cases = do_lower_case, normalization.get("lowercase"), model is None
    lower_case = next(value for value in cases if value is not None)
    _check_case(lower_case, checkpoint_name)
    source = saved or model or vocabulary
    if source is None:
        raise InputError(
            "no vocabulary: give --vocab_file, --spm_model_file, or --model with a folder or hub"
            " name that has one"
        )
    normalization = {**normalization, "lowercase": lower_case}
    try:
        if saved:
            backend, names, gives_types = _saved(saved, normalization if is_bert else None)
            has_types = has_types and gives_types
        elif model:
            backend, names = sentencepiece.convert(model, vocabulary, lower_case)
        else:
            backend, names = _wordpiece(source, normalization)
        added.add(backend, added.stated_in(source.parent), str(source))
        spm = model.read_bytes() if model else None
        return Tokenizer(backend, lower_case, str(source), names, spm, has_types)
    except BaseException as error:
        # the libraries' errors have no class in common; Rust's panics are no Exception
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, InputError) or not (is_panic or isinstance(error, Exception)):
            raise
        flag = "--model" if saved else "--spm_model_file"
        where = f"{flag} {source}"
        damaged = f"{where}: damaged or unusable: {one_line(error)[:300]}"
        raise unread(error, where, damaged) from error


def _wordpiece(path: Path, normalization: Mapping[str, bool]) -> tuple[RustTokenizer, list[str]]:
    """google-research/bert `tokenization.py`. A token that is listed twice has its last id."""
    tokens = sentencepiece.lines_of(path)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    names = sentencepiece.special_names(vocabulary, str(path))
    backend = RustTokenizer(models.WordPiece(vocabulary, unk_token=names[1]))
    backend.normalizer = normalizers.BertNormalizer(**normalization)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return sentencepiece.add_special(backend, names), names


def _saved(
    path: Path, normalization: Mapping[str, bool] | None
) -> tuple[RustTokenizer, list[str], bool]:
    """What a tokenizer.json holds, ours or another's; with BERT's `normalization` instead of its
    own if that is given and it is WordPiece; the names of its special tokens, and whether a second
    text has type 1. Raises InputError: neither WordPiece nor SentencePiece."""
    backend = RustTokenizer.from_file(str(path))
    vocabulary = backend.get_vocab()
    largest = max(vocabulary.values(), default=0)
    if largest >= MOST_IDS:  # `to_str` takes 4 bytes for each
        raise InputError(f"--model {path}: ids must be below {MOST_IDS:,}, got {largest:,}")
    if backend.normalizer:  # a damaged character map panics when it meets a character
        all_characters = "".join(map(chr, sentencepiece.BASIC_PLANE))
        backend.normalizer.normalize_str(all_characters)
    backend.encode(TRIAL)
    kind = type(backend.model)
    is_bytes = kind is models.BPE and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
    text = backend.to_str()
    content = json.loads(text)
    # Gemma's has SentencePiece's marks of blanks without its pre-tokenizer.
    has_marks = "Metaspace" in text or sentencepiece.BLANK in str(content["normalizer"])
    if kind is not models.WordPiece and not is_bytes and not has_marks:
        raise InputError(
            f"--model {path}: a {kind.__name__} tokenizer is not WordPiece, SentencePiece or"
            " RoBERTa's"
        )
    core = content["model"]
    if kind is models.Unigram:
        unknown = core["vocab"][core["unk_id"]][0]
    else:
        unknown = core["unk_token"] or ""
    names = sentencepiece.special_names(vocabulary, str(path), unknown)
    pair = backend.encode("a", "a")  # as the file says that two texts are joined
    separators = max(1, pair.tokens.count(names[3]) - 1)
    gives_types = 1 in pair.type_ids
    if normalization is not None and kind is models.WordPiece:
        gives_types = True  # BERT's class joins them by itself
        backend.normalizer = normalizers.BertNormalizer(**normalization)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend = sentencepiece.add_special(backend, names, separators=separators)
    return backend, names, gives_types


def _normalization_of(
    saved: Path, stated: Mapping[str, bool], is_bert: bool
) -> tuple[Mapping[str, bool], bool]:
    """The normalization by a tokenizer.json, where BERT's class `is_bert` with what is `stated`,
    and whether it is BERT's: a folder that states no class may be RoBERTa's, which has no
    WordPiece."""
    content = read_object(saved, f"--model {saved}")
    core = content.get("model")
    if is_bert and isinstance(core, dict) and WORDPIECE_ONLY in core:
        return {"lowercase": True, **stated}, True
    text = json.dumps(content.get("normalizer"))
    lower_case = '"Lowercase"' in text or '"lowercase": true' in text
    return {"lowercase": lower_case}, False


class Stated(NamedTuple):
    """What a tokenizer_config.json says: of BERT's normalization, by the names of `BertNormalizer`;
    whether its class is one of BERT's, which take no normalization from tokenizer.json; and whether
    the model gets types of tokens."""

    normalization: Mapping[str, bool]
    is_bert: bool = False
    has_types: bool = True


def _stated(folder: Path) -> Stated | None:
    """What a folder's tokenizer_config.json, if it has one, says. Raises InputError: its class is
    not ours."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    config = read_object(path, f"--model {path}")
    name = str(config.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    is_whole = name in JSON_CLASSES and (folder / "tokenizer.json").is_file()
    if name not in TOKENIZER_CLASSES and not is_whole:
        raise InputError(
            f"--model {path}: a {name} cuts texts by code of its own; RingBERT has"
            f" {', '.join(TOKENIZER_CLASSES)}"
        )
    normalization = dict[str, bool]()
    for theirs, ours in NORMALIZATION.items():
        value = config.get(theirs)
        if not isinstance(value, bool | None):
            raise InputError(f"--model {path}: {theirs} must be true or false, got {shown(value)}")
        if value is not None:
            normalization[ours] = value
    inputs = config.get("model_input_names")
    if not isinstance(inputs, list | None):
        raise InputError(
            f"--model {path}: model_input_names must be a list of names, got {shown(inputs)}"
        )
    has_types = name in CLASSES_WITH_TYPES if inputs is None else "token_type_ids" in inputs
    return Stated(normalization, name in BERT_CLASSES, has_types)


def _check_case(do_lower_case: bool, checkpoint_name: str) -> None:
    """Google's `validate_case_matches_checkpoint`: the folder names of published checkpoints tell
    their case."""
    path = PurePath(checkpoint_name)
    folder = path.parent if "ckpt" in path.name else path
    name = folder.name.lower()
    parts = re.split("[_-]", name)
    is_uncased = "uncased" in parts or name in LOWER_CASE_CHECKPOINTS
    if is_uncased != do_lower_case and (is_uncased or "cased" in parts):
        raise InputError(
            f"--do_lower_case={do_lower_case} does not match checkpoint {checkpoint_name}: use"
            f" --do_lower_case={is_uncased}"
        )


def unknown_share(ids: Sequence[Array], unk_id: int) -> float:
    """The share of [UNK] among all tokens, 0.0 to 1.0."""
    num_unknown = sum(int((tokens == unk_id).sum()) for tokens in ids)
    num_tokens = sum(map(len, ids))
    return num_unknown / max(1, num_tokens)


def tokens_per_character(ids: Sequence[Array], texts: Iterable[str]) -> float:
    """How many tokens the texts with these ids have per character: about 0.3, and 1.0 or more if
    the vocabulary knows no words of their script. Blanks do not count, nor ideographs, which are
    tokens of their own for BERT."""
    tokens = sum(map(len, ids))
    characters = 0
    for text in texts:
        ideographs = len(IDEOGRAPHS.findall(text))
        tokens -= ideographs
        characters += len(text) - text.count(" ") - ideographs
    return tokens / max(1, characters)


def check_unknown(share: float, where: str, tokenizer: Tokenizer, allow_unknown: bool) -> None:
    """Raises InputError when this share of a text's tokens, more than 10 %, is [UNK], unless
    `allow_unknown`."""
    if share > MOST_UNKNOWN_SHARE and not allow_unknown:
        raise InputError(
            f"{where}: {share:.1%} of the tokens are [UNK] with {tokenizer.source}, lower case"
            f" {tokenizer.lower_case}: check --vocab_file and --do_lower_case (--nodo_lower_case"
            " for a cased vocabulary), or give --allow_unknown"
        )
