"""Comparisons with other people's programs. Run them from a checkout; they are not installed."""
