"""WordPiece behind one interface: text -> token ids with the characters that each came from."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 200  # google-research/bert tokenization.py; transformers says 100


class Tokenizer:
    """A WordPiece tokenizer.

    Attributes:
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
      vocab_size: the largest id + 1.
      lower_case: whether text is lower-cased and stripped of accents.
      digest: of the vocabulary and settings; equal digests give equal ids.
    """

    def __init__(self, fast, lower_case: bool, source: str):
        backend = fast.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        if hasattr(backend.model, "max_input_chars_per_word"):
            backend.model.max_input_chars_per_word = MAX_CHARACTERS_PER_WORD
        self._fast, self._backend = fast, backend
        self.lower_case, self.source = lower_case, source
        vocabulary = fast.get_vocab()
        absent = [token for token in SPECIAL_TOKENS if token not in vocabulary]
        if absent:
            raise InputError(f"{source}: the vocabulary has no {', '.join(absent)} (--vocab_file)")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (vocabulary[t] for t in SPECIAL_TOKENS)
        self.vocab_size = max(vocabulary.values()) + 1
        self.digest = hashlib.sha256(backend.to_str().encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Token ids (int32 [n]) and character spans (int32 [n, 2], start and end in the text) of each text.

        No special tokens are added. All cores work at once, in the Rust library's own threads.
        """
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        spans = [np.asarray(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        return ids, spans

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files; `transformers.AutoTokenizer` gives the same ids from them."""
        self._fast.save_pretrained(folder)
        tokens = sorted(self._fast.get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in tokens), encoding="utf-8")


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
            f"--do_lower_case={do_lower_case}, but {folder}/tokenizer_config.json says do_lower_case={stated}"
        )
    lower_case = next((value for value in (do_lower_case, stated) if value is not None), True)
    validate_case(lower_case, checkpoint_name)
    path = Path(vocab_file).expanduser() if vocab_file else None
    if path is None and folder is not None:
        if (folder / "tokenizer.json").is_file():
            fast = BertTokenizerFast.from_pretrained(str(folder), do_lower_case=lower_case)
            return Tokenizer(fast, lower_case, str(folder / "tokenizer.json"))
        path = folder / "vocab.txt"
    if path is None:
        raise InputError("no vocabulary: give --vocab_file, or --model with a folder or hub name that has one")
    _check_vocabulary(path)
    fast = BertTokenizerFast(str(path), do_lower_case=lower_case)
    return Tokenizer(fast, lower_case, str(path))


def validate_case(do_lower_case: bool, checkpoint_name: str) -> None:
    """Google's `validate_case_matches_checkpoint`: the published checkpoints' names tell their case.

    Raises InputError on a contradiction.
    """
    name = checkpoint_name.lower().replace("-", "_")
    cased = any(mark in name for mark in ("_cased", "multi_cased")) and "uncased" not in name
    uncased = "uncased" in name or name.rstrip("/").endswith("chinese_l_12_h_768_a_12/bert_model.ckpt")
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
    file = folder / "tokenizer_config.json" if folder is not None else None
    if file is None or not file.is_file():
        return None
    return json.loads(file.read_text(encoding="utf-8")).get("do_lower_case")


def _check_vocabulary(path: Path) -> None:
    try:
        tokens = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file (--vocab_file)") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (--vocab_file): {error}") from error
    if len(tokens) < len(SPECIAL_TOKENS):
        raise InputError(f"{path}: {len(tokens)} lines are no WordPiece vocabulary (--vocab_file)")
