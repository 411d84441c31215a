"""Optimizers and schedules: a file for each optimizer, an object for each schedule. Their names and
settings need no TensorFlow."""

# the name of each, and where its class is: one that takes the arguments of AdamWeightDecay
OPTIMIZERS = {
    "adamw": "bert.optimizers.adamw:AdamWeightDecay",
    "lamb": "bert.optimizers.lamb:LAMB",
}
