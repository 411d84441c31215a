"""bert-squad: SQuAD 1.1, 2.0 and KorQuAD 1.0. Start reading at `program.py`."""
