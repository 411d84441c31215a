"""What executes runs: ranks, training, prediction, evaluation."""
