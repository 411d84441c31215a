"""WordPiece behind one interface: text -> token ids with the characters that each came from."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

import numpy as np

from bert import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; transformers says 100
LOWER_CASE_CHECKPOINTS = ("multilingual_l-12_h-768_a-12", "chinese_l-12_h-768_a-12")  # beside those named uncased


class Tokenizer:
    """A WordPiece tokenizer.

    Attributes:
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      vocab_size: the largest id + 1.
      lower_case: whether text is lower-cased and stripped of accents.
      digest: of the vocabulary and settings; equal digests give equal ids.
    """

    def __init__(self, fast, lower_case: bool, source: str):
        self._fast, self.lower_case, self.source = fast, lower_case, source
        self._backend = backend = _as_google(fast)
        vocabulary = fast.get_vocab()
        own = backend.get_vocab(with_added_tokens=False)  # without what transformers silently adds
        absent = [token for token in SPECIAL_TOKENS if token not in own]
        if absent:
            raise InputError(f"{source}: the vocabulary has no {', '.join(absent)} (--vocab_file)")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (vocabulary[t] for t in SPECIAL_TOKENS)
        self.vocab_size = max(vocabulary.values()) + 1
        self.digest = hashlib.sha256(backend.to_str().encode()).hexdigest()

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_backend"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._backend = _as_google(self._fast)  # transformers' pickle forgets what was set

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of each text.

        No special tokens are added. All cores work at once, in the Rust library's own threads.
        """
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        spans = [np.asarray(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        return ids, spans

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files; `transformers.AutoTokenizer` gives the same ids from them (but for words
        of more than 100 characters, which transformers 5 makes [UNK])."""
        self._fast.save_pretrained(folder)
        # A token that a vocabulary lists twice has its last id: the line of the first stays empty.
        lines = [""] * self.vocab_size
        for token, number in self._fast.get_vocab().items():
            lines[number] = token
        (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


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
) -> Tokenizer:
    """The tokenizer of `--vocab_file`, else of a model folder (tokenizer.json or vocab.txt).

    `do_lower_case` None means: what the folder's tokenizer file says, else True.

    Raises InputError: no vocabulary, a flag that contradicts the tokenizer file, or (Google's check) a
    `--do_lower_case` that contradicts the published checkpoint named `checkpoint_name`.
    """
    from transformers import BertTokenizerFast

    stated = _stated_case(folder)
    if do_lower_case is not None and stated is not None and do_lower_case != stated and not vocab_file:
        raise InputError(
            f"--do_lower_case={do_lower_case}, but the tokenizer of {folder} says do_lower_case={stated}"
        )
    lower_case = next((value for value in (do_lower_case, stated) if value is not None), True)
    validate_case(lower_case, checkpoint_name)
    path = Path(vocab_file).expanduser() if vocab_file else None
    if path is None and folder is not None:
        if (folder / "tokenizer.json").is_file():
            try:
                fast = BertTokenizerFast.from_pretrained(str(folder), do_lower_case=lower_case)
            except Exception as error:  # the Rust library's errors have no class of their own
                raise InputError(f"{folder / 'tokenizer.json'}: unreadable: {error} (--model)") from error
            return Tokenizer(fast, lower_case, str(folder / "tokenizer.json"))
        path = folder / "vocab.txt"
    if path is None:
        raise InputError("no vocabulary: give --vocab_file, or --model with a folder or hub name that has one")
    _check_vocabulary(path)
    fast = BertTokenizerFast(str(path), do_lower_case=lower_case)
    return Tokenizer(fast, lower_case, str(path))


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
    if len(tokens) < len(SPECIAL_TOKENS):
        raise InputError(f"{path}: {len(tokens)} lines are no WordPiece vocabulary (--vocab_file)")
