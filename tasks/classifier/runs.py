"""Several runs of bert-classifier in one process, one for each of `--seeds`.

They share what is traced and compiled (`tasks.job.Workspace`), so that only the first run waits for it.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from distributed.run import Run
from ringbase.settings import flat, made
from tasks.classifier.settings import ClassifierConfig
from tasks.environment import result_file
from tasks.job import Job

Scores = dict[str, float]


def run_seeds(config: ClassifierConfig, job: Job, program: Callable[[ClassifierConfig, Job], Scores]) -> Scores:
    """Calls `program` for each of `--seeds`, or once without them. Writes means and standard deviations into
    `output_dir`. Returns the means."""
    if config.seeds is None:
        return program(config, job)
    job.run.remove(result_file(config.do_train))
    results: dict[str, Scores] = {}
    for seed in config.seeds.split(","):
        job.run.say(f"seed {seed}")
        folder = Path(config.output_dir).expanduser() / f"seed-{seed}"
        values = flat(config) | {"seed": int(seed), "output_dir": str(folder), "seeds": None}
        run = Run(folder, job.world.rank == 0)
        try:
            own = made(ClassifierConfig, values)
            results[seed] = program(own, replace(job, run=run, config=flat(own)))
        finally:
            run.close()
    names = list(next(iter(results.values())))
    columns = {name: [scores[name] for scores in results.values()] for name in names}
    means = {name: statistics.mean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(v) if len(v) > 1 else 0.0 for name, v in columns.items()}
    lines = [f"{name} = {means[name]:.4f} ± {deviations[name]:.4f} ({len(results)} seeds)\n" for name in names]
    job.run.write("eval_results.txt", "".join(lines))
    job.run.say("".join(lines).strip())
    job.finish(config.do_train, means, {"standard_deviations": deviations, "seeds": results})
    return means
