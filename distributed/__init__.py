"""Data-parallel training of any Keras model over MPI. Knows nothing of BERT."""
