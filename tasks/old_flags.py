"""Flags of Google's, NVIDIA's and Hugging Face's scripts that are not settings here, and what they do now."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ringbase.errors import InputError
from ringbase.settings import Field, alternatives

# Refused, with what to use instead.
INSTEAD = {
    "bert_hub_module_handle": "pass the TF Hub module's checkpoint as --init_checkpoint, or use --model",
    "xla_cache": "set TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=FOLDER",
    "overlap": "gradients are summed after the backward pass; with NCCL, --xla on compiles the sum into the step",
    "elastic_batch": "after a death the global batch stays; to change it, start again with fewer ranks",
    "sweep": "start the program once per file of flags, in a loop of the shell",
    "attention": "there is one way to compute attention: leave the flag out",
    "predict_format": "standard input has a text per line; give a file with columns as --predict_file",
    "train_file": "this program takes no training file; bert-squad logs how long its steps take",
    "num_pairs": "its products are no longer timed alone; the share of one large product's speed is printed",
    "picture": "--output_file writes the figures",
    "megabytes": "bert-bench allreduce measures sums",
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
    "horovod": (bool, "{prog} is always distributed under mpirun"),
    "amp": (bool, "{instead_of_amp}"),
    "use_xla": (bool, "{prog} decides by itself where XLA pays off"),
}
REDUCED_PRECISIONS = ("fp16", "bf16")  # each is also a flag, short for --precision


def accepted(fields: Sequence[Field]) -> list[Field]:
    """The old flags that `fields` lacks; --fp16 and --bf16 only if there is a precision to choose."""
    kinds = {name: kind for name, (kind, _) in IGNORED.items()}
    if reduced_precisions(fields):
        kinds |= dict.fromkeys(REDUCED_PRECISIONS, bool)
    return [Field(name, kind) for name, kind in kinds.items() if name not in _names(fields)]


def notes_on(flags: Mapping[str, Any], fields: Sequence[Field], prog: str) -> list[str]:
    """One line for each flag of the command line that is ignored. Raises InputError if --use_tpu is true."""
    ignored = [name for name in IGNORED if name in flags and name not in _names(fields)]
    if "use_tpu" in ignored and flags["use_tpu"]:
        raise InputError("--use_tpu=True: TPUs are not supported; leave the flag out to run on GPUs or CPUs")
    precisions = reduced_precisions(fields)
    instead_of_amp = f"use --precision {' or '.join(precisions)}" if precisions else "it has no effect here"
    reasons = {name: IGNORED[name][1].format(prog=prog, instead_of_amp=instead_of_amp) for name in ignored}
    return [f"--{name} is ignored: {reason}" for name, reason in reasons.items()]


def precision(flags: Mapping[str, Any], file: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, str]:
    """The `precision` that --fp16 or --bf16 sets; empty without them. Raises InputError on a contradiction.

    `flags` has the values of the command line by name, `file` those of the TOML file.
    """
    switches = {name: flags[name] for name in REDUCED_PRECISIONS if name in flags and name not in _names(fields)}
    chosen = [name for name, is_on in switches.items() if is_on]
    if not chosen:
        defaults = {field.name: field.default for field in fields}
        name = str((defaults | dict(file) | dict(flags)).get("precision"))
        if name in switches:
            raise InputError(f"--{name}=false contradicts precision {name}; set --precision")
        return {}
    if len(chosen) > 1:
        raise InputError("--fp16 and --bf16 cannot both be given")
    name, allowed = chosen[0], reduced_precisions(fields)
    if flags.get("precision", name) != name:
        raise InputError(f"--{name} contradicts --precision {flags['precision']}; give one of them")
    if name not in allowed:
        raise InputError(f"--{name} is not supported; use --{allowed[0]}")
    return {"precision": name}


def reduced_precisions(fields: Iterable[Field]) -> list[str]:
    """Which of fp16 and bf16 the field `precision` allows."""
    allowed = [choice for field in fields if field.name == "precision" for choice in alternatives(field.type)]
    return [name for name in REDUCED_PRECISIONS if name in allowed]


def _names(fields: Iterable[Field]) -> Collection[str]:
    return {name for field in fields for name in field.names}
