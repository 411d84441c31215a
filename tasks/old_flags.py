"""Flags of Google's, NVIDIA's and Hugging Face's scripts that are not settings here, and what they do now."""

# Refused, with what to use instead.
INSTEAD = {
    "bert_hub_module_handle": "pass the TF Hub module's checkpoint as --init_checkpoint, or use --model",
    "xla_cache": "set TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=FOLDER",
    "overlap": "gradients are summed after the backward pass; with NCCL, --xla on compiles the sum into the step",
    "elastic_batch": "after a death the global batch stays; to change it, start again with fewer ranks",
    "sweep": "start the program once per file of flags, in a loop of the shell",
    "attention": "there is one way to compute attention: leave the flag out",
    "compare": "python -m benchmarks.compare, in a checkout of the sources",
    "corpus": "`time bert-corpus build …` measures it",
    "start": "any training writes when its phases end to the file that the variable RINGBERT_PHASES names",
    "predict_format": "standard input has a text per line; give a file with columns as --predict_file",
    "train_file": "this program takes no training file; bert-squad logs how long its steps take",
    "num_pairs": "its products are no longer timed alone; the share of one large product's speed is printed",
    "picture": "--output_file writes the figures",
    "megabytes": "python -m benchmarks.allreduce, in a checkout of the sources, measures sums",
    "allreduce": "bert-launch -np N -- python -m benchmarks.allreduce, in a checkout of the sources",
    "scaling": "`bert-launch -np N -- bert-bench step` for each N; as a table, in a checkout: benchmarks.scaling",
    "format": "bert-export writes SavedModels (a run's model/ is a Hugging Face folder), bert-corpus Arrow",
    "signature": "a SavedModel takes token ids; its tokenizer is beside it, in assets.extra",
    "max_seq_length": "no texts are cut here; a SavedModel takes rows of up to the model's number of positions",
}
# Accepted and ignored: the type of the flag, and the reason that is printed.
IGNORED: dict[str, tuple[type, str]] = {
    "use_tpu": (bool, "GPUs are found automatically"),
    "tpu_name": (str, "TPUs are not supported"),
    "tpu_zone": (str, "TPUs are not supported"),
    "gcp_project": (str, "TPUs are not supported"),
    "num_tpu_cores": (str, "TPUs are not supported; the launcher (mpirun, srun) sets the number of ranks"),
    "master": (str, "the launcher (mpirun, srun) places the ranks"),
    "iterations_per_loop": (str, "it set the length of a loop on TPUs"),
    "use_one_hot_embeddings": (bool, "embeddings are always looked up by index"),
    "verbose_logging": (bool, "it only made Google's scripts print more"),
    "horovod": (bool, "every program is distributed under mpirun"),
    "amp": (bool, "use --precision bf16 or fp16"),
    "use_xla": (bool, "the programs decide by themselves where XLA pays off"),
}
