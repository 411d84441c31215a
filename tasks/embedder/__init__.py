"""bert-embedder; see `program`."""
