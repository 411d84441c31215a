"""bert-corpus: shards of pretraining examples, and vocabularies."""
