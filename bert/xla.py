"""XLA's flags, which it reads when it compiles for the first time in a process."""

import os

ONE_LOOP = "xla_cpu_use_multi_output_fusion"


def set_flags() -> None:
    """Adds to XLA_FLAGS what the compiled code of `bert` is written for; call it before the first compilation.

    On CPUs XLA writes several results in one loop only if told to, and then computes nothing twice: what two
    results share gets a loop of its own. Without the flag everything works, and takes longer.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    is_file_name = flags and not flags.startswith("-")  # XLA reads the flags from that file
    if ONE_LOOP not in flags and not is_file_name:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={ONE_LOOP}=true".strip()
