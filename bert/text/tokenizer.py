"""WordPiece and SentencePiece behind one interface: text -> token ids, and the characters of each."""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from bert.text import sentencepiece
from bert.text.case import case_problem, check_case
from bert.text.sentencepiece_model import read_ids, read_model
from bert.text.tokenizer_files import (
    SPECIAL_TOKENS,
    check_vocabulary,
    is_wordpiece,
    models_of,
    rust_errors,
    stated_case,
)
from ringbase.errors import InputError, shortened

MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; 100 in transformers
MOST_UNKNOWN_SHARE = 0.10
MOST_IDS = 1 << 24
BASIC_PLANE = (*range(1, 0xD800), *range(0xE000, 0x10000))
TRIAL = "The cat sat, 고양이 1 ☃."


class Tokenizer:
    """A WordPiece or SentencePiece tokenizer.

    Attributes:
      kind: 'wordpiece' or 'sentencepiece'.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      vocab_size: the largest id + 1.
      lower_case: whether text is lower-cased and stripped of accents.
      source: the file that it was loaded from, for messages.
      digest: a hash of the vocabulary and settings; equal digests mean equal ids.
    """

    kind: Literal["wordpiece", "sentencepiece"]

    def __init__(self, fast, lower_case: bool, source: str, spm_model: bytes | None = None):
        """`fast` is transformers' tokenizer; `spm_model` is the SentencePiece model's file, for `save`."""
        self._fast, self.lower_case, self.source, self._spm_model = fast, lower_case, source, spm_model
        self._backend = backend = _as_google(fast)
        self.kind = "wordpiece" if hasattr(backend.model, "max_input_chars_per_word") else "sentencepiece"
        vocabulary = fast.get_vocab()
        if self.kind == "wordpiece":
            own = backend.get_vocab(with_added_tokens=False)  # without the tokens that transformers silently adds
            absent = [token for token in SPECIAL_TOKENS if token not in own]
            if absent:
                raise InputError(f"{source}: the vocabulary has no {', '.join(absent)} (--vocab_file)")
        names = [fast.pad_token, fast.unk_token, fast.cls_token, fast.sep_token, fast.mask_token]
        if self.kind == "wordpiece" and names != list(SPECIAL_TOKENS):
            raise InputError(
                f"{source}: the files beside it (tokenizer_config.json, special_tokens_map.json) name the special "
                f"tokens {shortened(str(name)[:40] for name in names)}, expected {', '.join(SPECIAL_TOKENS)}"
            )
        ids = [vocabulary[name] for name in names]
        if len(set(ids)) < len(ids):
            raise InputError(
                f"{source}: two special tokens have the same id: {dict(zip(names, ids, strict=True))}"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.vocab_size = max(vocabulary.values()) + 1
        if self.vocab_size > MOST_IDS:
            raise InputError(f"{source}: the id {self.vocab_size - 1:,} is too large, at most {MOST_IDS - 1:,}")
        self.digest = hashlib.sha256(backend.to_str().encode()).hexdigest()

    def __getstate__(self):
        remade = ("_backend", "_blanks", "_tokens", "continues_word")
        return {name: value for name, value in vars(self).items() if name not in remade}

    def __setstate__(self, state):
        vars(self).update(state)
        self._backend = _as_google(self._fast)  # pickling transformers' tokenizer loses its settings

    @property
    def backend(self):
        """The tokenizer of the Rust library `tokenizers`."""
        return self._backend

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The sorted ids of tokens that are not text: [PAD], [UNK], [CLS], [SEP], [MASK] and other control
        pieces."""
        added = self._backend.get_added_tokens_decoder()
        own = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        return tuple(sorted({*own, *(number for number, token in added.items() if token.special)}))

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool [vocab_size]: the pieces that continue a word, so that whole words can be masked.

        These are pieces that start with ## (WordPiece) or do not start with ▁ (SentencePiece), never special
        tokens.
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
        """Id -> token. A token that the vocabulary lists twice has its last id; the first maps to ""."""
        tokens = [""] * self.vocab_size
        for token, number in self._fast.get_vocab().items():
            tokens[number] = token
        return tokens

    @functools.cached_property
    def _blanks(self) -> np.ndarray:
        return sentencepiece.blanks(self._backend)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens of these ids as the vocabulary writes them (`##ing`, `▁the`)."""
        return [self._tokens[number] for number in ids]

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of each text.

        No special tokens are added. The Rust library uses all cores.
        """
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        spans = [np.asarray(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        if self.kind == "sentencepiece" and texts:
            spans = sentencepiece.trim(texts, spans, self._blanks)
        return ids, spans

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids that `encode` gives, without the spans, which take extra time."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) for encoding in encodings]

    @property
    def case_problem(self) -> str:
        """What this vocabulary loses by lower-casing, or without it, and the flag to give; "" if nothing."""
        normalizer = self._backend.normalizer
        problem = case_problem(self._tokens, self.lower_case, normalizer.normalize_str if normalizer else str)
        return problem and f"{self.source} has {problem}"

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files, from which `transformers.AutoTokenizer` gives the same ids."""
        self._fast.save_pretrained(folder)
        # With its class BertTokenizer, transformers 5 would rebuild it from the vocabulary, with a limit of 100
        # characters per word; this class uses tokenizer.json unchanged.
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        settings["do_lower_case"] = self.lower_case
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if self.kind == "wordpiece":
            (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in self._tokens), encoding="utf-8")
        if self._spm_model is not None:
            (folder / "spiece.model").write_bytes(self._spm_model)


def _as_google(fast):
    """The Rust tokenizer inside, set to behave like google-research/bert `tokenization.py`."""
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
    """The tokenizer of a SentencePiece model, a vocabulary file or a model folder, whichever is given first.

    A SentencePiece model takes its ids from `vocab_file`, if that is given too. In a folder, the first of these
    that exists is used: tokenizer.json; a `.model` file, with ids from vocab.txt if there is one; vocab.txt.

    Args:
      do_lower_case: None means the value in the folder's tokenizer files, else True for WordPiece and False for
        SentencePiece.
      checkpoint_name: the model's. The names of Google's published checkpoints tell their case.
    Raises InputError: there is no vocabulary; `do_lower_case` contradicts the tokenizer's files or the
      checkpoint's name; a special token is missing; the SentencePiece model and the vocabulary file do not belong
      together.
    """
    stated = stated_case(folder)
    if do_lower_case not in (None, stated) and stated is not None and not (vocab_file or spm_model_file):
        raise InputError(
            f"--do_lower_case={do_lower_case}, but the tokenizer of {folder} says do_lower_case={stated}"
        )
    path = Path(vocab_file).expanduser() if vocab_file else None
    model = Path(spm_model_file).expanduser() if spm_model_file else None
    saved = None
    if path is None and model is None and folder is not None:
        if (folder / "tokenizer.json").is_file():
            saved = folder / "tokenizer.json"
        else:
            model, path = models_of(folder)
    uses_wordpiece = is_wordpiece(saved) if saved else model is None
    lower_case = next((value for value in (do_lower_case, stated) if value is not None), uses_wordpiece)
    check_case(lower_case, checkpoint_name)
    if saved is not None:
        return _saved_wordpiece(saved, lower_case) if uses_wordpiece else _saved_sentencepiece(saved, lower_case)
    if model is not None:
        return _sentencepiece(model, path, lower_case)
    if path is None:
        raise InputError(
            "no vocabulary: give --vocab_file, --spm_model_file, or --model with a folder or hub name that has one"
        )
    return _wordpiece(path, lower_case)


def _wordpiece(path: Path, lower_case: bool) -> Tokenizer:
    from transformers import BertTokenizerFast

    check_vocabulary(path)
    with rust_errors(f"--vocab_file {path}"):
        fast = BertTokenizerFast(str(path), do_lower_case=lower_case)
    return Tokenizer(fast, lower_case, str(path))


def _saved_wordpiece(path: Path, lower_case: bool) -> Tokenizer:
    from transformers import BertTokenizerFast

    with rust_errors(f"--model {path}"):
        fast = BertTokenizerFast.from_pretrained(str(path.parent), do_lower_case=lower_case)
    return Tokenizer(fast, lower_case, str(path))


def _sentencepiece(model: Path, vocab_file: Path | None, lower_case: bool) -> Tokenizer:
    parsed = read_model(model)
    tokens = None if vocab_file is None else read_ids(vocab_file)
    try:
        backend = sentencepiece.convert(parsed, str(model), tokens, str(vocab_file or ""), lower_case)
    except InputError:
        raise
    except Exception as error:  # the Rust library's errors have no class of their own
        raise InputError(f"--spm_model_file {model}: unusable, so it may be damaged: {error}") from error
    return Tokenizer(
        _for_transformers(backend, lower_case, str(model)), lower_case, str(model), model.read_bytes()
    )


def _saved_sentencepiece(path: Path, lower_case: bool) -> Tokenizer:
    import tokenizers

    with rust_errors(f"--model {path}"):
        backend = tokenizers.Tokenizer.from_file(str(path))
    models = sorted(path.parent.glob("*.model"))
    model = models[0].read_bytes() if len(models) == 1 else None
    return Tokenizer(_for_transformers(backend, lower_case, str(path)), lower_case, str(path), model)


def _for_transformers(backend, lower_case: bool, source: str):
    """A SentencePiece tokenizer of the Rust library in transformers' class."""
    from transformers import PreTrainedTokenizerFast

    core = json.loads(backend.to_str())["model"]
    if core["type"] == "Unigram" and core["unk_id"] is None:
        raise InputError(f"{source}: the model has no unk_id, the id of [UNK]")
    unknown = core["vocab"][core["unk_id"]][0] if core["type"] == "Unigram" else core["unk_token"]
    names = sentencepiece.special_names(backend.get_vocab(), source, "", unknown)
    with rust_errors(source):  # a damaged character map, for one, ends in a panic when it meets a character
        backend = sentencepiece.without_literals(backend, names)
        if backend.normalizer:
            backend.normalizer.normalize_str("".join(map(chr, BASIC_PLANE)))
        backend.encode(TRIAL)
    arguments = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, do_lower_case=lower_case, **arguments)


def unknown_share(ids: Sequence[np.ndarray], unk_id: int) -> float:
    """The share of [UNK] among all tokens, 0.0 to 1.0."""
    total = sum(len(tokens) for tokens in ids)
    return sum(int((tokens == unk_id).sum()) for tokens in ids) / total if total else 0.0


def check_unknown(share: float, where: str, tokenizer: Tokenizer, allow_unknown: bool) -> None:
    """Raises InputError when more than 10 % of the tokens are [UNK], unless `allow_unknown`.

    Args:
      share: the share of [UNK] among the tokens, 0.0 to 1.0.
      where: the name of the text, for the message.
    """
    if share > MOST_UNKNOWN_SHARE and not allow_unknown:
        raise InputError(
            f"{where}: {share:.1%} of the tokens are [UNK] with {tokenizer.source}, lower case "
            f"{tokenizer.lower_case}: check --vocab_file and --do_lower_case, or give --allow_unknown"
        )
