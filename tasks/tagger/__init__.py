"""bert-tagger; see `program`."""
