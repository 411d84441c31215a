"""What a run of any task is: flags, settings, ranks, weights, rows, training, prediction, page."""
