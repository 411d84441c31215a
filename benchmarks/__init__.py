"""Comparisons with other people's programs, run from a checkout; not installed."""
