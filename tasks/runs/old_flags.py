"""Flags of Google's, NVIDIA's and Hugging Face's scripts that are not settings here, and what they
do now."""

# Refused, with what to use instead.
INSTEAD = {
    "bert_hub_module_handle": (
        "pass the TF Hub module's checkpoint as --init_checkpoint, or use --model"
    ),
    "signature": "a SavedModel takes token ids; its tokenizer is beside it, in assets.extra",
}
NO_TPU = "TPUs are not supported"
LAUNCHED = "the launcher (mpirun, srun)"
# Accepted and ignored, with the reason that is printed.
IGNORED = {
    "use_tpu": "GPUs are found automatically",
    "tpu_name": NO_TPU,
    "tpu_zone": NO_TPU,
    "gcp_project": NO_TPU,
    "num_tpu_cores": f"{NO_TPU}; {LAUNCHED} sets the number of ranks",
    "master": f"{LAUNCHED} places the ranks",
    "iterations_per_loop": "it set the length of a loop on TPUs",
    "use_one_hot_embeddings": "embeddings are always looked up by index",
    "verbose_logging": "it only made Google's scripts print more",
    "horovod": "every program is distributed under mpirun",
    "amp": "use --precision bf16 or fp16",
    "use_xla": "the programs decide by themselves where XLA pays off",
}
WITH_TEXT = "tpu_name", "tpu_zone", "gcp_project", "num_tpu_cores", "master", "iterations_per_loop"
