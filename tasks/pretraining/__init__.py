"""bert-pretraining: masked words and next sentences. The story is in `program.py`."""
