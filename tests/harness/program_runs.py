"""Runs the programs of tasks/ as their users do: in this process on one rank, or as a command on
several."""

import json
import shutil
import sys

from harness import jobs
from harness.mpi import ROOT as ROOT
from harness.parsing import SETTINGS, named
from harness.refusals import refusal as refusal

from distributed.world import World
from tasks.runs import flags
from tasks.runs.execute.job import opened


def bert(program, output_dir, *argv):
    """bert-PROGRAM in this process, which writes `output_dir`; what it returns."""
    return in_process(program, output_dir, *argv, f"--output_dir={output_dir}")


def in_process(program, folder, *argv):
    """What `run_on_ranks` does, without MPI; what the program returns. `folder` is the run's.

    An error of the user's ends it as from the shell: one line, SystemExit.
    """
    with World(program=f"bert-{program}", is_script=True) as world:
        return in_world(world, program, folder, *argv)


def in_world(world, program, folder, *argv):
    """What bert-PROGRAM does after it has joined its ranks; what it returns."""
    function = named(f"tasks.{program}.program:run_{program}")
    config = flags.parse(named(SETTINGS[f"bert-{program}"]), argv, prog=f"bert-{program}")
    with opened(world, config, str(folder)) as (local, job):
        return function(local, job)


def command(module, *argv, ranks=1):
    """The command line of a program, under bert-launch when there are several ranks."""
    return jobs.launch(ranks, sys.executable, "-m", module, *argv)


def objects_in(path):
    """The objects in the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics_in(folder):
    return objects_in(folder / "metrics.jsonl")


def written_scores(folder):
    """The numbers in eval_results.txt."""
    lines = (folder / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def weights_in(folder):
    return (folder / "model.safetensors").read_bytes()


def files_in(folder, *but):
    """The content of each file, without the lock and the files named `but`."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in (".lock", *but)}


def without_newest_checkpoint(run, into):
    """A copy of a finished run, broken off after the checkpoint before the last."""
    shutil.copytree(run, into)
    shutil.rmtree(sorted((into / "checkpoints").iterdir())[-1])
    shutil.rmtree(into / "model")
    (into / "result.json").unlink()
    return into


def text_of(cell):
    """The text of a cell of a page's table, which has room and marks, or is short."""
    return cell if isinstance(cell, str) else cell["text"]
