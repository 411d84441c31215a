"""The inputs of the model.

They are a dict of int32 tensors [B, T]: `input_ids`; `token_type_ids`, 0 for sentence A and 1 for B;
`position_ids`, which restart at 0 for each example of a row; `example_ids`, 0 for padding and 1, 2, … for the
examples of a row. Some heads need further inputs, which they document.

Rows of different lengths can come in K groups of similar lengths. The four tensors are then flat [R], and `groups`
holds the number of rows and the length of each group (bert/packing.py).
"""

import tensorflow as tf

MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer


def in_groups(values: tf.Tensor, inputs: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """Splits values of the tokens, [R, …] or [B, T, …], into one tensor [B, T, …] for each group of the inputs."""
    if "groups" not in inputs:
        return [values]
    shapes = inputs["groups"].pairs
    parts = tf.split(values, [rows * length for rows, length in shapes])
    rest = tf.shape(values)[1:]
    return [
        tf.reshape(part, tf.concat([[rows, length], rest], 0))
        for part, (rows, length) in zip(parts, shapes, strict=True)
    ]


def is_example(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """float32 [M]: 1 for each of the `first_tokens` that begins an example, 0 where its whole row is padding."""
    example_ids = tf.reshape(example_numbers(inputs), [-1])
    return tf.cast(tf.gather(example_ids, inputs["first_tokens"]) > 0, tf.float32)


def example_numbers(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """`example_ids` in float32: TensorFlow compares int32 on the host, even beside a GPU."""
    return tf.cast(inputs["example_ids"], tf.float32)


def attention_masks(inputs: dict[str, tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
    """For each group [B, 1, T, T], added to the scores: a token attends only to tokens of its own example."""
    masks = []
    for example_ids_BT in in_groups(example_numbers(inputs), inputs):
        is_hidden_B1TT = example_ids_BT[:, None, :, None] != example_ids_BT[:, None, None, :]
        masks.append(tf.cast(is_hidden_B1TT, dtype) * MASKED_SCORE)
    return masks


def is_fixed(inputs: dict[str, tf.Tensor]) -> bool:
    """Whether XLA compiles the whole pass, for the shapes of these inputs."""
    return "groups" in inputs and inputs["groups"].is_fixed
