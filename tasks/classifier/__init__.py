"""bert-classifier: GLUE and other texts with labels. The story is in `program.py`."""
