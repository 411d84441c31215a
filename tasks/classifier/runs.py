"""Several runs of bert-classifier in one process: with each of `--seeds`, and with each file of `--sweep`.

They share the model's traced and compiled functions (`tasks.engine`), so that only the first run waits for them.
That is why the files of a sweep may change only flags that these functions do not contain.
"""

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ringbase.errors import InputError
from ringbase.settings import MOST_SEED, fields_of, setting
from tasks import flags
from tasks.fit import TrainingSettings
from tasks.job import Job, result_file

FREE = (  # flags that a file of a sweep may set
    "early_stopping_patience", "eval_steps", "global_batch_size", "gradient_accumulation_steps", "learning_rate",
    "load_best_model_at_end", "lr_scaling", "num_train_epochs", "num_train_steps", "num_warmup_steps", "seed",
    "seeds", "train_batch_size", "warmup_proportion",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunsSettings(TrainingSettings):
    """How often the program trains, and with which flags."""

    seeds: str | None = setting(
        None, "train once per seed, such as 1,2,3, in OUTPUT_DIR/seed-N; report mean and deviation", "training"
    )
    sweep: str | None = setting(
        None, "train once with each of these TOML files of flags, A.toml,B.toml, in OUTPUT_DIR/A and OUTPUT_DIR/B",
        "training",
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        seeds = [] if self.seeds is None else self.seeds.split(",")
        if not all(re.fullmatch("[0-9]{1,10}", seed) for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
            raise ValueError(f"--seeds must be different numbers separated by commas, got {self.seeds}")
        if seeds and max(map(int, seeds)) > MOST_SEED:
            raise ValueError(f"--seeds must be at most {MOST_SEED:,} each, got {self.seeds}")
        if self.sweep is not None:
            files_of(self.sweep)


Config = TypeVar("Config", bound=RunsSettings)
Scores = dict[str, float]
Program = Callable[[Config, Job], Scores]


def run_all(config: Config, job: Job, program: Program[Config]) -> Mapping[str, object]:
    """One run, or those of `--sweep` and `--seeds`. Returns the scores."""
    return run_seeds(config, job, program) if config.sweep is None else run_sweep(config, job, program)


def run_sweep(config: Config, job: Job, program: Program[Config]) -> dict[str, Scores]:
    """Calls `program` with each file of the sweep. Writes a table of the scores into `output_dir`. Returns the
    scores of each run."""
    job.run.remove(result_file(config.do_train))
    results = {}
    for name, variant in job.world.on_first(variants, config).items():
        job.run.say(f"run {name}")
        results[name] = in_folder(variant, job, lambda config, job: run_seeds(config, job, program))
    names = sorted(set.intersection(*(set(scores) for scores in results.values())))
    rows = [[name, *(f"{scores[column]:.4f}" for column in names)] for name, scores in results.items()]
    text = "".join("\t".join(row) + "\n" for row in (["run", *names], *rows))
    job.run.write("eval_results.txt", text)
    job.finish(result_file(config.do_train), {"scores": {}, "runs": results})
    job.run.say(text.strip())
    return results


def files_of(sweep: str) -> dict[str, str]:
    """The name of each run of a sweep -> its TOML file. Raises ValueError: no name, or twice the same."""
    paths = sweep.split(",")
    names = [Path(path).stem for path in paths]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"--sweep must be files of different names separated by commas, got {sweep}")
    return dict(zip(names, paths, strict=True))


def variants(config: Config) -> dict[str, Config]:
    """The configuration of each run of the sweep. Raises InputError: a file is wrong, or sets a flag that is not
    free."""
    found = {}
    for name, path in files_of(str(config.sweep)).items():
        values = flags.read_file(path, fields_of(type(config)), "--sweep")
        if wrong := sorted(values.keys() - set(FREE)):
            raise InputError(
                f"--sweep {path}: {wrong[0]} must be the same in all runs; the files may set {', '.join(FREE)}"
            )
        folder = Path(config.output_dir).expanduser() / name
        try:
            found[name] = replace(config, **values, output_dir=str(folder), sweep=None)
        except ValueError as error:
            raise InputError(f"--sweep {path}: {error}") from error
    return found


def run_seeds(config: Config, job: Job, program: Program[Config]) -> Scores:
    """Calls `program` for each of `--seeds`, or once without them. Writes means and standard deviations into
    `output_dir`. Returns the means."""
    if config.seeds is None:
        return program(config, job)
    job.run.remove(result_file(config.do_train))
    results: dict[str, Scores] = {}
    for seed in config.seeds.split(","):
        job.run.say(f"seed {seed}")
        folder = Path(config.output_dir).expanduser() / f"seed-{seed}"
        one = replace(config, seed=int(seed), output_dir=str(folder), seeds=None)
        results[seed] = in_folder(one, job, program)
    names = list(next(iter(results.values())))
    columns = {name: [scores[name] for scores in results.values()] for name in names}
    means = {name: statistics.mean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(v) if len(v) > 1 else 0.0 for name, v in columns.items()}
    lines = [f"{name} = {means[name]:.4f} ± {deviations[name]:.4f} ({len(results)} seeds)\n" for name in names]
    job.run.write("eval_results.txt", "".join(lines))
    result = {"scores": means, "standard_deviations": deviations, "seeds": results}
    job.finish(result_file(config.do_train), result)
    job.run.say("".join(lines).strip())
    return means


def in_folder(config: Config, job: Job, program: Program[Config]) -> Scores:
    """Calls `program` with the run of the folder that `config` names."""
    from distributed.run import Run

    run = Run.of(config.output_dir, job.world)
    try:
        return program(config, replace(job, run=run))
    finally:
        run.close()
