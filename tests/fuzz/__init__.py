"""Damaged and hostile input for every reader: `python -m fuzz --cases 10000` in the folder tests."""
