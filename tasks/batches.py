"""Rows of tokens -> the model's inputs."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringbase.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from transformers import BertConfig

    from bert.packing import Grouping, Groups
    from distributed.feed import Batch

INPUTS = ("input_ids", "token_type_ids", "position_ids", "example_ids")
NUM_GROUPS = 4  # of --packing auto


def grouping_of(packing: str) -> "Grouping":
    """The grouping of rows for `--packing` auto or off; not used when XLA compiles the whole gradient."""
    from bert.packing import ByLength, in_one_group

    return in_one_group if packing == "off" else ByLength(NUM_GROUPS)


def grouped(fields: dict, grouping: "Grouping | None" = None) -> "tuple[dict, Groups]":
    """Sorts the fields of B rows by group; returns them and the groups. None as `grouping` makes one group."""
    import numpy as np

    from bert.packing import in_one_group
    from ringbase.ragged import reordered

    order, groups = (grouping or in_one_group)(np.diff(fields["input_ids"][1]))
    return {name: reordered(values, order) for name, values in fields.items()}, groups


def encoder_inputs(fields: dict, groups: "Groups") -> "Batch":
    """The encoder's four inputs and `first_tokens`, int32, one example per row.

    Args:
      fields: `input_ids` (values, offsets) of B rows, and `sentence_a_tokens` (int [B]), the number of leading
        tokens of type 0 in each row; the others are of type 1.
      groups: the groups of the rows. For a single group without a fixed shape the inputs are [B, T]; otherwise
        they are flat, [R], and the result includes `groups`.
    `first_tokens` [B] has the index of each row's first token in the flat inputs. Groups may have more rows than
    there are examples; B includes these extra rows, which contain only padding.
    """
    import numpy as np

    from ringbase.ragged import padded

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
        "position_ids": np.where(inside, place, 0),  # padding may be longer than the table of positions
        "example_ids": inside.astype(np.int32),
    }
    if len(groups.shapes) == 1 and not groups.is_fixed:
        return {name: array.reshape(groups.shapes[0]) for name, array in inputs.items()} | {"first_tokens": first}
    return inputs | {"first_tokens": first, "groups": groups}


def with_checked_ids(collate: "Callable[..., Batch]", config: "BertConfig") -> "Callable[..., Batch]":
    """`collate`, followed by a check that every id has its entry in the model's tables.

    CPUs stop with an error at an id that has none, but GPUs compute on with zeros. Raises InputError.
    """
    limits = {
        "input_ids": (config.vocab_size, "vocab_size"),
        "masked_ids": (config.vocab_size, "vocab_size"),
        "token_type_ids": (config.type_vocab_size, "type_vocab_size"),
        "position_ids": (config.max_position_embeddings, "max_position_embeddings"),
    }

    def collate_and_check(fields: dict, **options) -> "Batch":
        batch = collate(fields, **options)
        for name in limits.keys() & batch.keys():
            limit, setting = limits[name]
            highest = int(batch[name].max(initial=0))
            if highest >= limit:
                numbers = fields["row"]
                raise InputError(
                    f"rows {min(numbers)} to {max(numbers)} of the data: {highest} among the {name}, but the "
                    f"model has {setting} {limit}: the data was made for another model or is damaged"
                )
        return batch

    return collate_and_check


def prediction_batches(lengths: "np.ndarray", batch_size: int, max_seq_length: int) -> "list[np.ndarray]":
    """Batches of row numbers, rows of similar length together. With its padding, a batch has at most as many
    tokens as `batch_size` rows of `max_seq_length`."""
    from bert.packing import rounded_up
    from distributed.order import fixed_batches

    return fixed_batches(rounded_up(lengths), batch_size * rounded_up(max_seq_length))


def num_examples(batch: "Batch") -> int:
    """The number of rows that hold an example; the other rows are padding."""
    import numpy as np

    return int((np.ravel(batch["example_ids"])[batch["first_tokens"]] > 0).sum())
