"""Comparisons with other people's programs. Run them from a checkout; they are not installed."""

from ringbase.notices import hide_on_import

hide_on_import()
