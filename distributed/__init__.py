"""Data-parallel training of any Keras model over MPI, of ringbert. Knows nothing of BERT."""
