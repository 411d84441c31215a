"""From a command to its runs: flags and folders become a `RunSpec` for each seed.

Called on rank 0; nothing here computes, and nobody reads the flags or the folders again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from bert.configuration import BertConfig
from bert.optimizers.layers import LayerSettings
from bert.optimizers.schedules import Numbers
from bert.text import tokenizer
from distributed.found import CHECKPOINTS
from distributed.order import Order
from distributed.plan import Plan, PlanSettings
from ringbase.errors import InputError
from ringbase.secrets import masked
from ringbase.settings import changing, check_settled, fields_of, flat, made, of_type, unheeded
from tasks.runs.history import changes
from tasks.runs.resolve.past import RUN_FILE
from tasks.runs.resolve.spec import RunSpec, Start
from tasks.runs.resolve.start import Needs, check_length, find_start, past_of
from tasks.runs.rows.cache import cached_rows
from tasks.runs.rows.reader import Reader, Readings, rows_key
from tasks.runs.settings import OF_LENGTH, ProgramConfig, TrainingSettings

DATA = "training data (digest)"  # among what must not change
# flags with the name of the configuration's value that they replace in a training
DROPOUTS = "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"
MOST_COMPARED = 1_000_000  # steps whose rates are compared
Config = TypeVar("Config", bound=ProgramConfig)
Say = Callable[[str], None]
PlanOf = Callable[[PlanSettings], Plan | None]  # None where nobody knows the number of rows
Learned = Callable[[], tuple[str, ...]]  # gives the names of outputs in the training file


class Count(NamedTuple):
    """A number of rows, as far as it is known before they are made."""

    number: int | None = None
    is_exact: bool = False


class Stream:
    """What of a training depends on the place in its stream of rows, besides the rate: here only
    which row it is."""

    def order(self, num_rows: int, seed: int) -> Order:
        """Which row stands at each position of the stream."""
        return Order(num_rows, seed)

    def fixed(self) -> Mapping[str, str]:
        """By flag, what must not change when the training goes on."""
        return {}

    def in_words(self, plan: Plan) -> Sequence[str]:
        """Lines that belong to the plan."""
        return ()

    def facts(self, plan: Plan) -> Mapping[str, Any]:
        """What run.json and `--plan` say of it."""
        return {}


class Program(Generic[Config]):
    """What one program adds to the resolution of its runs. Without TensorFlow, as all of it."""

    name: str  # of the command

    def length(self, config: Config) -> int:
        """The most tokens of a row."""
        raise NotImplementedError

    def needs(self, config: Config) -> Needs:
        """What the program needs from the files of its model."""
        return Needs()

    def settled(self, config: Config, start: Start, say: Say) -> Config:
        """The flags, with what the folder of the model says in a way of the program's own."""
        return config

    def learned(self, config: Config, readings: Readings, say: Say) -> tuple[str, ...]:
        """The names of outputs that only the training file has."""
        return ()

    def outputs(self, config: Config, start: Start, learned: Learned, say: Say) -> Start:
        """The start of a model with the outputs that this command asks for: its labels."""
        return start

    def sources(self, config: Config, start: Start) -> Mapping[str, Sequence]:
        """What is read of "train", one or none, "dev" and "predict". Of two kinds it may be the
        same object, which is read once."""
        return {}

    def reader(self, config: Config, start: Start) -> Reader:
        """What reads the sources."""
        raise NotImplementedError

    def train_rows(self, config: Config, start: Start, readings: Readings) -> Count:
        """How many rows there are to train on."""
        reader = self.reader(config, start)
        (source,) = self.sources(config, start)["train"]
        key = rows_key(reader, source, start.words, readings)
        number = cached_rows(key, reader.train_table or reader.table)
        if number is not None:
            return Count(number, is_exact=True)
        return Count(*reader.rows_of(readings.of(reader, source)))

    def loss(self, config: Config, start: Start, readings: Readings) -> str:
        """What a training minimizes and why, where its data decide it."""
        return ""

    def stream(self, config: Config, start: Start, readings: Readings) -> Stream:
        """What changes along the training, as far as it is known before its rows are made."""
        return Stream()


@dataclass(frozen=True)
class Resolved(Generic[Config]):
    """What a command does."""

    config: Config  # with the settings of a trained model, for what was not given
    specs: tuple[RunSpec, ...]  # one for each seed


def resolve(
    program: Program[Config],
    config: Config,
    written: Mapping[str, Any],
    folder: Path,
    resume: str,
    readings: Readings,
    say: Say,
    downloads: bool = True,
) -> Resolved[Config]:
    """The runs of a command in a folder. `written`: its flags as the user wrote them; what is
    remote there is local in `config`. `downloads`: a model that only the hub has is fetched.

    Raises InputError: as `find_start` and the program; seeds start from different models; a single
    run and runs of seeds would share the folder.
    """
    if not config.has_seeds:
        places = {config.training.loop.seed: folder}
    else:
        refuse_single_run(folder)
        places = {seed: folder_of_seed(folder, seed) for seed in config.each_seed}
    configs: list[Config] = []
    specs: list[RunSpec] = []
    for seed, place in places.items():
        past, takes = past_of(place, resume, say)
        if past.seeds and config.do_train:
            raise InputError(
                f"{place} holds runs of several seeds ({', '.join(past.seeds)}): give --seeds, or"
                " another --output_dir"
            )
        needs = replace(program.needs(config), downloads=downloads)
        start = find_start(config.model, takes, past, config.do_train, needs, say)
        own, notes = settled(config, start)
        if configs:
            own = program.settled(own, start, _say_nothing)
        else:  # what is said and learned is the same for all seeds
            for note in (*notes, *unheeded(own, config.given)):
                say(note)
            if own.do_train and start.weights is None and own.training.layers.reinit_layers:
                say("note: --reinit_layers changes nothing: all weights are initial values")
            own = program.settled(own, start, say)
            learned = cache(partial(program.learned, own, readings, say))
        check_length(program.length(own), start.bert_config)
        start = program.outputs(own, start, learned, say)
        if own.do_train:
            start = with_dropouts(own, start)
            check_layers(own.training.layers, start.bert_config)
        flags = {**flat(own), **written}
        if config.has_seeds:
            flags |= {"output_dir": str(place), "seed": seed, "seeds": None}
        spec = RunSpec(
            program=program.name,
            seed=seed,
            folder=place,
            does=_parts(own),
            config=flags,
            start=start,
            starts=past.starts,
            changed=changes(past.facts.get("config", {}), masked(flags)),
            data=changing(own, "data", "rows"),
            describes=described(type(own), flags),
        )
        configs.append(own)
        specs.append(spec)
        _refuse_other_model(specs, configs)
    return Resolved(configs[0], tuple(specs))


def with_dropouts(config: ProgramConfig, start: Start) -> Start:
    """The start of a training with the dropouts of the flags. Raises InputError: the model has
    none."""
    return replace(start, bert_config=with_dropouts_of(flat(config), start.bert_config))


def with_dropouts_of(flags: Mapping[str, Any], model: BertConfig) -> BertConfig:
    """A model's configuration with the dropouts of these flags. Raises InputError: the model has
    none."""
    given = {name: flags[name] for name in DROPOUTS if flags.get(name) is not None}
    is_modern = model.architecture.encoder == "modern"
    for name in given.keys() & {"hidden_dropout_prob", "attention_probs_dropout_prob"}:
        if is_modern and given[name]:
            raise InputError(
                f"--{name} {given[name]}: {model.model_type} has no dropout in its layers here, as"
                " its published models were trained: leave it out"
            )
    return replace(model, **given)


def check_layers(layers: LayerSettings, model: BertConfig) -> None:
    """Raises InputError: settings name more layers than the model has."""
    try:
        layers.check_model(model.num_hidden_layers)
    except ValueError as error:
        raise InputError(str(error)) from None


def folder_of_seed(folder: Path, seed: int) -> Path:
    """The folder of one of several `--seeds`."""
    return folder / f"seed-{seed}"


def settled(config: Config, start: Start) -> tuple[Config, list[str]]:
    """The flags of a command, those with `is_saved` as the model was trained unless they are given,
    and what to say of given ones that differ.

    A training has its own flags; where it goes on, those without a value are as it began. Raises
    InputError: the model's settings are damaged, or contradict the flags.
    """
    trains = config.do_train
    saved = start.saved
    if trains:
        fixed = start.fixed or {}
        saved = {name.removeprefix("--"): value for name, value in fixed.items()}
    values = flat(config)
    given = {name: values[name] for name in config.given}
    added: dict[str, Any] = {}
    notes = []
    for field in fields_of(type(config)):
        is_wanted = field.is_saved and (not field.needs or given.keys() & set(field.needs))
        if trains and values.get(field.name) is not None:
            is_wanted = False
        value = saved.get(field.name)
        if not is_wanted or value is None:
            continue
        try:
            value = of_type(value, field.type)
        except ValueError as error:
            raise InputError(f"{start.weights}: --{field.name} {error}") from None
        own = given.get(field.name)
        if trains or field.name not in given:
            added[field.name] = value
        elif own != value:
            notes.append(f"note: --{field.name} {own}: the model was trained with {value}")
    try:
        merged = made(type(config), given | added)
        check_settled(merged)
    except ValueError as error:
        raise InputError(str(error)) from None
    return merged, notes


def schedule_of(config: TrainingSettings, seed: int) -> dict[str, Any]:
    """The flags of a training's schedule, which must not change when it goes on, by name."""
    settings = {f"--{name}": value for name, value in config.fixed().items()}
    return settings | {"--seed": seed}


def refuse_changes(
    spec: RunSpec,
    settings: Mapping[str, Any],
    config: ProgramConfig,
    plan_of: PlanOf,
    stream: Stream,
) -> str | None:
    """Raises InputError for the first of these settings, by name, that is not as the training which
    goes on began with, with both values; and how to train on. What the stream says of itself is
    among them.

    Length and schedule may change as long as the steps so far had the rates that the new ones give
    them. Returns what to say then. `plan_of` makes the plan of settings.
    """
    start = spec.start
    before = start.fixed if start.fixed is not None else settings
    # trainings of earlier versions lack the flags that came later
    defaults = {f"--{field.name}": field.default for field in fields_of(type(config))}
    differing = {}
    for name in dict.fromkeys([*before, *settings]):
        default = defaults.get(name)
        if default is MISSING:
            default = None
        old, new = before.get(name, default), settings.get(name, default)
        if old != new:
            differing[name] = old, new
    if not differing:
        return None
    only_length = differing.keys() <= {f"--{name}" for name in OF_LENGTH}
    if only_length and not start.is_complete:
        changed = ", ".join(f"{name} was {old}" for name, (old, _) in differing.items())
        has_same = has_same_past(start, config.training, plan_of)
        if has_same is None:
            return f"note: {changed}: accepted if the steps so far had the same rates"
        if has_same:
            return f"note: {changed}: the steps so far had the same rates"
    # whose places in the stream are shares of the length
    moved = stream.fixed().keys() - {f"--{name}" for name in spec.changed}
    name = next((name for name in differing if name not in moved), next(iter(differing)))
    old, new = differing[name]
    difference = f"{name} = {old}, this command has {new}"
    if name.removeprefix("--") in OF_LENGTH:
        for other in differing.keys() & moved:
            was, now = differing[other]
            difference += f", by which {other} would be {now} instead of {was}"
    if name == DATA:
        difference = f"other training data: {_change_of_data(spec)}"
    moments = ""
    if "init_moments" in spec.config:  # which some programs have
        moments = ", and --init_moments to keep the optimizer's moments"
    weights, kind = start.checkpoint, "checkpoint"
    if weights is None:
        weights, kind = start.weights, "model"
    raise InputError(
        f"{weights} holds a run with {difference}: give the same value, or --resume"
        " never to start from the beginning; to train on from its weights, give another"
        f" --output_dir and this {kind} as --init_checkpoint{moments}"
    )


def has_same_past(start: Start, training: TrainingSettings, plan_of: PlanOf) -> bool | None:
    """Whether the steps up to a checkpoint had the rates that these settings give them; None if
    nobody knows."""
    assert start.fixed is not None
    assert start.state is not None
    known = {field.name for field in fields_of(TrainingSettings)}
    values = {name.removeprefix("--"): value for name, value in start.fixed.items()}
    before = made(TrainingSettings, {name: values[name] for name in values.keys() & known})
    rates = []
    for settings in (before, training):
        try:
            plan = plan_of(settings.plan.resolved())
        except InputError:  # on these ranks the training of before has no step
            return False
        if plan is None:
            return None
        steps_so_far = -(-start.state.position // plan.global_batch_size)
        steps = np.linspace(0, steps_so_far, min(steps_so_far, MOST_COMPARED), endpoint=False)
        numbers = Numbers(plan.steps, plan.warmup_steps, plan.decay_steps)
        rates.append(settings.rate.rates(numbers, plan.learning_rate, np.floor(steps), np))
    return np.array_equal(*rates)


def is_lengthened(start: Start, training: TrainingSettings) -> bool:
    """Whether a training that goes on has another length or schedule than it began with."""
    values, before = training.fixed(), start.fixed or {}
    return any(before.get(f"--{name}", values[name]) != values[name] for name in OF_LENGTH)


def _change_of_data(spec: RunSpec) -> str:
    """What may have changed since a training began: the tokenizer, flags, or files."""
    start = spec.start
    if start.tokenizer and start.weights:
        saved, own = tokenizer.load(folder=start.weights), start.tokenizer
        if saved.lower_case != own.lower_case:
            return f"--do_lower_case was {saved.lower_case}, now it is {own.lower_case}"
        if saved.digest != own.digest:
            return (
                f"{own.source} is another vocabulary than the run's (--vocab_file,"
                " --spm_model_file)"
            )
    named = [f"--{name} {value}" for name, value in spec.describes["data"].items()]
    content = f"the content of {', '.join(named)}, or RingBERT's version"
    changed = []
    for name, (old, new) in spec.changed.items():
        if name in spec.data:
            changed.append(f"--{name} was {old}, now it is {new}")
    return f"{', '.join(changed)}; or {content}" if changed else content


def described(config_class: type, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The flags that tell people most of a run's "model" and "data", with their values."""
    found: dict[str, dict[str, Any]] = {"model": {}, "data": {}}
    for field in fields_of(config_class):
        if field.describes and values[field.name]:
            found[field.describes][field.name] = values[field.name]
    return found


def _say_nothing(text: str) -> None:
    pass


def _parts(config: Any) -> tuple[str, ...]:
    does = {"train": config.do_train, "eval": config.does_eval, "predict": config.does_predict}
    return tuple(filter(does.get, does))


def refuse_single_run(folder: Path) -> None:
    """Raises InputError if a folder for runs of seeds holds a single run."""
    for name in (RUN_FILE, CHECKPOINTS):
        if (folder / name).exists():
            raise InputError(
                f"{folder} holds a single run ({name}): give another --output_dir for the runs of"
                " --seeds"
            )


def _refuse_other_model(specs: list[RunSpec], configs: list[Any]) -> None:
    """Raises InputError if the newest run starts from another model, or with other settings, than
    the first: one model is made for all."""
    first, newest = specs[0], specs[-1]
    is_same = first.start.bert_config == newest.start.bert_config
    if first.start.tokenizer and newest.start.tokenizer:
        is_same &= first.start.words.digest == newest.start.words.digest
    if not is_same or configs[0] != configs[-1]:
        raise InputError(
            f"{newest.folder} starts from another model, tokenizer or settings than"
            f" {first.folder}: give another --output_dir, or --resume never"
        )
