"""Flags of Google's, NVIDIA's and Hugging Face's scripts that are not settings here, and what they
do now."""

# Refused, with what to use instead.
INSTEAD = {
    "bert_hub_module_handle": (
        "pass the TF Hub module's checkpoint as --init_checkpoint, or use --model"
    ),
    "signature": "a SavedModel takes token ids; its tokenizer is beside it, in assets.extra",
}
# Accepted and ignored: the type of the flag, and the reason that is printed.
IGNORED: dict[str, tuple[type, str]] = {
    "use_tpu": (bool, "GPUs are found automatically"),
    "tpu_name": (str, "TPUs are not supported"),
    "tpu_zone": (str, "TPUs are not supported"),
    "gcp_project": (str, "TPUs are not supported"),
    "num_tpu_cores": (
        str,
        "TPUs are not supported; the launcher (mpirun, srun) sets the number of ranks",
    ),
    "master": (str, "the launcher (mpirun, srun) places the ranks"),
    "iterations_per_loop": (str, "it set the length of a loop on TPUs"),
    "use_one_hot_embeddings": (bool, "embeddings are always looked up by index"),
    "verbose_logging": (bool, "it only made Google's scripts print more"),
    "horovod": (bool, "every program is distributed under mpirun"),
    "amp": (bool, "use --precision bf16 or fp16"),
    "use_xla": (bool, "the programs decide by themselves where XLA pays off"),
}
