"""Rows of tokens -> the model's inputs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from bert.packing import Grouping, Groups
    from distributed.feed import Batch

INPUTS = ("input_ids", "token_type_ids", "position_ids", "example_ids")
NUM_GROUPS = 4  # of --packing auto


def grouping_of(packing: str) -> "Grouping":
    """How `--packing` auto or off groups the rows of a batch, unless XLA compiles the whole gradient."""
    from bert.packing import ByLength, in_one_group

    return in_one_group if packing == "off" else ByLength(NUM_GROUPS)


def grouped(fields: dict, grouping: "Grouping | None" = None) -> "tuple[dict, Groups]":
    """The fields of B rows in the order of their groups, and the groups; None: one group."""
    import numpy as np

    from bert.packing import in_one_group
    from ringbert.ragged import reordered

    order, groups = (grouping or in_one_group)(np.diff(fields["input_ids"][1]))
    return {name: reordered(values, order) for name, values in fields.items()}, groups


def encoder_inputs(fields: dict, groups: "Groups") -> "Batch":
    """The encoder's four inputs and `first_tokens`, int32, one example per row.

    Args:
      fields: `input_ids` (values, offsets) of B rows, and `sentence_a_tokens` (int [B]), the number of leading
        tokens of type 0 in each row; the others are of type 1.
      groups: of the rows. The inputs of one group that is not fixed are [B, T]; others are flat, [R], and come
        with `groups`.
    `first_tokens` [B] are the indices of each row's first token in the flat inputs. Groups may hold more rows than
    there are examples; B counts those too, and their tokens are padding.
    """
    import numpy as np

    from ringbert.ragged import padded

    values, offsets = fields["input_ids"]
    widths = groups.widths
    sentence_a_tokens = padded(fields["sentence_a_tokens"], len(widths))
    offsets = np.pad(offsets, (0, len(widths) + 1 - len(offsets)), "edge")
    ends = np.cumsum(widths, dtype=np.int32)
    first = ends - widths
    place = np.arange(ends[-1], dtype=np.int32) - np.repeat(first, widths)
    inside = place < np.repeat(np.diff(offsets), widths)
    input_ids = np.zeros(len(place), np.int32)
    input_ids[inside] = values
    inputs = {
        "input_ids": input_ids,
        "token_type_ids": ((place >= np.repeat(sentence_a_tokens, widths)) & inside).astype(np.int32),
        "position_ids": np.where(inside, place, 0),  # a row's padding may reach beyond the table
        "example_ids": inside.astype(np.int32),
    }
    if len(groups.shapes) == 1 and not groups.is_fixed:
        return {name: array.reshape(groups.shapes[0]) for name, array in inputs.items()} | {"first_tokens": first}
    return inputs | {"first_tokens": first, "groups": groups}


def prediction_batches(lengths: "np.ndarray", batch_size: int, max_seq_length: int) -> "list[np.ndarray]":
    """Row numbers in batches of rows of like length; with its padding each batch has at most the tokens of
    `batch_size` rows of `max_seq_length`."""
    from bert.packing import rounded_up
    from distributed.order import fixed_batches

    return fixed_batches(rounded_up(lengths), batch_size * rounded_up(max_seq_length))


def num_examples(batch: "Batch") -> int:
    """Rows that hold an example."""
    import numpy as np

    return int((np.ravel(batch["example_ids"])[batch["first_tokens"]] > 0).sum())
