"""Training, shared by all programs: plan, optimizer, weights, steps, and saving the model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from bert import weights
from bert.batch import with_checked_ids
from bert.dropout import effective_rate
from bert.model import Bert
from bert.optimizer import change_schedule, make_optimizer
from distributed import phases
from distributed.checkpoint import Checkpoints, checkpoint_at, set_aside
from distributed.elastic import surviving
from distributed.feed import Feed
from distributed.gradient import Loss, OutOfMemory, TrainingStep, WholeStep
from distributed.log import NotFinite
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.plan import Plan, make_plan, rate_warning
from distributed.run import Run
from distributed.state import START, State
from distributed.train import HeldOut, resumed_step, train
from distributed.versions import environment
from distributed.world import World
from ringbase.errors import InputError
from tasks.batches import grouping_of, layouts_of, padding_of
from tasks.environment import result_file
from tasks.evaluation import evaluation_interval
from tasks.job import Job
from tasks.settings import TrainingSettings
from tasks.start import CHECKPOINTS, Start

MEMORY_ADVICE = (
    "lower --train_batch_size (or --global_batch_size) or --max_seq_length, or raise --gradient_accumulation_steps"
)
OVERFLOW_ADVICE = "lower --learning_rate, or use --precision fp32 or bf16"
OPTIMIZED_FROM = 1000  # steps after which, on CPUs, an optimized graph has earned back its slower start


@dataclass(frozen=True, kw_only=True)
class Training:
    """The model, data and loss of a run.

    Attributes:
      feed: the data, and its conversion to batches.
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      loss_terms: their names; each is divided by its weight over all ranks, and their sum is minimized.
      data_key: a digest of the data, the same on all ranks.
      settings: flag -> value, for flags that must not change when a run is resumed; kept in each checkpoint.
      held_out: the evaluation during training.
    """

    model: Bert
    feed: Feed
    loss: Loss
    loss_terms: Sequence[str] = ("loss",)
    data_key: str = ""
    settings: dict[str, object]
    held_out: HeldOut | None = None


def fit(config: TrainingSettings, job: Job, start: Start, training: Training, record: Mapping[str, object]) -> int:
    """Trains `training.model` from `start` to the end of the plan and saves it in the folder `model` of the run.

    `record` is what run.json says of the program's flags and the data's commit: "config" and "data_set".
    Returns the number of steps that the saved model was trained for. With `held_out.best`, the saved model is that
    of the best evaluation. `training.feed.collate` must take an argument `grouping` (see `bert.batch.batch_of`).

    Raises InputError: a setting differs from the checkpoint's, no step is left to train, gradients stay
    non-finite, or memory runs out.
    """
    world, run, engine = job.world, job.run, job.engine
    start.check_settings(training.settings)
    run.remove(result_file(trains=True))  # from here on the run is not complete
    # After a death the survivors take the steps of all ranks that there were.
    plan = make_plan(config.plan.resolved(), len(training.feed.rows), world.launched_size).on_ranks(world.size)
    run.say(str(plan))
    xla = ("on" if world.device.is_gpu else "off") if config.loop.xla == "auto" else config.loop.xla
    training = prepared(config.passes.packing, xla == "on", job, plan, training)
    say_warnings(config, job, plan, training.model)
    engine.step = step = training_step(config, job, plan, training)
    check_agreement(job, start, plan, training)
    checkpoints = make_checkpoints(config, job, start, training.model)
    step.state = restore(config, job, start, plan, training, step.optimizer, checkpoints)
    is_finished = step.state.step == plan.steps or bool(training.held_out and training.held_out.stops(step.state))
    if not is_finished:
        run.remove(result_file(trains=False))  # of an older model
        facts = {"config": record["config"], "plan": asdict(plan), "start": start.reason}
        commits = {"model": start.commit, "data_set": record["data_set"]}
        run.write_json("run.json", facts | {"hub_commits": commits, "environment": environment()})
    job.has_trained.set()
    phases.ended("model")
    try:
        if step.is_fixed and not is_finished:
            compile_shapes(step, plan, training.feed, run)
        feed, held_out, every = training.feed, training.held_out, config.loop.log_steps
        state = surviving(
            world,
            f"the training in {run.folder}",
            lambda: train(step, feed, plan, checkpoints, run, every, held_out),
        )
    except OutOfMemory as error:
        advice = MEMORY_ADVICE + ", or give --xla off" * step.is_fixed
        raise InputError(f"{error}: {advice}") from error
    except NotFinite as error:
        raise InputError(f"{error}: {OVERFLOW_ADVICE}") from error
    finally:
        checkpoints.close()
    steps = load_best(job, plan, training, checkpoints, state)
    save = weights.copied(training.model, start.tokenizer)
    world.on_first(run.replace_folder, "model", save)
    return steps


def prepared(packing: str, is_fixed: bool, job: Job, plan: Plan, training: Training) -> Training:
    """The training with what the flags leave open decided: packing, shapes for XLA, evaluation interval."""
    world, run, feed, held_out = job.world, job.run, training.feed, training.held_out
    if held_out:
        held_out = replace(held_out, every=evaluation_interval(held_out, plan, feed, run))
    lengths = None if packing == "off" else feed.lengths
    layouts = layouts_of(plan, feed.order, lengths, feed.longest) if is_fixed else None
    collate = with_checked_ids(feed.collate, training.model.config)
    feed = replace(
        feed,
        collate=partial(collate, grouping=layouts or grouping_of(packing)),
        is_fixed=is_fixed,
        collates_of_shapes=[partial(feed.collate, grouping=one) for one in layouts.single()] if layouts else (),
        lengths=lengths,
    )
    if world.rank == 0:
        share = f"{padding_of(feed, plan):.1%} of the places in attention are padding"
        run.say(f"packing {packing}: {share}" + " in the shapes for XLA" * is_fixed)
    return replace(training, feed=feed, held_out=held_out)


def compile_shapes(step: TrainingStep, plan: Plan, feed: Feed, run: Run) -> None:
    """Compiles for every shape before the first step. In the middle of a run all ranks would wait for one."""
    began = time.perf_counter()
    number = step.compile(feed.batches_of_shapes(), plan.accumulation)
    seconds = time.perf_counter() - began
    run.say(f"XLA compiled the step for {number} shape{'s' * (number != 1)} in {seconds:.1f} s")


def optimizes_graphs(plan: Plan, world: World) -> bool:
    """Whether the training is long enough for TensorFlow to optimize its graphs: docs/measured.md."""
    return world.device.is_gpu or plan.steps >= OPTIMIZED_FROM


def say_warnings(config: TrainingSettings, job: Job, plan: Plan, model: Bert) -> None:
    """Prints warnings about what the user may not expect from the plan."""
    rates = {model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob}
    if model.head_name == "classifier" and model.config.classifier_dropout is not None:
        rates.add(model.config.classifier_dropout)
    rounded = [
        f"{rate} becomes {effective_rate(rate):.4g}" for rate in sorted(rates) if effective_rate(rate) != rate
    ]
    if rounded:
        job.run.say(f"dropout rates are rounded to the random bits used: {', '.join(rounded)}")
    if plan.warmup_steps >= plan.steps:
        job.run.say(f"warning: the warmup of {plan.warmup_steps:,} steps does not end within {plan.steps:,} steps")
    if model.head_name != "pretraining" and (warning := rate_warning(plan)):
        job.run.say(warning)
    if config.collectives.compression != "none" and not job.collectives.compresses:
        job.run.say(
            f"note: --compression changes nothing with the backend {job.collectives.name} on these machines"
        )


def training_step(config: TrainingSettings, job: Job, plan: Plan, training: Training) -> TrainingStep:
    """The step of BERT's optimizer with the plan's schedule. That of an earlier training starts anew, with what is
    compiled for it."""
    model, step, seed = training.model, job.engine.step, config.loop.seed
    is_optimized = optimizes_graphs(plan, job.world)
    if step is not None and model.copies_layers == is_optimized:
        step.restart(seed)
        change_schedule(step.optimizer.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps)
        return step
    model.copies_layers = is_optimized
    model.recomputes = config.passes.recompute
    optimizer = AllreduceOptimizer(
        make_optimizer(config.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps),
        model.trainable_variables,
        job.world,
        job.collectives,
        training.loss_terms,
        scales_loss=model.compute_dtype == "float16",
        compression=config.collectives.compression,
    )
    job.run.say("building the training step: the first step takes longer")
    loss, weights, is_fixed = training.loss, training.feed.weights, training.feed.is_fixed
    # Sums inside XLA only on request: no machine with several GPUs has shown yet that they are faster.
    can_be_whole = job.world.size == 1 or (job.collectives.in_graph and config.loop.xla == "on")
    if is_fixed and job.world.device.is_gpu and can_be_whole:
        return WholeStep(loss, weights, optimizer, seed)
    return TrainingStep(loss, weights, optimizer, seed, is_fixed, as_traced=not (is_fixed or is_optimized))


def check_agreement(job: Job, start: Start, plan: Plan, training: Training) -> None:
    """Stops all ranks unless they are about to train the same model in the same way on the same data."""
    shapes = [(name, tuple(v.shape)) for name, v in training.model.named_tensors().items()]
    job.world.agree(
        {
            "the vocabulary": start.tokenizer and start.tokenizer.digest,
            "the data": (training.data_key, len(training.feed.rows)),
            "the plan": plan,
            "the start": (start.weights, start.state, start.moments, start.fresh_tensors),
            "the tensors": shapes,
        }
    )


def make_checkpoints(config: TrainingSettings, job: Job, start: Start, model: Bert) -> Checkpoints:
    """The run's checkpoints. Those of an earlier run that is not continued are moved to another folder."""
    checkpoints = Checkpoints(
        job.run.folder / CHECKPOINTS,
        job.world,
        lambda: weights.copied(model, start.tokenizer),
        config.loop,
    )
    if not start.continues(checkpoints.folder) and (aside := job.world.on_first(set_aside, checkpoints.folder)):
        job.run.say(f"the checkpoints of the previous run are kept in {aside}")
    return checkpoints


def restore(
    config: TrainingSettings,
    job: Job,
    start: Start,
    plan: Plan,
    training: Training,
    optimizer: AllreduceOptimizer,
    checkpoints: Checkpoints,
) -> State:
    """Loads on rank 0 the weights and moments that the run starts from. Returns its state on every rank."""
    job.world.on_first(load_start, config, job.run, start, training.model, optimizer, checkpoints)
    if start.state is None:
        job.run.remove("metrics.jsonl")
        return replace(START, settings=training.settings)
    state = replace(start.state, step=resumed_step(start.state, plan), settings=training.settings)
    if state.step != start.state.step:  # another number of ranks: the schedule continues at the same progress
        optimizer.optimizer.iterations.assign(state.step)
    if not start.continues(checkpoints.folder):
        state = replace(state, evaluations=[], saved=0)  # its checkpoints are in the other folder
    return state


def load_start(
    config: TrainingSettings,
    run: Run,
    start: Start,
    model: Bert,
    optimizer: AllreduceOptimizer,
    checkpoints: Checkpoints,
) -> None:
    """Loads what the start names into model and optimizer. On rank 0."""
    if start.weights is None:
        run.say(f"weights: initial values, seed {config.loop.seed}: training from scratch")
        return
    tensors = model.named_tensors()
    fresh = {name: tensors[name].numpy() for name in start.fresh_tensors if start.state is None}
    new = () if start.state else weights.HEAD_TENSORS[model.head_name]
    run.say(f"weights: {weights.load(model, start.weights, new=new)} ({start.reason})")
    for name, value in fresh.items():
        tensors[name].assign(value)
    if start.checkpoint:
        checkpoints.restore(start.checkpoint, optimizer)
    elif start.moments:
        checkpoints.restore(start.moments, optimizer)
        optimizer.optimizer.iterations.assign(0)  # the schedule is the new run's
        run.say(f"moments: {start.moments}")


def load_best(job: Job, plan: Plan, training: Training, checkpoints: Checkpoints, state: State) -> int:
    """Gives every rank the model of the best evaluation, if `held_out.best` asks for it. Returns the number of
    steps that the model was trained for."""
    held_out = training.held_out
    if held_out is None or held_out.best is None or state.best is None or state.best[0] == state.position:
        return state.step
    position, score = state.best
    best = job.world.on_first(checkpoint_at, checkpoints.folder, position)
    job.run.say(f"the best checkpoint: {best.path.name}, {held_out.best} {score:.4f}")
    job.world.on_first(weights.load, training.model, best.path)
    broadcast_variables(training.model.trainable_variables, job.collectives, job.world)
    return position // plan.global_batch_size


def load_for_prediction(job: Job, start: Start, model: Bert) -> None:
    """Gives every rank the trained weights that `start` names. Raises InputError when there are none."""
    source = start.weights
    if source is None:
        raise InputError(
            "without --do_train weights are needed: --init_checkpoint, --model, or a trained run's --output_dir"
        )
    job.world.on_first(lambda: job.run.say(f"weights: {weights.load(model, source)}"))
    broadcast_variables(model.trainable_variables, job.collectives, job.world)


def write_eval_results(run: Run, scores: Mapping[str, float], loss: float, steps: int | None) -> None:
    """eval_results.txt as Google's run_classifier.py and run_pretraining.py write it, with `loss` and, where it is
    known, `global_step`."""
    values = {**scores, "loss": loss} | ({} if steps is None else {"global_step": steps})
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(values.items())))
