"""BERT as one process sees it, of ringbert: tokenizer, model, weights, optimizer. Knows nothing of
ranks."""

import os

ONE_LOOP = "xla_cpu_use_multi_output_fusion"


def set_xla_flags() -> None:
    """Adds the flags for `bert`'s compiled code to XLA_FLAGS. Our programs call it when they start;
    call it too if you use the model or the optimizer alone, before XLA compiles for the first time
    in the process.

    On CPUs XLA computes several results in one loop only with this flag. It then computes nothing
    twice: whatever two results share gets a loop of its own. Without the flag everything works, but
    more slowly.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    # XLA_FLAGS names a file that holds the flags
    is_file_name = flags and not flags.startswith("-")
    if ONE_LOOP not in flags and not is_file_name:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={ONE_LOOP}=true".strip()
