"""bert-bench: measures training steps on random tokens.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16

`step` prints what Horovod's synthetic benchmark printed for ResNet: examples per second of each rank and in total.
The folder `benchmarks` of the sources measures sums, several numbers of ranks, and other people's programs.
"""

from collections.abc import Sequence

from tasks import flags
from tasks.bench.settings import StepConfig
from tasks.environment import start


def main(argv: Sequence[str] | None = None) -> None:
    _, config = flags.parse_command({"step": StepConfig}, argv, prog="bert-bench", description=str(__doc__))
    start("bert-bench", "tasks.bench.step", config)


if __name__ == "__main__":
    main()
