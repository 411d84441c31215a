"""Pretraining corpora: documents -> sentences -> token ids -> examples -> shards, and the masks of examples."""
