"""What every training program shares: its flags of training, and `fit`, which takes a model through the plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks.evaluation import HeldOut, evaluation_of
from tasks.origin import CHECKPOINTS, ModelFiles, Start, resumed_step
from tasks.padding import layouts_of, padding_of

if TYPE_CHECKING:
    from pathlib import Path

    import keras
    import tensorflow as tf

    from bert.model import Bert
    from distributed.feed import Feed
    from distributed.plan import Plan
    from distributed.run import Run
    from tasks.job import Job


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """How a program trains: names and defaults of Google's scripts, and a few of ours."""

    do_train: bool = setting(False, "train", "training")
    train_batch_size: int | None = setting(None, "rows per rank and optimizer step (32 unless given)", "training")
    global_batch_size: int | None = setting(
        None, "rows per optimizer step over all ranks; keeps one rank's steps and rate", "training"
    )
    gradient_accumulation_steps: int = setting(1, "micro-batches that a rank's batch is split into", "training")
    optimizer: Literal["adamw", "lamb"] = setting(
        "adamw", "adamw: BERT's AdamWeightDecay; lamb: for global batches of thousands of rows", "training"
    )
    learning_rate: float = setting(5e-5, "peak rate of one rank", "training")
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear", "how the rate grows with the ranks", "training"
    )
    num_train_epochs: float | None = setting(3.0, "passes over the data", "training")
    num_train_steps: int | None = setting(
        None, "optimizer steps of one rank (divided by the ranks), instead of epochs", "training"
    )
    warmup_proportion: float = setting(0.1, "share of the steps with a rising rate", "training")
    num_warmup_steps: int | None = setting(
        None, "warmup steps of one rank (divided by the ranks), instead of a share", "training"
    )
    seed: int = setting(42, "of initial values, order and dropout", "training", aliases=("random_seed",))
    save_checkpoints_steps: int = setting(1000, "steps between checkpoints", "training")
    keep_checkpoints: int = setting(5, "how many checkpoints are kept", "training")
    resume: str = setting("auto", "auto, never, or the folder of a run to go on from", "training")
    packing: Literal["auto", "off"] = setting(
        "auto", "auto: rows of like length in groups, instead of padding all to the longest of a batch", "training"
    )
    compression: Literal["none", "bf16"] = setting(
        "none", "bf16: gradients travel between machines in 2 bytes a number, for slow networks", "machine"
    )
    overlap: Literal["auto", "off"] = setting(
        "auto", "auto: backends nccl and ring sum gradients while the backward pass computes others", "machine"
    )
    recompute: bool = setting(
        False,
        "keep only the layers' outputs and compute the rest again in the backward pass: less memory",
        "machine",
    )
    xla: Literal["auto", "on", "off"] = setting(
        "auto",
        "on: XLA compiles the gradient as a whole, for at most 4 shapes; auto: on GPUs, where that is faster",
        "machine",
    )
    log_steps: int = setting(25, "steps between lines of metrics.jsonl", "training")


def check_ranges(config: object, at_least_one: Sequence[str]) -> None:
    """Raises ValueError for a flag below 1 among those named and those that all training programs have."""
    for name in (*at_least_one, "save_checkpoints_steps", "keep_checkpoints", "log_steps"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{name} is {value}, needed is at least 1")
    seed = getattr(config, "seed", 0)
    if seed < 0:
        raise ValueError(f"--seed is {seed}, needed is at least 0")


def settings_of(config: TrainingFlags, names: Sequence[str], data_key: str) -> dict[str, object]:
    """What must not change between the parts of a run: the flags `names`, the schedule's, and the data."""
    from distributed.plan import DEFAULT_BATCH_SIZE

    schedule = ("learning_rate", "lr_scaling", "num_train_epochs", "warmup_proportion")
    names = (*names, *schedule, "global_batch_size", "seed")
    batch = config.train_batch_size or (None if config.global_batch_size else DEFAULT_BATCH_SIZE)
    settings = {f"--{name}": getattr(config, name) for name in names}
    # Later flags are settings only where given, so that runs from before them go on.
    later = {"num_train_steps": None, "num_warmup_steps": None, "optimizer": "adamw"}
    settings |= {
        f"--{name}": getattr(config, name) for name, unset in later.items() if getattr(config, name) != unset
    }
    return settings | {"--train_batch_size": batch, "training data (digest)": data_key}


def plan_of(config: TrainingFlags, num_rows: int, size: int) -> "Plan":
    """The plan of these flags for `size` ranks."""
    from distributed.plan import make_plan

    return make_plan(
        num_rows,
        size,
        learning_rate=config.learning_rate,
        epochs=3.0 if config.num_train_epochs is None else config.num_train_epochs,
        train_batch_size=config.train_batch_size,
        global_batch_size=config.global_batch_size,
        accumulation=config.gradient_accumulation_steps,
        warmup_proportion=config.warmup_proportion,
        num_train_steps=config.num_train_steps,
        num_warmup_steps=config.num_warmup_steps,
        lr_scaling=config.lr_scaling,
    )


def make_optimizer(name: str, plan: "Plan") -> "keras.optimizers.Optimizer":
    """AdamWeightDecay or LAMB with BERT's schedule over the steps of the plan."""
    from bert.optimizer import LAMB, AdamWeightDecay, WarmupDecay

    schedule = WarmupDecay(plan.learning_rate, plan.steps, plan.warmup_steps)
    return {"adamw": AdamWeightDecay, "lamb": LAMB}[name](schedule)


def fit(
    config: Any,
    job: "Job",
    begin: Start,
    model: "Bert",
    model_files: ModelFiles,
    feed: "Feed",
    data_key: str,
    *,
    loss: "Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]]",
    settings: dict[str, object],
    loss_terms: Sequence[str] = ("loss",),
    held_out: "HeldOut | None" = None,
    moments: "Path | None" = None,
    anew: Sequence[str] = (),
) -> int:
    """Trains `model` from where `begin` says to the end of the plan; leaves it in `output_dir/model`. Returns the
    steps that the model has been trained for.

    Args:
      config: flags that hold `TrainingFlags`.
      feed: its `collate` has an argument `grouping` too, as `tasks.batches.grouped`.
      loss: see `distributed.train.train`.
      settings: what must not change between the parts of the run, under the flags' names.
      anew: tensors that keep their initial values although the weights that a new run starts from have them.
      moments: a checkpoint whose optimizer's moments a new run starts from.
    With `held_out.best` the model that is left is the one of the best evaluation.
    """
    from bert import weights as files
    from bert.elementwise import effective_rate
    from distributed.checkpoint import Checkpoints, checkpoint_at, set_aside
    from distributed.collectives import compression_told
    from distributed.optimizer import AllreduceOptimizer, broadcast_variables
    from distributed.plan import rate_warning
    from distributed.run import environment
    from distributed.train import train
    from tasks.batches import NUM_GROUPS

    world, run, tokenizer = job.world, job.run, model_files.tokenizer
    plan = plan_of(config, len(feed.rows), world.size)
    run.say(str(plan))
    evaluation = evaluation_of(held_out, plan, feed, run) if held_out else None
    xla = "off" if config.xla == "auto" and world.device == "cpu" else config.xla  # slower there, as measured
    lengths = None if config.packing == "off" else feed.lengths
    layouts = None if xla == "off" else layouts_of(plan, feed.order, lengths, config.max_seq_length)
    if world.rank == 0:
        run.say(padding_of(config.packing, plan, feed, model.compiles, layouts))
    feed = replace(
        feed,
        collate=partial(feed.collate, grouping=NUM_GROUPS[config.packing]),
        collate_fixed=partial(feed.collate, grouping=layouts) if layouts else None,
        lengths=lengths,
    )
    rates = {model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob}
    if model.head_name == "classifier" and model.config.classifier_dropout is not None:
        rates.add(model.config.classifier_dropout)
    if changed := [
        f"{rate} is {effective_rate(rate):.4g}" for rate in sorted(rates) if effective_rate(rate) != rate
    ]:
        run.say(f"dropout by few random bits: {', '.join(changed)}")
    if plan.warmup_steps >= plan.steps:
        run.say(f"warning: the warmup of {plan.warmup_steps:,} steps does not end in {plan.steps:,} steps")
    if model.head_name != "pretraining" and (warning := rate_warning(plan)):
        run.say(warning)
    optimizer = AllreduceOptimizer(
        make_optimizer(config.optimizer, plan),
        model.trainable_variables,
        world,
        job.collectives,
        loss_terms,
        scales_loss=config.precision == "fp16",
        compresses=config.compression == "bf16",
        overlaps=config.overlap == "auto",
    )
    if config.compression != "none" and world.size > 1:
        run.say(compression_told(world, job.collectives))
    model.recomputes = config.recompute
    world.agree(
        {
            "the vocabulary": tokenizer and tokenizer.digest,
            "the data": (data_key, len(feed.rows)),
            "the plan": plan,
            "the start": begin,
            "the tensors": [(name, tuple(v.shape)) for name, v in model.named_tensors().items()],
        }
    )
    checkpoints = Checkpoints(
        run.folder / CHECKPOINTS,
        world,
        lambda: files.copied(model, tokenizer),
        config.keep_checkpoints,
    )

    def restore() -> None:
        new = () if begin.state else files.HEAD_TENSORS[model.head_name]
        if begin.weights is None:
            run.say(f"weights: initial values, seed {config.seed}: training from scratch")
            return
        initial = {} if begin.state else {name: model.named_tensors()[name].numpy() for name in anew}
        run.say(f"weights: {files.load(model, begin.weights, new=new)} ({begin.why})")
        for name, value in initial.items():
            model.named_tensors()[name].assign(value)
        if begin.checkpoint:
            checkpoints.restore(begin.checkpoint, optimizer)
        elif moments:
            checkpoints.restore(moments, optimizer)
            optimizer.optimizer.iterations.assign(0)  # the schedule is the new run's
            run.say(f"moments: {moments}")

    world.on_first(restore)
    optimizer.broadcast_variables()
    optimizer.check_replicas()
    state = begin.state and replace(begin.state, step=resumed_step(begin.state, plan))
    if begin.state and state:
        if state.step != begin.state.step:  # other ranks, other steps: the schedule goes on at the same progress
            optimizer.optimizer.iterations.assign(state.step)
        run.rewind_metrics(state.position)
    else:
        run.remove("metrics.jsonl")
    goes_on_here = begin.checkpoint is not None and begin.checkpoint.parent == checkpoints.folder
    if state and not goes_on_here:
        state = replace(state, evaluations=[])  # the best checkpoint is in the other folder
    if not goes_on_here and (aside := world.on_first(set_aside, checkpoints.folder)):
        run.say(f"the checkpoints of the run before are kept in {aside}")
    if state is None or (state.step < plan.steps and not (evaluation and evaluation.stops(state))):
        told = {"config": asdict(config), "plan": asdict(plan), "start": begin.why, "environment": environment()}
        run.write_json("run.json", told)
    try:
        state = train(
            world,
            optimizer,
            plan,
            feed,
            run,
            checkpoints,
            loss=loss,
            seed=config.seed,
            settings=settings,
            start=state,
            save_every=config.save_checkpoints_steps,
            log_every=config.log_steps,
            evaluation=evaluation,
            xla=xla,
        )
    finally:
        checkpoints.close()
    steps = state.step
    if evaluation and evaluation.best and state.best and state.best[0] != state.position:
        position, score = state.best
        steps = position // plan.global_batch_size
        best = world.on_first(checkpoint_at, checkpoints.folder, position)
        run.say(f"the best checkpoint: {best.name}, {evaluation.best} {score:.4f}")
        world.on_first(files.load, model, best)
        broadcast_variables(model.trainable_variables, job.collectives)
    world.on_first(run.replace_folder, "model", lambda folder: files.save(model, folder, tokenizer))
    return steps


def write_eval_results(run: "Run", scores: Mapping[str, float], loss: float, steps: int | None) -> None:
    """eval_results.txt as Google's run_classifier.py and run_pretraining.py write it: also `global_step`, where it
    is known, and `loss`."""
    found = {**scores, "loss": loss} | ({} if steps is None else {"global_step": steps})
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(found.items())))


def load_for_prediction(job: "Job", begin: Start, model: "Bert") -> None:
    """Gives every rank the trained weights that `begin` names. Raises InputError when there are none."""
    from bert import weights
    from distributed.optimizer import broadcast_variables

    source = begin.weights
    if source is None:
        raise InputError(
            "without --do_train weights are needed: --init_checkpoint, --model, or a trained run's --output_dir"
        )
    job.world.on_first(lambda: job.run.say(f"weights: {weights.load(model, source)}"))
    broadcast_variables(model.trainable_variables, job.collectives)
