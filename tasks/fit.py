"""Training, shared by all programs: plan, step, weights, checkpoints, and saving the model."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bert import weights
from bert.dropout import effective_rate
from bert.optimizer import change_schedule, make_optimizer
from distributed import phases
from distributed.checkpoint import Checkpoints, checkpoint_at, set_aside
from distributed.elastic import surviving
from distributed.feed import Feed
from distributed.gradient import OutOfMemory, TrainingStep, WholeStep
from distributed.log import NotFinite
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.order import RowOrder
from distributed.plan import Plan, make_plan, rate_warning
from distributed.rows import BatchRows
from distributed.run import Run
from distributed.state import START, State
from distributed.train import HeldOut, resumed_step, train
from distributed.versions import environment
from ringbase.errors import InputError
from ringbase.files import write_json
from tasks.batches import feed_of, padding_of
from tasks.environment import result_file
from tasks.evaluation import evaluation_interval
from tasks.job import Job
from tasks.settings import TrainingSettings
from tasks.start import CHECKPOINTS, TASK_FILE, Start
from tasks.task import Task

MEMORY_ADVICE = (
    "lower --train_batch_size (or --global_batch_size) or --max_seq_length, or raise --gradient_accumulation_steps"
)
OVERFLOW_ADVICE = "lower --learning_rate, or use --precision fp32 or bf16"
OPTIMIZED_FROM = 1000  # steps after which, on CPUs, an optimized graph has earned back its slower start


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The rows that a run trains on.

    Attributes:
      order: which row stands at each position of the stream.
      key: a digest of the data, the same on all ranks.
      settings: flag -> value, for what must not change when a run is resumed, besides the schedule and the key.
      commit: the hub's commit of the data; None for other data.
    """

    rows: BatchRows
    order: RowOrder
    key: str
    settings: Mapping[str, object] = field(default_factory=dict)
    commit: str | None = None


def fit(
    task: Task,
    data: TrainingData,
    start: Start,
    config: TrainingSettings,
    job: Job,
    held_out: HeldOut | None = None,
) -> int:
    """Trains the job's model from `start` to the end of the plan and saves it in the folder `model` of the run.

    Returns the number of steps that the saved model was trained for. With `held_out.best` it is that of the best
    evaluation.

    Raises InputError: a setting differs from the checkpoint's, no step is left to train, gradients stay
    non-finite, or memory runs out.
    """
    world, run, model = job.world, job.run, job.model
    settings = {**data.settings, **config.schedule(), "training data (digest)": data.key}
    start.check_settings(settings)
    run.remove(result_file(trains=True))  # from here on the run is not complete
    # After a death the survivors take the steps of all ranks that there were.
    plan = make_plan(config.plan.resolved(), len(data.rows), world.launched_size).on_ranks(world.size)
    run.say(str(plan))
    is_fixed = config.loop.xla == "on" or (config.loop.xla == "auto" and world.device.is_gpu)
    packing = config.passes.packing
    feed = feed_of(task, data.rows, data.order, plan, model.config, packing, is_fixed)
    if held_out:
        held_out = replace(held_out, every=evaluation_interval(held_out, plan, data.rows, run))
    if world.rank == 0:
        share = f"{padding_of(feed, plan):.1%} of the places in attention are padding"
        run.say(f"packing {packing}: {share}" + " in the shapes for XLA" * is_fixed)
    say_warnings(config, job, plan)
    step = job.workspace.step = training_step(task, feed, plan, config, job)
    check_agreement(job, start, plan, data)
    checkpoints = make_checkpoints(config, job, start)
    step.state = restore(config, job, start, plan, step, checkpoints, settings)
    is_finished = step.state.step == plan.steps or bool(held_out and held_out.stops(step.state))
    if not is_finished:
        run.remove(result_file(trains=False))  # of an older model
        commits = {"model": start.commit, "data_set": data.commit}
        facts = {"config": job.config, "plan": asdict(plan), "start": start.reason, "hub_commits": commits}
        run.write_json("run.json", facts | {"environment": environment()})
    job.has_trained.set()
    phases.ended("model")
    try:
        if is_fixed and not is_finished:
            compile_shapes(step, plan, feed, run)
        place, every = f"the training in {run.folder}", config.loop.log_steps
        state = surviving(world, place, lambda: train(step, feed, plan, checkpoints, run, every, held_out))
    except OutOfMemory as error:
        raise InputError(f"{error}: {MEMORY_ADVICE}" + ", or give --xla off" * is_fixed) from error
    except NotFinite as error:
        raise InputError(f"{error}: {OVERFLOW_ADVICE}") from error
    finally:
        checkpoints.close()
    if held_out and held_out.best and state.best and state.best[0] != state.position:
        state = load_best(job, plan, held_out.best, checkpoints, state)
    write_model = weights.copied(model, start.tokenizer)

    def fill(folder: Path) -> None:
        write_model(folder)
        write_json(folder / TASK_FILE, task.settings)

    world.on_first(run.replace_folder, "model", fill)
    return state.step


def compile_shapes(step: TrainingStep, plan: Plan, feed: Feed, run: Run) -> None:
    """Compiles for every shape before the first step. In the middle of a run all ranks would wait for one."""
    began = time.perf_counter()
    number = step.compile(feed.batches_of_shapes(), plan.accumulation)
    seconds = time.perf_counter() - began
    run.say(f"XLA compiled the step for {number} shape{'s' * (number != 1)} in {seconds:.1f} s")


def say_warnings(config: TrainingSettings, job: Job, plan: Plan) -> None:
    """Prints what the user may not expect from the plan."""
    say, model = job.run.say, job.model
    rates = (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob)
    rounded = {rate: effective_rate(rate) for rate in rates if effective_rate(rate) != rate}
    if rounded:
        shown = ", ".join(f"{rate} becomes {bits:.4g}" for rate, bits in sorted(rounded.items()))
        say(f"dropout rates are rounded to the random bits used: {shown}")
    if plan.warmup_steps >= plan.steps:
        say(f"warning: the warmup of {plan.warmup_steps:,} steps does not end within {plan.steps:,} steps")
    if model.head_name != "pretraining" and (warning := rate_warning(plan)):
        say(warning)
    if config.collectives.compression != "none" and not job.collectives.compresses:
        say(f"note: --compression changes nothing with the backend {job.collectives.name} on these machines")


def training_step(task: Task, feed: Feed, plan: Plan, config: TrainingSettings, job: Job) -> TrainingStep:
    """The step of BERT's optimizer with the plan's schedule. That of an earlier training starts anew, with what is
    compiled for it."""
    model, step, seed = job.model, job.workspace.step, config.loop.seed
    is_optimized = job.world.device.is_gpu or plan.steps >= OPTIMIZED_FROM
    if step is not None and model.copies_layers == is_optimized:
        step.restart(seed)
        change_schedule(step.optimizer.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps)
        return step
    model.copies_layers, model.recomputes = is_optimized, config.passes.recompute
    optimizer = AllreduceOptimizer(
        make_optimizer(config.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps),
        model.trainable_variables,
        job.world,
        job.collectives,
        task.terms,
        scales_loss=model.compute_dtype == "float16",
        compression=config.collectives.compression,
    )
    job.run.say("building the training step: the first step takes longer")

    def loss(batch: dict, key: object) -> Mapping:
        return task.loss(model(batch, dropout_key=key), batch)

    # Sums inside XLA only on request: no machine with several GPUs has shown yet that they are faster.
    can_be_whole = job.world.size == 1 or (job.collectives.in_graph and config.loop.xla == "on")
    if feed.is_fixed and job.world.device.is_gpu and can_be_whole:
        return WholeStep(loss, task.weights, optimizer, seed)
    as_traced = not (feed.is_fixed or is_optimized)
    return TrainingStep(loss, task.weights, optimizer, seed, feed.is_fixed, as_traced)


def check_agreement(job: Job, start: Start, plan: Plan, data: TrainingData) -> None:
    """Stops all ranks unless they are about to train the same model in the same way on the same data."""
    job.world.agree(
        {
            "the vocabulary": start.tokenizer and start.tokenizer.digest,
            "the data": (data.key, len(data.rows)),
            "the plan": plan,
            "the start": (start.weights, start.state, start.moments, start.fresh_tensors),
            "the tensors": [(name, tuple(v.shape)) for name, v in job.model.named_tensors().items()],
        }
    )


def make_checkpoints(config: TrainingSettings, job: Job, start: Start) -> Checkpoints:
    """The run's checkpoints. Those of an earlier run that is not continued are moved to another folder."""
    copy = lambda: weights.copied(job.model, start.tokenizer)  # noqa: E731
    checkpoints = Checkpoints(job.run.folder / CHECKPOINTS, job.world, copy, config.loop)
    if not start.continues(checkpoints.folder) and (aside := job.world.on_first(set_aside, checkpoints.folder)):
        job.run.say(f"the checkpoints of the previous run are kept in {aside}")
    return checkpoints


def restore(
    config: TrainingSettings,
    job: Job,
    start: Start,
    plan: Plan,
    step: TrainingStep,
    checkpoints: Checkpoints,
    settings: dict[str, object],
) -> State:
    """Loads on rank 0 the weights and moments that the run starts from. Returns its state on every rank."""
    optimizer = step.optimizer
    job.world.on_first(load_start, config.loop.seed, job, start, optimizer, checkpoints)
    if start.state is None:
        job.run.remove("metrics.jsonl")
        return replace(START, settings=settings)
    state = replace(start.state, step=resumed_step(start.state, plan), settings=settings)
    if state.step != start.state.step:  # another number of ranks: the schedule continues at the same progress
        optimizer.optimizer.iterations.assign(state.step)
    if not start.continues(checkpoints.folder):
        state = replace(state, evaluations=[], saved=0)  # its checkpoints are in the other folder
    return state


def load_start(seed: int, job: Job, start: Start, optimizer: AllreduceOptimizer, checkpoints: Checkpoints) -> None:
    """Loads what the start names into model and optimizer. On rank 0."""
    say, model = job.run.say, job.model
    if start.weights is None:
        say(f"weights: initial values, seed {seed}: training from scratch")
        return
    tensors = model.named_tensors()
    fresh = {name: tensors[name].numpy() for name in start.fresh_tensors if start.state is None}
    new = () if start.state else weights.HEAD_TENSORS[model.head_name]
    say(f"weights: {weights.load(model, start.weights, new=new)} ({start.reason})")
    for name, value in fresh.items():
        tensors[name].assign(value)
    if start.checkpoint:
        checkpoints.restore(start.checkpoint, optimizer)
    elif start.moments:
        checkpoints.restore(start.moments, optimizer)
        optimizer.optimizer.iterations.assign(0)  # the schedule is the new run's
        say(f"moments: {start.moments}")


def load_best(job: Job, plan: Plan, name: str, checkpoints: Checkpoints, state: State) -> State:
    """Gives every rank the model of the best evaluation by the score `name`. Returns the state with its step."""
    assert state.best is not None
    position, score = state.best
    best = job.world.on_first(checkpoint_at, checkpoints.folder, position)
    job.run.say(f"the best checkpoint: {best.path.name}, {name} {score:.4f}")
    load_on_all(job, best.path)
    return replace(state, step=position // plan.global_batch_size)


def load_on_all(job: Job, source: Path) -> None:
    """Gives every rank the weights in a folder or TensorFlow checkpoint."""
    job.world.on_first(lambda: job.run.say(f"weights: {weights.load(job.model, source)}"))
    broadcast_variables(job.model.trainable_variables, job.world)


def load_for_prediction(job: Job, start: Start) -> None:
    """Gives every rank the trained weights that `start` names. Raises InputError when there are none."""
    if start.weights is None:
        raise InputError(
            "without --do_train weights are needed: --init_checkpoint, --model, or a trained run's --output_dir"
        )
    load_on_all(job, start.weights)


def write_eval_results(run: Run, scores: Mapping[str, float], loss: float, steps: int | None) -> None:
    """eval_results.txt as Google's run_classifier.py and run_pretraining.py write it, with `loss` and, where it is
    known, `global_step`."""
    values = {**scores, "loss": loss} | ({} if steps is None else {"global_step": steps})
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(values.items())))
