"""Rows of tokens -> the model's inputs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from distributed.train import Batch

LENGTH_MULTIPLE = 8  # rows are padded to the longest of their batch, rounded up
INPUTS = ("input_ids", "token_type_ids", "position_ids", "example_ids")


def encoder_inputs(input_ids: "tuple[np.ndarray, np.ndarray]", sentence_a_tokens: "np.ndarray") -> "Batch":
    """(values, offsets) of B rows -> the encoder's four inputs, int32 [B, T], one example per row.

    T is the longest row rounded up to a multiple of 8. `sentence_a_tokens` (int [B]): how many leading tokens of
    each row are of type 0; those after them are of type 1.
    """
    import numpy as np

    from distributed.rows import pad

    lengths = np.diff(input_ids[1])
    length = -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    place = np.arange(length, dtype=np.int32)
    inside = place < lengths[:, None]
    return {
        "input_ids": pad(input_ids, length),
        "token_type_ids": ((place >= sentence_a_tokens[:, None]) & inside).astype(np.int32),
        "position_ids": np.broadcast_to(place, inside.shape),
        "example_ids": inside.astype(np.int32),
    }


def first_tokens(inputs: "Batch") -> "np.ndarray":
    """Indices into B*T of each row's first token, int32 [B]."""
    import numpy as np

    rows, length = inputs["input_ids"].shape
    return np.arange(rows, dtype=np.int32) * np.int32(length)
