"""bert-bench: how fast training and its parts are here."""
