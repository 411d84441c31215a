"""bert-export; see `program`."""
