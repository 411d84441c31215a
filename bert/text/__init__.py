"""Text -> token ids: WordPiece and SentencePiece tokenizers, and the training of their
vocabularies."""
