"""Flags of Google's, NVIDIA's and Hugging Face's scripts that are no settings here, and what they do today."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ringbert.errors import InputError
from ringbert.settings import Field, alternatives

# Refused, with what to use.
INSTEAD = {
    "bert_hub_module_handle": "TF Hub modules cannot be loaded; pass the module's checkpoint as "
    "--init_checkpoint, or use --model"
}
# Accepted and ignored: the type, and the reason.
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


def old_flags(fields: Sequence[Field]) -> list[Field]:
    """The old names that these fields leave free; --fp16 and --bf16 where there is a precision to choose."""
    kinds = {name: kind for name, (kind, _) in IGNORED.items()}
    if reduced_precisions(fields):
        kinds |= dict.fromkeys(REDUCED_PRECISIONS, bool)
    return [Field(name, kind) for name, kind in kinds.items() if name not in _names(fields)]


def notes_on(given: Mapping[str, Any], fields: Sequence[Field], prog: str) -> list[str]:
    """One line for each ignored flag among those given. Raises InputError if a TPU is asked for."""
    ignored = [name for name in IGNORED if name in given and name not in _names(fields)]
    if "use_tpu" in ignored and given["use_tpu"]:
        raise InputError("--use_tpu=True: TPUs are not supported; leave the flag out to run on GPUs or CPUs")
    precisions = reduced_precisions(fields)
    instead_of_amp = f"use --precision {' or '.join(precisions)}" if precisions else "it has no effect here"
    reasons = {name: IGNORED[name][1].format(prog=prog, instead_of_amp=instead_of_amp) for name in ignored}
    return [f"--{name} is ignored: {reason}" for name, reason in reasons.items()]


def precision(given: Mapping[str, Any], from_file: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, str]:
    """The `precision` that --fp16 or --bf16 asks for; empty without them. Raises InputError on a contradiction."""
    switches = {name: given[name] for name in REDUCED_PRECISIONS if name in given and name not in _names(fields)}
    chosen = [name for name, is_on in switches.items() if is_on]
    if not chosen:
        defaults = {field.name: field.default for field in fields}
        name = str((defaults | dict(from_file) | dict(given)).get("precision"))
        if name in switches:
            raise InputError(f"--{name}=false contradicts precision {name}; set --precision")
        return {}
    if len(chosen) > 1:
        raise InputError("--fp16 and --bf16 cannot both be given")
    name, allowed = chosen[0], reduced_precisions(fields)
    if given.get("precision", name) != name:
        raise InputError(f"--{name} contradicts --precision {given['precision']}; give one of them")
    if name not in allowed:
        raise InputError(f"--{name} is not supported; use --{allowed[0]}")
    return {"precision": name}


def reduced_precisions(fields: Iterable[Field]) -> list[str]:
    """Those of fp16 and bf16 that the field `precision` allows."""
    allowed = [choice for field in fields if field.name == "precision" for choice in alternatives(field.type)]
    return [name for name in REDUCED_PRECISIONS if name in allowed]


def _names(fields: Iterable[Field]) -> Collection[str]:
    return {name for field in fields for name in field.names}
