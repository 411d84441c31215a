"""Small checkpoints and folders of weights, in the formats of the field, for several test files."""

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from bert.configuration import BertConfig, unnamed_labels
from ringbase.files import write_json

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
PRETRAINING_HEAD = {
    "cls/predictions/transform/dense/kernel": (32, 32),
    "cls/predictions/transform/dense/bias": (32,),
    "cls/predictions/transform/LayerNorm/gamma": (32,),
    "cls/predictions/transform/LayerNorm/beta": (32,),
    "cls/predictions/output_bias": (60,),
    "cls/seq_relationship/output_weights": (2, 32),
    "cls/seq_relationship/output_bias": (2,),
}


def config(num_labels=3, **others):
    return BertConfig(**SIZES | others, labels=unnamed_labels(num_labels))


def published_shapes():
    """The names and shapes of a `bert_model.ckpt` without its heads, as google-research/bert makes
    them."""
    shapes = {
        "bert/embeddings/word_embeddings": (60, 32),
        "bert/embeddings/token_type_embeddings": (2, 32),
        "bert/embeddings/position_embeddings": (24, 32),
        "bert/embeddings/LayerNorm/beta": (32,),
        "bert/embeddings/LayerNorm/gamma": (32,),
        "bert/pooler/dense/kernel": (32, 32),
        "bert/pooler/dense/bias": (32,),
    }
    for layer in ("bert/encoder/layer_0", "bert/encoder/layer_1"):
        for part, *size in (
            ("attention/self/query", 32, 32),
            ("attention/self/key", 32, 32),
            ("attention/self/value", 32, 32),
            ("attention/output/dense", 32, 32),
            ("intermediate/dense", 32, 64),
            ("output/dense", 64, 32),
        ):
            shapes |= {f"{layer}/{part}/kernel": (*size,), f"{layer}/{part}/bias": (size[1],)}
        for part in ("attention/output", "output"):
            shapes |= {f"{layer}/{part}/LayerNorm/{end}": (32,) for end in ("beta", "gamma")}
    return shapes


def values_of(shapes):
    generator = np.random.default_rng(11)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_tf1(prefix, tensors, moments=True):
    """Writes a checkpoint with TensorFlow 1's own Saver; `moments` as a training run leaves
    them."""
    values = dict(tensors)
    if moments:
        for name, value in tensors.items():
            values |= {f"{name}/{moment}": value + 1 for moment in ("adam_m", "adam_v")}
        values["global_step"] = np.int64(123)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)
    return prefix


def write_hf(folder, tensors, shards=0):
    folder.mkdir(parents=True, exist_ok=True)
    if not shards:
        save_file(tensors, folder / "model.safetensors")
        return folder
    file_of = {
        name: f"model-{number % shards}.safetensors" for number, name in enumerate(sorted(tensors))
    }
    for file in set(file_of.values()):
        save_file({name: tensors[name] for name in tensors if file_of[name] == file}, folder / file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": file_of})
    return folder
