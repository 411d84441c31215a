"""WordPiece and SentencePiece behind one interface: text -> token ids, and the characters of each."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Literal

import numpy as np
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert.text import sentencepiece, tokenizer_files
from bert.text.tokenizer_files import SPECIAL_TOKENS, check_special, library_errors
from ringbase.errors import InputError

MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; 100 in transformers
MOST_UNKNOWN_SHARE = 0.10
MOST_IDS = 1 << 24
HANGUL_SYLLABLES, HANGUL_LETTERS = re.compile("[\uac00-\ud7a3]"), re.compile("[\u1100-\u11ff]")
TRIAL = "The cat sat, 고양이 1 ☃."


class Tokenizer:
    """A WordPiece or SentencePiece tokenizer.

    Attributes:
      backend: the tokenizer of the Rust library `tokenizers`.
      kind: 'wordpiece' or 'sentencepiece'.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      vocab_size: the largest id + 1.
      lower_case: whether text is lower-cased and stripped of accents.
      source: the file that it was loaded from, for messages.
      digest: a hash of the vocabulary and settings; equal digests mean equal ids.
    """

    kind: Literal["wordpiece", "sentencepiece"]

    def __init__(
        self,
        backend: RustTokenizer,
        lower_case: bool,
        source: str,
        names: Sequence[str] = SPECIAL_TOKENS,
        spm_model: bytes | None = None,
    ):
        """`names` are those of the special tokens; `spm_model` is the SentencePiece model's file, for `save`."""
        self.backend, self.lower_case, self.source, self._names = backend, lower_case, source, tuple(names)
        self._spm_model = spm_model
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # "[SEP]" written in a text is text
        self.kind = "wordpiece" if isinstance(backend.model, models.WordPiece) else "sentencepiece"
        if self.kind == "wordpiece":
            backend.model.max_input_chars_per_word = MAX_CHARACTERS_PER_WORD
        vocabulary = backend.get_vocab()
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

    def __reduce__(self):
        return Tokenizer, (self.backend, self.lower_case, self.source, self._names, self._spm_model)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The sorted ids of tokens that are not text: [PAD], [UNK], [CLS], [SEP], [MASK] and other control
        pieces."""
        added = self.backend.get_added_tokens_decoder()
        own = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        return tuple(sorted({*own, *(number for number, token in added.items() if token.special)}))

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool [vocab_size]: the pieces that continue a word, so that whole words can be masked.

        These are pieces that start with ## (WordPiece) or do not start with ▁ (SentencePiece), never special
        tokens.
        """
        mark, is_mark_of_first = ("##", False) if self.kind == "wordpiece" else (sentencepiece.BLANK, True)
        table = np.array([token.startswith(mark) != is_mark_of_first for token in self._tokens], bool)
        table[list(self.special_ids)] = False
        table.flags.writeable = False
        return table

    @functools.cached_property
    def _tokens(self) -> list[str]:
        """Id -> token. A token that the vocabulary lists twice has its last id; the first has another name."""
        tokens = [f"[unassigned {number}]" for number in range(self.vocab_size)]
        for token, number in self.backend.get_vocab().items():
            tokens[number] = token
        return tokens

    @functools.cached_property
    def _blanks(self) -> np.ndarray:
        return sentencepiece.blanks(self.backend.normalizer)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The tokens of these ids as the vocabulary writes them (`##ing`, `▁the`)."""
        return [self._tokens[number] for number in ids]

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of each text.

        No special tokens are added. The Rust library uses all cores.
        """
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        spans = [np.asarray(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        if self.kind == "sentencepiece":
            spans = sentencepiece.trim(texts, spans, self._blanks)
        return ids, spans

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids that `encode` gives, without the spans, which take extra time."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) for encoding in encodings]

    @property
    def case_problem(self) -> str:
        """What this vocabulary loses by lower-casing, or without it, and the flag to give; "" if nothing.

        BERT's lower-casing strips accents by NFD, which turns the syllables U+AC00..U+D7A3 into the letters
        U+1100..U+11FF. A vocabulary that was made with it holds letters.
        """
        normalizer, tokens = self.backend.normalizer, self._tokens
        if self.lower_case and normalizer and normalizer.normalize_str("한") != "한":
            num_letters = sum(HANGUL_LETTERS.search(token) is not None for token in tokens)
            if sum(HANGUL_SYLLABLES.search(token) is not None for token in tokens) > num_letters:
                return (
                    f"{self.source} has whole Hangul syllables, which lower-casing takes apart, so that Korean "
                    "text becomes [UNK]: give --do_lower_case=False"
                )
        used = set("".join(token for token in tokens if not re.fullmatch(r"\[.*\]", token)))
        if not self.lower_case and used >= set(ascii_lowercase) and used.isdisjoint(ascii_uppercase):
            return f"{self.source} has no capital letters, so that they become [UNK]: give --do_lower_case"
        return ""

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files, from which `transformers.AutoTokenizer` gives the same ids."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        # The class BertTokenizer would rebuild it from the vocabulary, with a limit of 100 characters per word.
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": self.lower_case}
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        settings |= zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), self._names, strict=True
        )
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")
        if self.kind == "wordpiece":
            (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in self._tokens), encoding="utf-8")
        if self._spm_model is not None:
            (folder / "spiece.model").write_bytes(self._spm_model)


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
    path = Path(vocab_file).expanduser() if vocab_file else None
    model = Path(spm_model_file).expanduser() if spm_model_file else None
    stated = tokenizer_files.stated_case(folder) if folder is not None else None
    saved = None
    if path is None and model is None and folder is not None:
        if None not in (stated, do_lower_case) and stated != do_lower_case:
            raise InputError(f"--do_lower_case={do_lower_case}, but {folder} says do_lower_case={stated}")
        if (folder / "tokenizer.json").is_file():
            saved = folder / "tokenizer.json"
        else:
            model, path = tokenizer_files.models_of(folder)
    backend = _read(saved) if saved else None
    is_wordpiece = isinstance(backend.model, models.WordPiece) if backend else model is None
    lower_case = next((value for value in (do_lower_case, stated) if value is not None), is_wordpiece)
    tokenizer_files.check_case(lower_case, checkpoint_name)
    if saved is not None and backend is not None:
        return (_saved_wordpiece if is_wordpiece else _saved_sentencepiece)(backend, lower_case, saved)
    if model is not None:
        return _sentencepiece(model, path, lower_case)
    if path is not None:
        return _wordpiece(path, lower_case)
    raise InputError(
        "no vocabulary: give --vocab_file, --spm_model_file, or --model with a folder or hub name that has one"
    )


def _wordpiece(path: Path, lower_case: bool) -> Tokenizer:
    """google-research/bert `tokenization.py`. A token that is listed twice has its last id."""
    if path.suffix == ".json":
        raise InputError(
            f"--vocab_file {path}: not a WordPiece vocabulary; with the ids of a SentencePiece model give "
            "--spm_model_file too"
        )
    vocabulary = {token: number for number, token in enumerate(tokenizer_files.read_lines(path))}
    check_special(vocabulary, str(path))
    backend = RustTokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return Tokenizer(sentencepiece.add_special(backend, SPECIAL_TOKENS), lower_case, str(path))


def _sentencepiece(path: Path, vocab_file: Path | None, lower_case: bool) -> Tokenizer:
    model = tokenizer_files.read_model(path)
    order = None if vocab_file is None else tokenizer_files.read_ids(vocab_file)
    with library_errors(f"--spm_model_file {path}"):
        backend, names = sentencepiece.convert(model, order, str(path), str(vocab_file or ""), lower_case)
        _try(backend)
    return Tokenizer(backend, lower_case, str(path), names, path.read_bytes())


def _read(path: Path) -> RustTokenizer:
    """What a tokenizer.json holds, ours or another's. Raises InputError: neither WordPiece nor SentencePiece."""
    with library_errors(f"--model {path}"):
        backend = RustTokenizer.from_file(str(path))
        _try(backend)
    kind, saved = type(backend.model), backend.to_str()
    if kind is not models.WordPiece and not (kind in (models.Unigram, models.BPE) and "Metaspace" in saved):
        raise InputError(f"--model {path}: a {kind.__name__} tokenizer is neither WordPiece nor SentencePiece")
    return backend


def _saved_wordpiece(backend: RustTokenizer, lower_case: bool, path: Path) -> Tokenizer:
    check_special(backend.get_vocab(with_added_tokens=False), str(path))
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        backend.normalizer.lowercase = lower_case
    return Tokenizer(sentencepiece.add_special(backend, SPECIAL_TOKENS), lower_case, str(path))


def _saved_sentencepiece(backend: RustTokenizer, lower_case: bool, path: Path) -> Tokenizer:
    core = json.loads(backend.to_str())["model"]
    if core["type"] == "Unigram" and core["unk_id"] is None:
        raise InputError(f"{path}: the model has no unk_id, the id of [UNK]")
    unknown = core["vocab"][core["unk_id"]][0] if core["type"] == "Unigram" else core["unk_token"]
    names = sentencepiece.special_names(backend.get_vocab(), str(path), unknown)
    files = [*path.parent.glob("*.model")]
    return Tokenizer(backend, lower_case, str(path), names, files[0].read_bytes() if len(files) == 1 else None)


def _try(backend: RustTokenizer) -> None:
    """Encodes a text and normalizes every character: a damaged character map panics when it meets one."""
    if backend.normalizer:
        backend.normalizer.normalize_str("".join(map(chr, sentencepiece.BASIC_PLANE)))
    backend.encode(TRIAL)


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
