"""bert-doctor: whether RingBERT works on this machine or cluster."""
