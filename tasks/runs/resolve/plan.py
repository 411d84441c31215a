"""What `--plan` says: the runs of a command, and the steps of their trainings.

Nothing is written but the cache of remote inputs, and no model is downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from distributed.plan import Plan, PlanSettings, make_plan
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import fields_of, flat, made
from tasks.runs.remote import is_remote, local_folder, local_inputs
from tasks.runs.resolve.command import Count, Program, refuse_changes, resolve, schedule_of
from tasks.runs.resolve.spec import RunSpec, as_json, digest_of
from tasks.runs.rows.reader import Readings
from tasks.runs.settings import RECIPE, ProgramConfig

Say = Callable[[str], None]


def planned(
    program: Program, config: ProgramConfig, num_ranks: int, say: Say
) -> list[dict[str, Any]]:
    """Each run of a command as `as_json` has it, with its number of `ranks`, and its `plan` if that
    is known, or else `plan_about`, of which the number of rows is an estimate. `say` gets the same
    in words.

    Raises InputError as `resolve` and `make_plan`, and if the folder is remote.
    """
    values = flat(config)
    if is_remote(config.output_dir):
        raise InputError(
            f"--plan looks into local folders only, got --output_dir {config.output_dir}; a run"
            " prints its plan when it starts"
        )
    written = {name: values[name] for name in config.given}
    local = made(type(config), written | local_inputs(fields_of(type(config)), written, World()))
    folder = local_folder(config.output_dir)
    resume = config.training.resume
    readings = Readings()
    found = resolve(program, local, written, folder, resume, readings, say, downloads=False)
    # the same for all seeds
    counted = cache(partial(program.train_rows, found.config, found.specs[0].start, readings))

    def plan_of(settings: PlanSettings) -> Plan | None:
        number = counted().number
        return None if number is None else make_plan(settings, number, num_ranks)

    runs = []
    for spec in found.specs:
        say(f"{spec.folder}: {_origin(spec)}")
        plan = None
        if "train" in spec.does and spec.start.fixed is not None:
            # what is known without the data; earlier versions had no recipes
            now = dict(spec.start.fixed)
            for name, value in schedule_of(found.config.training, spec.seed).items():
                if name in now or name.removeprefix("--") in RECIPE:
                    now[name] = value
            stream = program.stream(found.config, spec.start, readings)
            now |= stream.fixed()
            if note := refuse_changes(spec, now, found.config, plan_of, stream):
                say(note)
        if "train" in spec.does and not spec.start.is_complete:
            plan = _plan_of(found.config, counted(), num_ranks, say)
        along_stream: Mapping[str, Any] = {}
        loss = ""
        if plan:
            loss = program.loss(found.config, spec.start, readings)
            if loss:
                say(f"loss: {loss}")
            stream = program.stream(found.config, spec.start, readings)
            along_stream = stream.facts(plan)
            for line in stream.in_words(plan):
                say(line)
        is_exact = plan is not None and counted().is_exact
        runs.append(
            {
                **as_json(spec),
                "digest": digest_of(spec),
                "ranks": num_ranks,
                "plan": asdict(plan) if plan and is_exact else None,
                "plan_about": asdict(plan) if plan and not is_exact else None,
                **({"loss": loss} if loss else {}),
                **({"stream": along_stream} if along_stream else {}),
            }
        )
    return runs


def _origin(spec: RunSpec) -> str:
    """What a run does, and where it starts, in words."""
    start = spec.start
    does = ", ".join(spec.does)
    if not start.is_complete:
        return f"{does}; weights: {start.reason}"
    others = [part for part in spec.does if part != "train"]
    if "train" in spec.does and not others:
        return f"{start.reason} stays as it is"
    return f"{', '.join(others)} with the model of {start.reason}"


def _plan_of(config: ProgramConfig, count: Count, num_ranks: int, say: Say) -> Plan | None:
    """The plan of a training, which is said too; None if nobody knows the number of rows."""
    if count.number is None:
        say("plan: not known before the rows to train on are made")
        return None
    plan = make_plan(config.training.plan.resolved(), count.number, num_ranks)
    say(plan.in_words("" if count.is_exact else "about "))
    if not count.is_exact:
        say("an example may make several rows, which are counted when they are made")
    return plan
