"""Damaged and hostile input for every reader: `python -m fuzz 10000` in the folder tests."""
