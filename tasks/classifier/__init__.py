"""bert-classifier: GLUE and other texts with labels. Start reading at `program.py`."""
