"""BERT as one process sees it, of ringbert: tokenizer, model, weights, optimizer. Knows nothing of ranks.

Our programs call `bert.xla.set_flags()` when they start. Call it too if you use the model or the optimizer alone:
otherwise the code that XLA compiles for CPUs reads memory more often than it needs to.
"""
