"""bert-report; see `page`."""
