"""bert-bench: how fast one training step and its parts are here, over all ranks; what else takes time.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16
    mpirun -np 2 bert-bench step --model MINILM_FOLDER --train_file train-v1.1.json --precision bf16
    bert-bench scaling --model_size minilm --picture scaling.png
    mpirun -np 2 bert-bench update --model_size base
    mpirun -np 2 bert-bench allreduce
    bert-bench compare --model MINILM_FOLDER --train_file train-v1.1.json
    bert-bench prepare --model MINILM_FOLDER --train_file train-v1.1.json
    bert-bench corpus --input_file 'text/*.txt' --vocab_file vocab.txt --google_dir bert

What Horovod's synthetic benchmark printed for ResNet: examples per second of a rank and in total.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringbert.errors import InputError
from tasks import flags
from tasks import job as start
from tasks.bench.allreduce import AllreduceConfig, bench_allreduce
from tasks.bench.compare import CompareConfig, bench_compare
from tasks.bench.corpus import CorpusConfig, measure
from tasks.bench.load import SIZES, model_config
from tasks.bench.prepare import PrepareConfig, bench_prepare
from tasks.bench.scaling import ScalingConfig, bench_scaling
from tasks.bench.step import StepConfig, bench_step
from tasks.bench.update import UpdateConfig, bench_update


def main(argv: Sequence[str] | None = None) -> None:
    commands: dict[str, type] = {
        "step": StepConfig,
        "scaling": ScalingConfig,
        "update": UpdateConfig,
        "allreduce": AllreduceConfig,
        "compare": CompareConfig,
        "prepare": PrepareConfig,
        "corpus": CorpusConfig,
    }
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-bench", description=str(__doc__))
    start.check_packages()
    start.set_environment()
    if name in ("scaling", "compare", "prepare", "corpus"):
        in_processes(name, config)
        return
    start.import_tensorflow()
    from distributed.world import World

    with World.join(config.device, config.share_gpus, "bert-bench", (InputError,)) as world:
        figures: dict[str, Any]
        match name:
            case "step":
                figures = bench_step(config, world)
            case "update":
                figures = bench_update(config, model_config(config.model_size), world)
            case _:
                figures = bench_allreduce(config, world)
        if config.output_file:
            world.on_first(Path(config.output_file).expanduser().write_text, json.dumps(figures, indent=1) + "\n")


def in_processes(name: str, config: Any) -> None:
    """Measures programs that it starts itself; MPI is joined here for bench corpus' training step alone."""
    from distributed.world import LAUNCHER_SIZES, World

    with World(program="bert-bench", user_errors=(InputError, OSError)) as world:
        if any(os.environ.get(size, "1") not in ("", "1") for size in LAUNCHER_SIZES):
            raise InputError(f"bert-bench {name} is one process: start it without mpirun or srun")
        match name:
            case "scaling":
                figures = bench_scaling(config, world.say)
            case "compare":
                figures = bench_compare(config, world.say)
            case "prepare":
                figures = bench_prepare(config, world)
            case _:
                figures = measure(config, SIZES[config.model_size], world.say)
        if config.output_file:
            Path(config.output_file).expanduser().write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
