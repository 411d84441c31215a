"""What every program sets up before its own work: ranks, backend, run folder."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from distributed import elastic, launcher
from distributed.collectives import Collectives, open_collectives
from distributed.log import NoTargets, NotFinite
from distributed.run import Run
from distributed.trackers import TrackersOf, event_files
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError, Preempted, Stopped, one_line
from ringbase.files import check_renames, write_text
from ringbase.settings import fields_of, flat, made
from tasks.runs.card import CARD, card_of, is_card_edited
from tasks.runs.environment import result_file
from tasks.runs.history import History
from tasks.runs.remote import Mirror, is_remote, local_folder, local_inputs
from tasks.runs.report.page import PAGE, write_page
from tasks.runs.trackers import trackers_named

OUT_OF_MEMORY = (
    "out of memory: lower --train_batch_size (or --global_batch_size), the batch size of"
    " predictions or --max_seq_length, raise --gradient_accumulation_steps, or give --xla off"
)
ADVICE = {
    NotFinite: "lower --learning_rate, or use --precision fp32 or bf16",
    NoTargets: (
        "raise --train_batch_size (or --global_batch_size); words to tag need a token, and one word"
        " or more of a text must fit into the tokens that are masked (--masked_lm_prob,"
        " --max_predictions_per_seq)"
    ),
}
STOPPED_EARLY = ".stopped-early"  # in a run's folder
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@dataclass(frozen=True)
class Job:
    """What a running program works with."""

    world: World
    collectives: Collectives
    run: Run
    config: Mapping = field(default_factory=dict)  # the program's flags, for run.json

    def finish(
        self,
        history: History,
        trains: bool,
        scores: Mapping[str, float],
        more: Mapping,
        before: Mapping | None = None,
    ) -> None:
        """Writes the file of `result_file`: the command is complete when it exists. Says so, and
        draws the page of a training. `before`: what that file says of a training that was complete;
        it keeps what was not computed anew."""
        run = self.run
        facts = history.end(trains)
        kept = before or {}
        if before and not history.entries:  # a summary of runs that have their own
            facts = {}
        is_edited = run.is_writer and before is not None and is_card_edited(run.folder)
        all_scores = {**kept.get("scores", {}), **scores}
        result = {**kept, "scores": all_scores, **more, **facts}
        run.write_json(result_file(trains), result)
        figures = "".join(f", {name} {value:.4g}" for name, value in all_scores.items())
        run.say(f"done: {run.folder}{figures}")
        if run.is_writer and trains:
            try:
                if is_edited:
                    run.say(f"note: {run.folder / CARD} was edited and stays as it is")
                elif (run.folder / "model").is_dir():
                    run.write(CARD, card_of(run.folder))
                page = write_page([run.folder])
                run.say(f"report: {page}")
                run.end(all_scores, [CARD, PAGE])
            except Exception as error:  # the training is complete, whatever its page lacks
                run.say(f"warning: no {CARD} or {PAGE}: {one_line(error)}")


def run_on_ranks(
    program: str, config: Any, folder: str, work: Callable[[Any, Job], object]
) -> None:
    """Joins the ranks, opens a job and calls `work(config, job)` on each. Errors end all ranks.

    `config` must be the same on all ranks. In an elastic world the survivors of a death call `work`
    again, unless it handles the death itself. It then continues from what it has written.
    """

    def attempt() -> None:
        with opened(world, config, folder) as (local, job):
            work(local, job)

    machine = config.machine
    with World.join(machine.device, program, stalls=machine.stalls) as world:
        elastic.enable(world)
        try:
            elastic.surviving(world, "", attempt)
        except Stopped as stopped:
            world.on_first(refuse_standstill, Path(local_folder(folder)))
            world.say(f"stopped on request: {stopped}; to continue, run the same command")
            raise Preempted(Preempted.STATUS) from None
        except tf.errors.ResourceExhaustedError as error:
            raise InputError(OUT_OF_MEMORY) from error
        except (NotFinite, NoTargets) as error:
            raise InputError(f"{error}: {ADVICE[type(error)]}") from error


def refuse_standstill(folder: Path) -> None:
    """Notes in a run's folder that this start of a job was stopped before it trained a step. Raises
    InputError if so was the one before: a job that puts itself into the queue again would go on so
    for ever."""
    job, count = os.environ.get(launcher.JOB_ID), os.environ.get("SLURM_RESTART_COUNT", "0")
    if not (job and count.isdecimal() and folder.is_dir()):
        return
    note = folder / STOPPED_EARLY
    before = note.read_text().split() if note.is_file() else []
    write_text(note, f"{job} {count}\n")
    if before == [job, str(int(count) - 1)]:
        raise InputError(
            "two starts of this job in a row were stopped before they could train a step: the time"
            " limit, or the time from the signal to it (sbatch --signal), is too short; it is not"
            " put into the queue again"
        )


@contextlib.contextmanager
def opened(world: World, config: Any, folder: str) -> Iterator[tuple[Any, Job]]:
    """A job on ranks that have joined, and the configuration with local copies of what is remote.
    Opens the backend; rank 0 locks and writes `folder`, which is uploaded at the end if it is
    remote. Raises InputError: the ranks disagree; the folder is another job's."""
    machine = config.machine
    values = flat(config)
    products = set_precision(machine.precision, machine.tf32)
    collectives = open_collectives(world, machine.collectives.backend)
    world.agree({"the configuration": values, "the versions of packages": versions()})
    given = {name: values[name] for name in config.given}
    local = made(type(config), given | local_inputs(fields_of(type(config)), given, world))
    mirror = Mirror(folder) if is_remote(folder) else None
    upload = mirror.upload if mirror else None
    trackers_of: TrackersOf = event_files
    if values.get("do_train"):
        trackers_of = trackers_named(config.training.trackers)
    with contextlib.closing(Run(local_folder(folder), world, upload, trackers_of)) as run:
        if "output_dir" in values:  # the folder belongs to this run alone
            world.on_first(run.lock)
            if values.get("do_train"):  # predictions are files, which every system can rename
                world.on_first(check_renames, run.folder)
            world.watchdog.stacks = run.folder / "stacks"
        kept = world.on_first(mirror.download, run.folder) if mirror else []
        if kept:
            lacking = ", ".join(kept)
            run.say(f"{folder} lacks {lacking}, whose upload had failed: kept, and uploaded now")
            world.on_first(run.publish)
        run.say(f"{world}, backend {collectives.name}, {machine.precision}")
        stops = launcher.advice_on_stops() if world.size > 1 else None
        for note in filter(None, (*world.device.notes, products, stops)):
            run.say(note)
        yield local, Job(world, collectives, run, values)
        # nobody leaves while another may need to repeat the work
        world.on_first(run.publish, True)
        if mirror:
            run.say(f"uploaded: {folder}")


def set_precision(precision: str, tf32: bool = False) -> str | None:
    """Sets the Keras dtype policy of models created from now on; variables stay float32. Called
    when the rank has its device. Returns a note for the user if that is a GPU."""
    keras.config.set_dtype_policy(POLICIES[precision])
    if not tf.config.get_visible_devices("GPU"):
        return None
    # The setting covers XLA too, which without TF32 gives up Triton's products of all types. So
    # bf16 and fp16 keep TensorFlow's default: TF32 has as many bits as they have, or more.
    tf32 = tf32 or precision != "fp32"
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    return "float32 products are computed in " + (
        "TF32" if tf32 else "float32; --tf32 is faster and less exact"
    )
