"""bert-features: hidden-state vectors of texts."""
