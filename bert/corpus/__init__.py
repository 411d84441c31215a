"""Builds and reads pretraining corpora: documents -> sentences -> token ids -> examples -> shards;
and masking."""
