"""Files of a model: its configuration, its tokenizer and its weights."""

import io
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bert.text.tokenizer_files import SPECIAL_TOKENS
from fuzz.reader import to_json

SENTENCES = ("the cat sat on the mat .", "a dog ran , and ran", "Émile saw 3 foxes [SEP] 가나다", "", "x" * 300)

# -- the model's configuration ------------------------------------------------------------------------------------

CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 32,
    "id2label": {"0": "no", "1": "yes"},
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "label2id": {"no": 0, "yes": 1},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 24,
    "model_type": "bert",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "problem_type": "single_label_classification",
    "is_decoder": False,
    "dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 60,
}
GOOGLE = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 60,
}


def read_configuration(folder: Path, name: str) -> None:
    from bert import configuration
    from tasks.classifier.labels import label_names, stated_labels, with_labels

    config = configuration.config_from_file(folder / name)
    sizes = [
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
        config.type_vocab_size,
    ]
    assert all(type(size) is int and 0 < size < 1 << 31 for size in sizes), sizes
    assert config.hidden_size % config.num_attention_heads == 0
    rates = [config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout or 0]
    assert all(0 <= rate < 1 for rate in rates), rates
    assert np.float32(config.layer_norm_eps) > 0
    assert 0 < config.initializer_range < 100
    assert len(label_names(config)) == config.num_labels > 0
    stated_labels(config)
    assert with_labels(config, ("a", "b", "c")).num_labels == 3
    json.loads(config.to_json_string())


# -- tokenizers ---------------------------------------------------------------------------------------------------


def check_tokenizer(words: Any) -> None:
    ids, spans = words.encode(SENTENCES)
    for text, tokens, places in zip(SENTENCES, ids, spans, strict=True):
        assert len(tokens) == len(places)
        assert ((tokens >= 0) & (tokens < words.vocab_size)).all()
        assert not len(places) or (places.min() >= 0 and places.max() <= len(text))
        assert len(words.pieces(tokens)) == len(tokens)
    special = {words.pad_id, words.unk_id, words.cls_id, words.sep_id, words.mask_id}
    assert len(special) == 5
    assert all(0 <= number < words.vocab_size for number in special)
    assert len(words.continues_word) == words.vocab_size
    assert isinstance(words.case_problem, str)
    assert isinstance(words.lower_case, bool)
    assert words.special_ids


def read_folder_tokenizer(folder: Path, name: str) -> None:
    from bert.text import tokenizer

    check_tokenizer(tokenizer.load(folder=folder))


def read_vocabulary(folder: Path, name: str) -> None:
    from bert.text import tokenizer

    check_tokenizer(tokenizer.load(str(folder / name)))


def read_piece_ids(folder: Path, name: str) -> None:
    from bert.text.sentencepiece_model import read_ids

    pieces = read_ids(folder / name)
    assert pieces
    assert len(set(pieces)) == len(pieces)
    assert all(isinstance(piece, str) for piece in pieces)
    "".join(pieces).encode()


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,"
VOCABULARY = [
    *SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "the",
    "cat",
    "dog",
    "##ing",
    "##ly",
]
VOCAB = "".join(f"{token}\n" for token in VOCABULARY).encode()
SPECIAL_MAP = to_json({f"{name[1:-1].lower()}_token": name for name in SPECIAL_TOKENS})
PIECES = to_json({"token_to_idx": {token: number for number, token in enumerate(VOCABULARY)}})


def saved_tokenizer() -> dict[str, bytes]:
    """The files that we write for a WordPiece vocabulary."""
    from bert.text import tokenizer

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "vocab.txt").write_bytes(VOCAB)
        tokenizer.load(str(Path(name) / "vocab.txt")).save(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def saved_sentencepiece() -> dict[str, bytes]:
    """The files that we write for a small unigram model."""
    import sentencepiece

    from bert.text import tokenizer

    model = io.BytesIO()
    texts = [
        " ".join(random.Random(n).choices(("the", "cat", "dogs", "ran", "보다", "saw"), k=9)) for n in range(300)
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=40,
        minloglevel=3,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="[PAD]",
        unk_piece="[UNK]",
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "spiece.model").write_bytes(model.getvalue())
        tokenizer.load(spm_model_file=str(Path(name) / "spiece.model")).save(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


# -- weights ------------------------------------------------------------------------------------------------------


def tiny_model() -> Any:
    from transformers import BertConfig

    from bert.model import Bert

    keys = (*GOOGLE.keys() - {"directionality"},)
    return Bert(BertConfig(**{key: GOOGLE[key] for key in keys} | {"num_hidden_layers": 1}), "span")


_MODEL: list[Any] = []


def read_weights(folder: Path, name: str) -> None:
    from bert import weights

    _MODEL[:] = _MODEL or [tiny_model()]
    weights.load(_MODEL[0], weights.find(str(folder / "bert_model.ckpt") if "ckpt" in name else str(folder)))
    for variable in _MODEL[0].named_tensors().values():
        assert np.isfinite(variable.numpy()).all()


def weight_files() -> dict[str, dict[str, bytes]]:
    """safetensors in one file and in two with an index, and a TensorFlow checkpoint, of one tiny model."""
    from safetensors.numpy import load, save
    from weight_files import write_tf1

    from bert import weights

    model = tiny_model()
    with tempfile.TemporaryDirectory() as name:
        weights.save(model, Path(name) / "hf")
        whole = (Path(name) / "hf/model.safetensors").read_bytes()
        tensors = {key: variable.numpy() for key, variable in model.named_tensors().items()}
        write_tf1(Path(name) / "bert_model.ckpt", tensors, moments=False)
        old = {path.name: path.read_bytes() for path in Path(name).glob("bert_model.ckpt*")}
    names = sorted(load(whole))
    parts = {f"model-0000{k + 1}-of-00002.safetensors": names[k::2] for k in range(2)}
    sharded = {file: save({key: load(whole)[key] for key in keys}) for file, keys in parts.items()}
    weight_map = {key: file for file, keys in parts.items() for key in keys}
    sharded["model.safetensors.index.json"] = to_json({"metadata": {}, "weight_map": weight_map})
    return {"whole": {"model.safetensors": whole}, "sharded": sharded, "tf1": old}
