"""bert-pretraining: masked words and next sentences. Start reading at `program.py`."""
