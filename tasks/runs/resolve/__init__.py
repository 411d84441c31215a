"""What a run is, found out before anything costly happens: a folder's past and a command's flags
become a `RunSpec`. Without TensorFlow, MPI or ranks."""
