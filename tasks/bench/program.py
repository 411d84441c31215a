"""bert-bench: measures training steps, the start of trainings, sums over ranks and the building of corpora.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16
    mpirun -np 2 bert-bench step --model MINILM_FOLDER --train_file train-v1.1.json --precision bf16
    mpirun -np 2 bert-bench allreduce
    bert-bench scaling --model_size minilm --picture scaling.png
    bert-bench start --programs squad,classifier --ranks 1,2
    bert-bench corpus --input_file 'text/*.txt' --vocab_file vocab.txt

`step` prints what Horovod's synthetic benchmark printed for ResNet: examples per second of each rank and in total.
Comparisons with other people's programs are in the folder `benchmarks` of the sources.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ringbase.errors import InputError
from ringbase.files import write_json
from tasks import environment as start
from tasks import flags
from tasks.bench.allreduce import AllreduceConfig, bench_allreduce
from tasks.bench.corpus import CorpusConfig, bench_corpus
from tasks.bench.scaling import ScalingConfig, bench_scaling
from tasks.bench.start import StartConfig, bench_start
from tasks.bench.step import StepConfig, bench_step

if TYPE_CHECKING:
    from distributed.world import World

Config = TypeVar("Config", bound=Any)
MOVED = {
    "compare": "benchmarks.compare",
    "prepare": "benchmarks.prepare",
    "update": "benchmarks.update",
    "corpus --google_dir": "benchmarks.corpus_google",
}


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    refuse_moved(argv)
    commands: dict[str, type] = {
        "step": StepConfig,
        "allreduce": AllreduceConfig,
        "scaling": ScalingConfig,
        "start": StartConfig,
        "corpus": CorpusConfig,
    }
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-bench", description=str(__doc__))
    match name:
        case "step":
            measure_on_ranks("bert-bench", config, bench_step)
        case "allreduce":
            measure_on_ranks("bert-bench", config, bench_allreduce)
        case "scaling":
            measure_alone("bert-bench", config, bench_scaling)
        case "start":
            measure_alone("bert-bench", config, bench_start)
        case _:
            measure_alone("bert-bench", config, bench_corpus)


def refuse_moved(argv: Sequence[str]) -> None:
    """Stops with one line when `argv` asks for a comparison that is no longer part of bert-bench."""
    asked = argv[0] if argv else ""
    if asked == "corpus" and any(token.lstrip("-").replace("-", "_").startswith("google_dir") for token in argv):
        asked = "corpus --google_dir"
    if asked in MOVED:
        command = f"python -m {MOVED[asked]}"
        flags.stop(
            f"bert-bench: error: bert-bench {asked} is now `{command}`, run in a checkout of the sources", 2
        )


def measure_on_ranks(prog: str, config: Config, measure: "Callable[[Config, World], dict[str, Any]]") -> None:
    """Joins the ranks, calls `measure(config, world)` on each, and writes the figures of rank 0."""
    start.set_environment()
    start.import_tensorflow()
    from distributed.world import World

    with World.join(config, prog) as world:
        figures = measure(config, world)
        if config.output_file:
            world.on_first(_write, config.output_file, figures)


def measure_alone(prog: str, config: Config, measure: "Callable[[Config, World], dict[str, Any]]") -> None:
    """Calls `measure(config, world)` in a process without MPI, which may start others, and writes the figures.

    Only the training step of `bert-bench corpus` starts MPI, later.
    """
    start.set_environment()
    from distributed.environment import SIZE_VARIABLES
    from distributed.world import World

    with World(program=prog, user_errors=(InputError, OSError)) as world:
        if any(os.environ.get(size, "1") not in ("", "1") for size in SIZE_VARIABLES):
            raise InputError("this benchmark starts its own processes: run it without mpirun or srun")
        figures = measure(config, world)
        if config.output_file:
            _write(config.output_file, figures)


def _write(path: str, figures: dict[str, Any]) -> None:
    write_json(Path(path).expanduser(), figures, indent=1, sync=False)


if __name__ == "__main__":
    main()
