"""The format of Google's TFRecord shards of pretraining examples.

A record of a TFRecord file is a length n (uint64), the masked CRC32C of those 8 bytes (uint32), n bytes, and their
masked CRC32C (uint32), all little-endian (tensorflow/core/lib/io/record_writer.h). The n bytes are a
`tf.train.Example`, whose features are those of google-research/bert `create_pretraining_data.py`.

TensorFlow is not imported: its messages are declared here for the protobuf library, so workers start quickly, and
no TensorFlow operation runs before the collectives are set up.
"""

import functools
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # type: ignore[import-untyped]

from ringbase.ragged import Ragged

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
TOKENS = ("input_ids", "input_mask", "segment_ids")
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
KEYS = (*TOKENS, *PREDICTIONS, "next_sentence_labels")

Columns = dict[str, np.ndarray | Ragged]


def masked_crc32c(data: bytes) -> int:
    """TensorFlow's masked CRC32C: masked, because other checksums may cover data that contains checksums."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def example_class() -> Any:
    """`tf.train.Example`, in its own descriptor pool, because TensorFlow uses the same names in the default
    pool."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_PROTO = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" } }
"""  # tensorflow/core/example/{example,feature}.proto
