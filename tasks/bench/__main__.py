"""bert-bench: measures training steps over all ranks.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision
      bf16

`step` prints what Horovod's synthetic benchmark printed for ResNet: examples per second of each
rank and in total. Sums, scaling and comparisons with other people's programs are in the folder
`benchmarks` of the sources.
"""

from tasks.bench.settings import StepConfig
from tasks.runs import flags
from tasks.runs.environment import start

COMMANDS = {"step": StepConfig}


def main(argv: list[str] | None = None) -> None:
    name, config = flags.parse_command(COMMANDS, argv, prog="bert-bench", description=str(__doc__))
    start("bert-bench", f"tasks.bench.{name}", config)


if __name__ == "__main__":
    main()
