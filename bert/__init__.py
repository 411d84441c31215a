"""BERT as one process sees it: tokenizer, model, weights, optimizer. Knows nothing of ranks."""
