"""WordPiece and SentencePiece behind one interface: text -> token ids with the characters that each came from."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import numpy as np

from bert.text import sentencepiece
from ringbert.errors import InputError
from ringbert.settings import Settings, setting

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; transformers says 100
MOST_UNKNOWN_SHARE = 0.10
LOWER_CASE_CHECKPOINTS = ("multilingual_l-12_h-768_a-12", "chinese_l-12_h-768_a-12")  # beside those named uncased
HANGUL_SYLLABLES, HANGUL_LETTERS = re.compile("[\uac00-\ud7a3]"), re.compile("[\u1100-\u11ff]")


@dataclass(frozen=True, kw_only=True)
class UnknownSettings(Settings):
    """Whether a text that the vocabulary hardly covers is accepted: see `check_unknown`."""

    allow_unknown: bool = setting(False, "continue even if more than 10 % of the tokens are [UNK]", "data")


class Tokenizer:
    """A WordPiece or SentencePiece tokenizer.

    Attributes:
      kind: 'wordpiece' or 'sentencepiece'.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      vocab_size: the largest id + 1.
      lower_case: whether text is lower-cased and stripped of accents.
      digest: of the vocabulary and settings; equal digests give equal ids.
    """

    kind: Literal["wordpiece", "sentencepiece"]

    def __init__(self, fast, lower_case: bool, source: str, spm_model: bytes | None = None):
        """`fast` is transformers' tokenizer; `spm_model` the bytes of the SentencePiece model, saved with it."""
        self._fast, self.lower_case, self.source, self._spm_model = fast, lower_case, source, spm_model
        self._backend = backend = _as_google(fast)
        self.kind = "wordpiece" if hasattr(backend.model, "max_input_chars_per_word") else "sentencepiece"
        vocabulary = fast.get_vocab()
        if self.kind == "wordpiece":
            own = backend.get_vocab(with_added_tokens=False)  # without what transformers silently adds
            absent = [token for token in SPECIAL_TOKENS if token not in own]
            if absent:
                raise InputError(f"{source}: the vocabulary has no {', '.join(absent)} (--vocab_file)")
        names = [fast.pad_token, fast.unk_token, fast.cls_token, fast.sep_token, fast.mask_token]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (vocabulary[name] for name in names)
        self.vocab_size = max(vocabulary.values()) + 1
        self.digest = hashlib.sha256(backend.to_str().encode()).hexdigest()

    def __getstate__(self):
        made_anew = ("_backend", "_blanks", "_tokens", "continues_word")
        return {name: value for name, value in vars(self).items() if name not in made_anew}

    def __setstate__(self, state):
        vars(self).update(state)
        self._backend = _as_google(self._fast)  # transformers' pickle forgets what was set

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids that are no text, in order: [PAD], [UNK], [CLS], [SEP], [MASK] and other control pieces."""
        added = self._backend.get_added_tokens_decoder()
        own = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        return tuple(sorted({*own, *(number for number, token in added.items() if token.special)}))

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool [vocab_size]: the pieces that continue a word, so that whole words can be masked.

        In WordPiece those that start with ##, in SentencePiece those that do not start with ▁; no special token.
        """
        if self.kind == "wordpiece":
            continues = [token.startswith("##") for token in self._tokens]
        else:
            continues = [not token.startswith(sentencepiece.BLANK) for token in self._tokens]
        table = np.array(continues, bool)
        table[list(self.special_ids)] = False
        table.flags.writeable = False
        return table

    @functools.cached_property
    def _tokens(self) -> list[str]:
        """Id -> token; empty where a vocabulary lists a token twice and this is not its last line."""
        tokens = [""] * self.vocab_size
        for token, number in self._fast.get_vocab().items():
            tokens[number] = token
        return tokens

    @functools.cached_property
    def _blanks(self) -> np.ndarray:
        return sentencepiece.blanks(self._backend)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens of these ids as text, as the vocabulary writes them (`##ing`, `▁the`)."""
        return [self._tokens[number] for number in ids]

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of each text.

        No special tokens are added. All cores work at once, in the Rust library's own threads.
        """
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        spans = [np.asarray(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        if self.kind == "sentencepiece" and texts:
            spans = sentencepiece.trim(texts, spans, self._blanks)
        return ids, spans

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids that `encode` gives, without the spans: less work."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) for encoding in encodings]

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files; `transformers.AutoTokenizer` gives the same ids from them."""
        self._fast.save_pretrained(folder)
        # transformers 5 builds a BertTokenizer anew from its vocabulary, with a limit of 100 characters per word;
        # this class takes tokenizer.json as it is.
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        settings["do_lower_case"] = self.lower_case
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if self.kind == "wordpiece":
            # A token that a vocabulary lists twice has its last id: the line of the first stays empty.
            (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in self._tokens), encoding="utf-8")
        if self._spm_model is not None:
            (folder / "spiece.model").write_bytes(self._spm_model)


def _as_google(fast):
    """The Rust tokenizer inside, set to do what google-research/bert `tokenization.py` does."""
    backend = fast.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # "[SEP]" written in a text is text
    if hasattr(backend.model, "max_input_chars_per_word"):
        backend.model.max_input_chars_per_word = MAX_CHARACTERS_PER_WORD
    return backend


def load(
    vocab_file: str | None = None,
    folder: Path | None = None,
    do_lower_case: bool | None = None,
    checkpoint_name: str = "",
    spm_model_file: str | None = None,
) -> Tokenizer:
    """The tokenizer of `--spm_model_file` (its ids from `--vocab_file`, if given), else of `--vocab_file`, else of
    a model folder: its tokenizer.json, else a `.model` file (ids from vocab.txt, if there is one), else vocab.txt.

    `do_lower_case` None means: what the folder's tokenizer file says, else True for WordPiece and False for
    SentencePiece.

    Raises InputError: no vocabulary, a flag that contradicts the tokenizer file, or (Google's check) a
    `--do_lower_case` that contradicts the published checkpoint named `checkpoint_name`; a SentencePiece model
    without [MASK] or the other special tokens, or one that does not belong to the `--vocab_file`.
    """
    stated = _stated_case(folder)
    if do_lower_case is not None and stated is not None and do_lower_case != stated:
        if not (vocab_file or spm_model_file):
            raise InputError(
                f"--do_lower_case={do_lower_case}, but the tokenizer of {folder} says do_lower_case={stated}"
            )
        stated = None
    path = Path(vocab_file).expanduser() if vocab_file else None
    model = Path(spm_model_file).expanduser() if spm_model_file else None
    saved = None
    if path is None and model is None and folder is not None:
        if (folder / "tokenizer.json").is_file():
            saved = folder / "tokenizer.json"
        else:
            model, path = _models_of(folder)
    is_wordpiece = _is_wordpiece(saved) if saved else model is None
    lower_case = next((value for value in (do_lower_case, stated) if value is not None), is_wordpiece)
    validate_case(lower_case, checkpoint_name)
    if saved is not None:
        return _saved_wordpiece(saved, lower_case) if is_wordpiece else _saved_sentencepiece(saved, lower_case)
    if model is not None:
        return _sentencepiece(model, path, lower_case)
    if path is None:
        raise InputError(
            "no vocabulary: give --vocab_file, --spm_model_file, or --model with a folder or hub name that has one"
        )
    return _wordpiece(path, lower_case)


def _wordpiece(path: Path, lower_case: bool) -> Tokenizer:
    from transformers import BertTokenizerFast

    _check_vocabulary(path)
    return Tokenizer(BertTokenizerFast(str(path), do_lower_case=lower_case), lower_case, str(path))


def _saved_wordpiece(path: Path, lower_case: bool) -> Tokenizer:
    from transformers import BertTokenizerFast

    try:
        fast = BertTokenizerFast.from_pretrained(str(path.parent), do_lower_case=lower_case)
    except Exception as error:  # the Rust library's errors have no class of their own
        raise InputError(f"{path}: unreadable: {error} (--model)") from error
    return Tokenizer(fast, lower_case, str(path))


def _sentencepiece(model: Path, vocab_file: Path | None, lower_case: bool) -> Tokenizer:
    parsed = sentencepiece.read_model(model)
    tokens = None if vocab_file is None else sentencepiece.read_ids(vocab_file)
    backend = sentencepiece.convert(parsed, str(model), tokens, str(vocab_file or ""), lower_case)
    return Tokenizer(
        _for_transformers(backend, lower_case, str(model)), lower_case, str(model), model.read_bytes()
    )


def _saved_sentencepiece(path: Path, lower_case: bool) -> Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library's errors have no class of their own
        raise InputError(f"{path}: unreadable: {error} (--model)") from error
    models = sorted(path.parent.glob("*.model"))
    model = models[0].read_bytes() if len(models) == 1 else None
    return Tokenizer(_for_transformers(backend, lower_case, str(path)), lower_case, str(path), model)


def _for_transformers(backend, lower_case: bool, source: str):
    """transformers' class around a SentencePiece tokenizer of the Rust library."""
    from transformers import PreTrainedTokenizerFast

    core = json.loads(backend.to_str())["model"]
    unknown = core["vocab"][core["unk_id"]][0] if core["type"] == "Unigram" else core["unk_token"]
    names = sentencepiece.special_names(backend.get_vocab(), source, "", unknown)
    backend = sentencepiece.without_literals(backend, names)
    arguments = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, do_lower_case=lower_case, **arguments)


def _models_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The SentencePiece model and the vocabulary file of a folder without tokenizer.json."""
    models, vocabulary = sorted(folder.glob("*.model")), folder / "vocab.txt"
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise InputError(f"{folder} has {len(models)} SentencePiece models ({names}): give --spm_model_file")
    if models and not vocabulary.is_file():
        return models[0], None
    return (models[0] if models else None), vocabulary


def _is_wordpiece(path: Path) -> bool:
    """Whether a tokenizer.json holds WordPiece; if not, SentencePiece. Raises InputError: neither."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = values["model"].get("type", "WordPiece")  # files of old versions do not tell
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no tokenizer file: {error} (--model)") from error
    if kind in ("Unigram", "BPE") and "Metaspace" in json.dumps(values.get("pre_tokenizer")):
        return False
    if kind != "WordPiece":
        raise InputError(f"{path}: a {kind} tokenizer is neither WordPiece nor SentencePiece (--model)")
    return True


def validate_case(do_lower_case: bool, checkpoint_name: str) -> None:
    """Google's `validate_case_matches_checkpoint`: the published checkpoints' names (of folders) tell their case.

    Raises InputError on a contradiction.
    """
    path = PurePath(checkpoint_name)
    name = (path.parent if "ckpt" in path.name else path).name.lower()
    cased = "cased" in re.split("[_-]", name)
    uncased = "uncased" in re.split("[_-]", name) or name in LOWER_CASE_CHECKPOINTS
    if (cased and do_lower_case) or (uncased and not do_lower_case):
        needed = "--do_lower_case=False" if cased else "--do_lower_case=True"
        raise InputError(
            f"--do_lower_case={do_lower_case} does not match checkpoint {checkpoint_name}: use {needed}"
        )


def unknown_share(ids: Sequence[np.ndarray], unk_id: int) -> float:
    """The share of [UNK] among all tokens, 0.0 to 1.0."""
    total = sum(len(tokens) for tokens in ids)
    return sum(int((tokens == unk_id).sum()) for tokens in ids) / total if total else 0.0


def check_unknown(share: float, where: str, tokenizer: Tokenizer, allow_unknown: bool) -> None:
    """Raises InputError when more than 10 % of the tokens are [UNK], unless `allow_unknown`.

    Args:
      share: of `unknown_share`.
      where: the text, as the message names it.
    """
    if share > MOST_UNKNOWN_SHARE and not allow_unknown:
        raise InputError(
            f"{where}: {share:.1%} of the tokens are [UNK] with {tokenizer.source}, lower case "
            f"{tokenizer.lower_case}: check --vocab_file and --do_lower_case, or give --allow_unknown"
        )


def splits_hangul(tokenizer: Tokenizer) -> bool:
    """Whether the normalization takes Korean syllables apart that the vocabulary knows whole.

    Lower-casing in BERT strips accents by NFD, which turns U+AC00..U+D7A3 into letters U+1100..U+11FF: the pieces
    with a syllable that does not survive it can never be found. True when those are more than the pieces with
    letters: a vocabulary made with lower-casing has letters instead.
    """
    normalizer = tokenizer._backend.normalizer
    if normalizer is None:
        return False
    lost = letters = 0
    for token in tokenizer._tokens:
        syllable = HANGUL_SYLLABLES.search(token)
        lost += syllable is not None and syllable[0] not in normalizer.normalize_str(syllable[0])
        letters += HANGUL_LETTERS.search(token) is not None
    return lost > letters


def lacks_capitals(tokenizer: Tokenizer) -> bool:
    """Whether text keeps its capital letters and the vocabulary has none of A to Z, but has a to z: they all
    become [UNK]. So it is for ALBERT's model without `--do_lower_case`."""
    letters = set("".join(token for token in tokenizer._tokens if not re.fullmatch(r"\[.*\]", token)))
    capitals = {letter for letter in letters if "A" <= letter <= "Z"}
    return not tokenizer.lower_case and not capitals and letters >= set("abcdefghijklmnopqrstuvwxyz")


def _stated_case(folder: Path | None) -> bool | None:
    """What a folder's files say of lower case: tokenizer_config.json, else the normalizer of tokenizer.json."""
    for name in ("tokenizer_config.json", "tokenizer.json"):
        if folder is None or not (folder / name).is_file():
            continue
        try:
            values = json.loads((folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{folder / name}: not JSON ({error}) (--model)") from error
        normalizer = values.get("normalizer") or {}
        stated = values.get("do_lower_case", normalizer.get("lowercase"))
        if stated is None and "normalizers" in normalizer:  # SentencePiece
            stated = '"Lowercase"' in json.dumps(normalizer)
        if stated is not None:
            return bool(stated)
    return None


def _check_vocabulary(path: Path) -> None:
    try:
        tokens = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file (--vocab_file)") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (--vocab_file): {error}") from error
    if path.suffix == ".json":
        raise InputError(
            f"{path}: no WordPiece vocabulary; for the ids of a SentencePiece model: --spm_model_file"
        )
    if len(tokens) < len(SPECIAL_TOKENS):
        raise InputError(f"{path}: {len(tokens)} lines are no WordPiece vocabulary (--vocab_file)")
