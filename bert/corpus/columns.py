"""The columns of a shard, as Arrow arrays and as NumPy arrays of the same memory.

Unlike pyarrow's own conversions these do not import pandas, which would take 0.3 s in every worker.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from bert.corpus.settings import ExampleSettings
from ringbase.ragged import Ragged


def schema_of(settings: ExampleSettings, vocab_size: int) -> pa.Schema:
    """The columns of a shard. Ids are uint16 where all of the vocabulary fit, else int32."""
    id_type = pa.uint16() if vocab_size <= 1 << 16 else pa.int32()
    fields = [("input_ids", pa.large_list(id_type)), ("sentence_a_tokens", pa.int32())]
    if settings.next_sentence:
        fields.append(("is_random_next", pa.int8()))
    if settings.has_static_masks:
        fields += [("masked_lm_positions", pa.large_list(pa.int32())), ("masked_lm_ids", pa.large_list(id_type))]
    return pa.schema(fields)


def array(values: np.ndarray) -> pa.Array:
    """A column of numbers."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def values_of(array: pa.Array) -> np.ndarray:
    """The values of a column of numbers."""
    values = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def record_batch(columns: Mapping[str, np.ndarray | Ragged], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, of numbers or of lists, which are ragged arrays; other columns are left out."""
    return pa.record_batch([_column(columns[field.name], field.type) for field in schema], schema=schema)


def _column(values: np.ndarray | Ragged, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray):
        return array(values.astype(kind.to_pandas_dtype(), copy=False))
    return pa.LargeListArray.from_arrays(array(values[1]), _column(values[0], kind.value_type))


def values_and_offsets(column: pa.Array) -> Ragged:
    """A column of lists as a ragged array."""
    offsets = values_of(column.offsets)
    return values_of(column.flatten()), offsets - offsets[0]
