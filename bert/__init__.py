"""BERT as one process sees it: tokenizer, model, weights, optimizer. Knows nothing of ranks."""


class InputError(ValueError):
    """What the user gave cannot be used: the message says what came, what was needed and which flag to change."""
