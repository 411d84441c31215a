"""bert-bench: measures training steps and sums over ranks.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16
    mpirun -np 2 bert-bench allreduce
    bert-bench scaling --model_size minilm

`step` prints what Horovod's synthetic benchmark printed for ResNet: examples per second of each rank and in total.
Comparisons with other people's programs are in the folder `benchmarks` of the sources.
"""

from collections.abc import Sequence
from typing import Any

from tasks import flags
from tasks.bench.settings import AllreduceConfig, ScalingConfig, StepConfig
from tasks.environment import start

COMMANDS: dict[str, type] = {"step": StepConfig, "allreduce": AllreduceConfig, "scaling": ScalingConfig}


def main(argv: Sequence[str] | None = None) -> None:
    config: Any
    name, config = flags.parse_command(COMMANDS, argv, prog="bert-bench", description=str(__doc__))
    start("bert-bench", f"tasks.bench.{name}", config)


if __name__ == "__main__":
    main()
