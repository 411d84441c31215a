"""Training, shared by all programs: plan, optimizer, weights, steps, and saving the model."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial

from bert import weights
from bert.batch import with_checked_ids
from bert.dropout import effective_rate
from bert.model import Bert
from bert.optimizer import change_schedule, make_optimizer
from distributed import phases
from distributed.checkpoint import Checkpoints, checkpoint_at, set_aside
from distributed.collectives import compression_note
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.plan import Plan, make_plan, rate_warning
from distributed.run import Run, environment
from distributed.state import State
from distributed.train import Training, choose_gradient, optimizes_graphs, resumed_step, train
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


def fit(config: TrainingSettings, job: Job, start: Start, training: Training, record: Mapping[str, object]) -> int:
    """Trains `training.model` from `start` to the end of the plan and saves it in the folder `model` of the run.

    `record` is what run.json says of the program's flags and the data's commit: "config" and "data_set".
    Returns the number of steps that the saved model was trained for. With `held_out.best`, the saved model is that
    of the best evaluation. `training.feed.collate` must take an argument `grouping` (see `bert.batch.batch_of`).

    Raises InputError: a setting differs from the checkpoint's, no step is left to train, or `train` raises it.
    """
    world, run, engine = job.world, job.run, job.engine
    start.check_settings(training.settings)
    run.remove(result_file(trains=True))  # from here on the run is not complete
    plan = make_plan(config.plan.resolved(), len(training.feed.rows), world.size, world.launched_size)
    run.say(str(plan))
    xla = "off" if config.loop.xla == "auto" and world.device == "cpu" else config.loop.xla  # docs/measured.md
    training = prepared(config.passes.packing, xla, job, plan, training)
    say_warnings(config, job, plan, training.model)
    optimizer = allreduce_optimizer(config, job, plan, training)
    check_agreement(job, start, plan, training)
    checkpoints = make_checkpoints(config, job, start, training.model)
    state = restore(config, job, start, plan, training, optimizer, checkpoints)
    is_finished = state and (state.step == plan.steps or (training.held_out and training.held_out.stops(state)))
    if not is_finished:
        run.remove(result_file(trains=False))  # of an older model
        facts = {"config": record["config"], "plan": asdict(plan), "start": start.reason}
        commits = {"model": start.commit, "data_set": record["data_set"]}
        run.write_json("run.json", facts | {"hub_commits": commits, "environment": environment()})
    training = replace(training, replan=partial(replanned, config, job, training, optimizer))
    phases.ended("model")
    try:
        if engine.gradient is None and not is_finished:
            engine.gradient = choose_gradient(xla, plan, training, optimizer, run, state)
        state = train(config.loop, plan, training, optimizer, run, checkpoints, state, engine.gradient)
    finally:
        checkpoints.close()
    steps = load_best(job, plan, training, checkpoints, state)
    save = weights.copied(training.model, start.tokenizer)
    world.on_first(run.replace_folder, "model", save)
    return steps


def prepared(packing: str, xla: str, job: Job, plan: Plan, training: Training) -> Training:
    """The training with what the flags leave open decided: packing, shapes for XLA, evaluation interval."""
    world, run, feed, held_out = job.world, job.run, training.feed, training.held_out
    if held_out:
        held_out = replace(held_out, every=evaluation_interval(held_out, plan, feed, run))
    lengths = None if packing == "off" else feed.lengths
    layouts = None if xla == "off" else layouts_of(plan, feed.order, lengths, feed.longest)
    collate = with_checked_ids(feed.collate, training.model.config)
    feed = replace(
        feed,
        collate=partial(collate, grouping=grouping_of(packing)),
        collate_fixed=partial(collate, grouping=layouts) if layouts else None,
        collates_of_shapes=[partial(feed.collate, grouping=one) for one in layouts.single()] if layouts else (),
        lengths=lengths,
    )
    if world.rank == 0:
        text = f"packing {packing}: {padding_of(feed, plan):.1%} of the places in attention are padding"
        run.say(text + (f", {padding_of(feed, plan, True):.1%} in the shapes for XLA" if layouts else ""))
    training = replace(training, feed=feed, held_out=held_out)
    return replace(training, memory_advice=MEMORY_ADVICE, overflow_advice=OVERFLOW_ADVICE)


def replanned(
    config: TrainingSettings, job: Job, training: Training, optimizer: AllreduceOptimizer, size: int
) -> Plan:
    """The plan and the optimizer's schedule for the ranks that are left."""
    plan = make_plan(config.plan.resolved(), len(training.feed.rows), size, job.world.launched_size)
    change_schedule(optimizer.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps)
    return plan


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
    if config.collectives.compression != "none" and job.world.size > 1:
        job.run.say(compression_note(job.world, job.collectives))


def allreduce_optimizer(config: TrainingSettings, job: Job, plan: Plan, training: Training) -> AllreduceOptimizer:
    """BERT's optimizer with the plan's schedule; it sums gradients over ranks. That of an earlier training starts
    anew."""
    model, known = training.model, job.engine.optimizer
    if model.copies_layers != optimizes_graphs(plan, job.world):
        model.copies_layers, job.engine.gradient = not model.copies_layers, None  # another graph
    if known is not None:
        known.reset()
        change_schedule(known.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps)
        return known
    model.recomputes = config.passes.recompute
    job.engine.optimizer = AllreduceOptimizer(
        make_optimizer(config.optimizer, plan.learning_rate, plan.steps, plan.warmup_steps),
        training.model.trainable_variables,
        job.world,
        job.collectives,
        training.loss_terms,
        scales_loss=training.model.compute_dtype == "float16",
        settings=config.collectives,
    )
    return job.engine.optimizer


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
        config.loop.keep_checkpoints,
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
) -> State | None:
    """Gives every rank the weights and moments that the run starts from. Returns its state; None for a new run."""
    job.world.on_first(load_start, config, job.run, start, training.model, optimizer, checkpoints)
    optimizer.broadcast_variables()
    optimizer.check_replicas()
    if start.state is None:
        job.run.remove("metrics.jsonl")
        return None
    state = replace(start.state, step=resumed_step(start.state, plan))
    if state.step != start.state.step:  # another number of ranks: the schedule continues at the same progress
        optimizer.optimizer.iterations.assign(state.step)
    job.run.rewind_metrics(state.position)
    if not start.continues(checkpoints.folder):
        state = replace(state, evaluations=[])  # the best checkpoint is in the other folder
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
