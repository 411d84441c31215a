"""Training, shared by all programs: plan, step, weights, checkpoints, and saving the model."""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bert import weights
from bert.batch import Layouts, by_length, in_one_group, rounded_up, with_checked_ids
from bert.configuration import BertConfig
from bert.model import Bert
from bert.optimizer import change_schedule, make_optimizer
from bert.trained_words import TrainedWords
from distributed.checkpoint import Checkpoints, checkpoint_at, set_aside
from distributed.elastic import surviving
from distributed.gradient import TrainingStep
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.order import Order, divided
from distributed.plan import Plan, first_state, make_plan, rate_warning
from distributed.rows import BatchRows, Feed, Rows
from distributed.run import Run
from distributed.train import HeldOut, is_finished, train
from distributed.versions import environment
from ringbase.files import write_json
from tasks.cache import Prepared
from tasks.environment import result_file
from tasks.job import Job
from tasks.settings import DevSettings, TrainingSettings
from tasks.start import DATA, Start
from tasks.task import Task
from tasks.trained import CHECKPOINTS, TASK_FILE

STEPS_OF_LAYOUTS = 256  # sampled to choose the shapes for XLA
# steps after which, on CPUs, an optimized graph has earned back its slower start
OPTIMIZED_FROM = 1000


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The rows that a run trains on."""

    rows: BatchRows
    order: Order  # which row stands at each position of the stream
    key: str  # a digest of the data, the same on all ranks
    # by flag: must not change when a run is resumed
    settings: Mapping[str, object] = field(default_factory=dict)
    commit: str | None = None  # the hub's, of its data set

    @classmethod
    def of(
        cls,
        data: Prepared,
        table: str,
        seed: int,
        settings: Mapping[str, object],
        commit: str | None = None,
    ) -> "TrainingData":
        """The rows of a table, shuffled by `seed`. `settings` are by name, without dashes."""
        rows, by_flag = data.tables[table], {f"--{name}": value for name, value in settings.items()}
        order, key = Order(len(rows), seed), data.facts["digest"]
        return cls(rows=rows, order=order, key=key, settings=by_flag, commit=commit)


def fit(
    task: Task,
    data: TrainingData,
    start: Start,
    config: TrainingSettings,
    job: Job,
    held_out: HeldOut | None = None,
) -> int:
    """Trains the job's model from `start` to the end of the plan and saves it in the folder `model`
    of the run.

    Returns the number of steps that the saved model was trained for. With `held_out.best` it is
    that of the best evaluation. Raises InputError: a setting differs from the checkpoint's, no step
    is left to train, gradients stay non-finite, or memory runs out.
    """
    world, run, model, loop = job.world, job.run, job.model, config.loop
    settings = {**data.settings, **config.schedule(), DATA: data.key}
    world.on_first(start.check_settings, settings, job.flags_of_data)
    # After a death the survivors take the steps of all ranks that there were.
    plan = make_plan(config.plan.resolved(), len(data.rows), world.launched_size).on_ranks(
        world.size
    )
    folder = run.folder / CHECKPOINTS
    continues = start.checkpoint is not None and start.checkpoint.parent == folder
    state = first_state(plan, settings, start.state, continues)
    if not (is_complete := is_finished(state, held_out)):
        run.remove(result_file(trains=True))
    run.say(str(plan))
    say_warnings(config, job, plan, held_out)
    is_fixed = loop.xla == "on" or (loop.xla == "auto" and world.device.is_gpu)
    feed = feed_of(task, data.rows, data.order, plan, model.config, config.step.packing, is_fixed)
    step = job.workspace.step = training_step(task, feed, plan, config, job)
    tensors = [(name, tuple(variable.shape)) for name, variable in model.named_tensors().items()]
    world.agree({"the data": (data.key, len(data.rows)), "the plan": plan, "the tensors": tensors})
    copy_model = partial(weights.copied, model, start.tokenizer)
    words = job.workspace.words
    with closing(Checkpoints(folder, world, copy_model, loop, run.publish)) as checkpoints:
        if not continues and (aside := world.on_first(set_aside, folder)):
            run.say(f"the checkpoints of the previous run are kept in {aside}")
        world.on_first(load_start, start, loop.seed, job, step.optimizer, checkpoints)
        if words:
            broadcast_variables([words.table], world)
            words.take()
        step.state = state
        # the schedule follows the progress
        if start.state is None or state.step != start.state.step:
            step.optimizer.optimizer.iterations.assign(state.step)
        if not is_complete:
            run.remove(result_file(trains=False))  # of an older model
            commits = {"model": start.commit, "data_set": data.commit}
            facts = {
                "config": job.config,
                "plan": asdict(plan),
                "start": start.reason,
                "hub_commits": commits,
            }
            run.write_json("run.json", facts | {"environment": environment()})
            run.hyperparameters(job.config)
            step.compile(feed.batches_of_shapes(), plan.accumulation)
        job.has_trained.set()
        settle = words.give_back if words else lambda: None
        training = partial(train, step, feed, plan, checkpoints, run, loop, held_out, settle)
        state = surviving(world, f"the training in {run.folder}", training)
    steps = state.step
    if held_out and held_out.best and state.best and state.best[0] != state.position:
        position, score = state.best
        steps = position // plan.global_batch_size
        path, _ = world.on_first(checkpoint_at, folder, position)
        run.say(f"the best checkpoint: {path.name}, {held_out.best} {score:.4f}")
        load_on_all(job, path)
    world.on_first(save_model, job, start, task)
    return steps


def save_model(job: Job, start: Start, task: Task) -> None:
    """Writes the folder `model` of the run. On rank 0."""

    def fill(folder: Path) -> None:
        weights.copied(job.model, start.tokenizer)(folder)
        write_json(folder / TASK_FILE, task.settings)

    job.run.replace_folder("model", fill)


def say_warnings(config: TrainingSettings, job: Job, plan: Plan, held_out: HeldOut | None) -> None:
    """Prints what the user may not expect from the plan."""
    say = job.run.say
    # by which `make_plan` has divided, also if a rank has died since
    size = job.world.launched_size
    if size > 1 and config.plan.resolved().global_batch_size is None:
        of_one = make_plan(config.plan.resolved(), plan.rows, 1).steps
        say(
            f"note: {of_one:,} steps of one rank are {plan.steps:,} here, with {size} times the"
            f" rows; --global_batch_size {plan.global_batch_size // size} keeps one rank's steps"
            " and rate"
        )
    if plan.warmup_steps >= plan.steps:
        say(
            f"warning: the warmup of {plan.warmup_steps:,} steps does not end within {plan.steps:,}"
            " steps"
        )
    if job.model.head_name != "pretraining" and (warning := rate_warning(plan)):
        say(warning)
    if config.step.compression != "none" and not job.collectives.compresses:
        say(
            f"note: --compression changes nothing with the backend {job.collectives.name} on these"
            " machines"
        )
    if held_out:
        every, patience = held_out.interval(plan), held_out.patience
        count = math.ceil(plan.steps / every)
        say(f"evaluation every {every:,} steps, {count:,} in all")
        if patience is not None and count <= patience + 1:  # it could stop only after the last one
            say(
                f"warning: with {count} evaluations --early_stopping_patience {patience} never"
                " stops early"
            )


def feed_of(
    task: Task,
    rows: BatchRows,
    order: Order,
    plan: Plan,
    config: BertConfig,
    packing: str,
    is_fixed: bool,
) -> Feed:
    """The feed of a training of a model with this configuration. With `packing` "auto" a step's
    rows are divided by their tokens and grouped by length. `is_fixed`: XLA compiles the whole
    gradient, for few shapes."""
    layouts = layouts_of(task, rows, order, plan, packing) if is_fixed else None
    batch = with_checked_ids(task.batch, config)
    return Feed(
        rows=rows,
        order=order,
        collate=partial(
            batch, grouping=layouts or (in_one_group if packing == "off" else by_length)
        ),
        lengths=np.ones_like if packing == "off" else partial(rows.lengths_at, "input_ids"),
        collates_of_shapes=(
            [partial(task.batch, grouping=one) for one in layouts.single()] if layouts else ()
        ),
    )


def layouts_of(task: Task, rows: BatchRows, order: Order, plan: Plan, packing: str) -> Layouts:
    """The few shapes of micro-batches that XLA compiles, chosen from a sample of the run's steps.
    Without packing there is one shape, with rows as long as the longest."""
    sample: list[np.ndarray] = []
    if packing != "off":
        steps = np.linspace(
            0, plan.steps, min(plan.steps, STEPS_OF_LAYOUTS), endpoint=False
        ).astype(int)
        for position in (steps * plan.global_batch_size).tolist():
            numbers = order.rows_at(position, position + plan.global_batch_size)
            lengths = rows.lengths_at("input_ids", numbers)
            ranks = divided(lengths, plan.size, plan.accumulation)
            sample += [lengths[piece] for rank in ranks for piece in rank]
    return Layouts(
        sample,
        -(-plan.global_batch_size // (plan.size * plan.accumulation)),
        longest_row(task, rows),
    )


def longest_row(task: Task, rows: BatchRows) -> int:
    """The most tokens of a row in this training."""
    return rows.longest("input_ids") or task.max_seq_length


def training_step(
    task: Task, feed: Feed, plan: Plan, config: TrainingSettings, job: Job
) -> TrainingStep:
    """The step of BERT's optimizer with the plan's schedule. That of an earlier training starts
    anew, with what is compiled for it."""
    model, step, seed, is_gpu = (
        job.model,
        job.workspace.step,
        config.loop.seed,
        job.world.device.is_gpu,
    )
    is_optimized = is_gpu or plan.steps >= OPTIMIZED_FROM
    schedule = plan.learning_rate, plan.steps, plan.warmup_steps
    if step is not None and model.copies_layers == is_optimized:
        step.restart(seed)
        change_schedule(step.optimizer.optimizer, *schedule)
        return step
    model.copies_layers, model.recomputes = is_optimized, config.step.recompute
    words = job.workspace.words = trained_words(model, feed.rows, config.optimizer)
    optimizer = AllreduceOptimizer(
        make_optimizer(config.optimizer, *schedule),
        words.variables if words else model.trainable_variables,
        job.world,
        job.collectives,
        task.terms,
        scales_loss=model.compute_dtype == "float16",
        compression=config.step.compression,
    )
    job.run.say("building the training step: the first step takes longer")
    longest, scores = rounded_up(longest_row(task, feed.rows)), words.scores if words else model

    def loss(batch: dict, key: object) -> Mapping:
        return task.loss(scores(batch | {"longest": longest}, key), batch)

    if not feed.collates_of_shapes:
        return TrainingStep(
            loss, task.weights, optimizer, seed, "graph" if is_optimized else "as traced"
        )
    # Sums inside XLA only on request: no machine with several GPUs has shown yet that they are
    # faster.
    can_be_whole = job.world.size == 1 or (job.collectives.in_graph and config.loop.xla == "on")
    return TrainingStep(
        loss, task.weights, optimizer, seed, "step" if is_gpu and can_be_whole else "gradient"
    )


def trained_words(model: Bert, rows: BatchRows, optimizer: str) -> TrainedWords | None:
    """Those of rows in memory. None for all words: pretraining's scores need them, and LAMB their
    norm."""
    if model.head_name == "pretraining" or optimizer == "lamb" or not isinstance(rows, Rows):
        return None
    return TrainedWords(model, rows.column("input_ids")[0])


def load_start(
    start: Start, seed: int, job: Job, optimizer: AllreduceOptimizer, checkpoints: Checkpoints
) -> None:
    """Loads the weights and moments that the run starts from. On rank 0."""
    say, tensors = job.run.say, job.model.named_tensors()
    if start.weights is None:
        say(f"weights: initial values, seed {seed}: training from scratch")
        return
    fresh = {name: tensors[name].numpy() for name in start.fresh_tensors if start.state is None}
    new = () if start.state else weights.HEAD_TENSORS[job.model.head_name]
    say(f"weights: {weights.load(job.model, start.weights, new=new)} ({start.reason})")
    for name, value in fresh.items():
        tensors[name].assign(value)
    if moments := start.checkpoint or start.moments:
        checkpoints.restore(moments, optimizer)
    if start.moments:
        say(f"moments: {start.moments}")


def load_on_all(job: Job, source: Path | None) -> None:
    """Gives every rank the weights in a folder or TensorFlow checkpoint."""
    assert source is not None
    job.world.on_first(lambda: job.run.say(f"weights: {weights.load(job.model, source)}"))
    broadcast_variables(job.model.trainable_variables, job.world)


def load_for_prediction(job: Job, start: Start) -> int | None:
    """Gives every rank the trained weights that `start` names. From here on the command is not
    complete. Returns the number of steps that they were trained for; None if they are not those of
    a checkpoint."""
    job.run.remove(result_file(trains=False))
    load_on_all(job, start.weights)
    return start.state.step if start.state else None


def evaluations(
    settings: DevSettings, measure: Callable[[], Mapping[str, float]], metric: str, num_rows: int
) -> HeldOut | None:
    """How `measure` evaluates a training on `num_rows` rows; the best model is that of the highest
    `metric`."""
    if not settings.during_training:
        return None
    best = f"eval_{metric}" if settings.keeps_best else None
    every, patience = settings.eval_steps or "epoch", settings.early_stopping_patience
    return HeldOut(measure=measure, num_rows=num_rows, every=every, best=best, patience=patience)


def write_eval_results(run: Run, values: Mapping[str, float | None]) -> None:
    """eval_results.txt as Google's scripts write it, without values that are None."""
    lines = (f"{name} = {value}\n" for name, value in sorted(values.items()) if value is not None)
    run.write("eval_results.txt", "".join(lines))
