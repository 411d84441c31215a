"""Training, shared by all programs: plan, feed, step, weights, checkpoints, saving the model."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert import weights
from bert.batch import Layouts, by_length, in_one_group, rounded_up, with_checked_ids
from bert.kernels import ON_CUDNN, Kernels
from bert.model import Bert, Stage, Tracing, no_stage
from bert.optimizers.choose import make_optimizer
from bert.optimizers.layers import PartRate
from bert.optimizers.rate import RateSchedule
from bert.trained_words import AllWords, TrainedWords
from distributed.checkpoint import Checkpoints, SavedOptimizer
from distributed.fit import fit
from distributed.found import CHECKPOINTS, checkpoint_at, checkpoints_in
from distributed.gradient import (
    Compile,
    Gradient,
    Loss,
    LossGradient,
    by_xla,
    graphs_as_traced,
    traced_once,
)
from distributed.joint import JointGradient, Passes
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.order import balanced, micro_batches_of
from distributed.plan import Plan, State, first_state, make_plan, rate_warning
from distributed.rows import Batch, BatchRows, Feed, Rows
from distributed.run import Run
from distributed.step import LayeredStep, SplitStep, TrainingStep, WholeStep
from distributed.train import HeldOut, is_finished
from ringbase.errors import InputError
from ringbase.files import sha256, write_json
from ringbase.secrets import masked
from tasks.runs import history
from tasks.runs.environment import result_file
from tasks.runs.execute.attention import why_not_cudnn
from tasks.runs.execute.facts import facts_of
from tasks.runs.execute.job import Job
from tasks.runs.execute.loading import SavedModel, load_on_all
from tasks.runs.execute.whole import why_not_whole
from tasks.runs.history import TRAINING, History, began_here, files_of
from tasks.runs.resolve.command import DATA, Stream, is_lengthened, schedule_of
from tasks.runs.resolve.past import MODEL, RUN_FILE, TASK_FILE
from tasks.runs.resolve.spec import RunSpec, Start
from tasks.runs.resolve.start import WEIGHTS
from tasks.runs.settings import TrainingSettings
from tasks.runs.task import Trainable
from tasks.runs.trackers import IDS

STEPS_OF_LAYOUTS = 256  # sampled to choose the shapes for XLA
# Steps of a training in which, on GPUs, several shapes earn back the time to compile them: about a
# minute each for BERT-base on an H200, whose steps of 32 windows they make 10 ms shorter, by
# prediction. Most GPUs are slower.
SEVERAL_SHAPES_FROM = 2000
# steps after which, on CPUs, an optimized graph has earned back its slower start
OPTIMIZED_FROM = 1000
# what a run may leave in its folder besides the files that its starts remember
OF_A_RUN: tuple[str, ...] = (CHECKPOINTS, MODEL, RUN_FILE, history.FILE)
OF_A_RUN += ("metrics.jsonl", "step_times.json", "profile", "report.html", "tensorboard", IDS)
OF_A_RUN += ("result.json", "predict_result.json", "eval_results.txt", "predictions*")
OF_A_RUN += ("nbest_predictions.json", "null_odds.json", "*mistakes*.jsonl", "test_results.tsv")


class TrainingData(NamedTuple):
    """The rows that a run trains on."""

    rows: BatchRows
    key: str  # a digest of the data, the same on all ranks
    # by flag: must not change when a run is resumed
    settings: Mapping = {}
    commit: str | None = None  # the hub's, of its data set
    stream: Stream = Stream()  # the order of the rows, and what changes along the training


class Trained(NamedTuple):
    """The model that a training has saved: what result.json says of it."""

    steps: int  # that it was trained for
    sha256: str  # of its weights


def fixed_settings(data: TrainingData, config: TrainingSettings, seed: int) -> dict[str, Any]:
    """What must not change when a training goes on, by name."""
    settings = {f"--{name}": value for name, value in data.settings.items()}
    return {**settings, **schedule_of(config, seed), DATA: data.key, **data.stream.fixed()}


def set_former_run_aside(run: Run, history: History) -> None:
    """Moves what another training, or predictions of another model, have left in the folder of a
    new training into a folder of its own."""

    def move() -> Path | None:
        remembered = files_of(history.entries)
        if not (remembered or checkpoints_in(run.folder / CHECKPOINTS)):
            return None
        # a start that was broken off has remembered nothing
        found = itertools.chain(*(run.folder.glob(pattern) for pattern in OF_A_RUN))
        return run.set_aside(sorted(remembered.union(path.name for path in found)))

    aside = history.world.on_first(move)
    if aside:
        run.say(f"what the previous run left is kept in {aside}")
        history.entries.clear()
        history.world.on_first(run.publish)


class Trainer:
    """The training of a model on rows, which is traced and compiled once for runs with any
    seeds."""

    def __init__(
        self, model: Bert, task: Trainable, data: TrainingData, config: TrainingSettings, job: Job
    ):
        """Raises InputError: no step is left to train."""
        self.model, self._task, self._data, self._config = model, task, data, config
        world, loop = job.world, config.loop
        self._world = world
        self._plan = make_plan(config.plan.resolved(), len(data.rows), world.ranks.launched_size)
        if task.joint and self._plan.global_batch_size < 2:
            raise InputError(
                "--train_batch_size 1: a pair needs others in its global batch, which are its"
                " negatives"
            )
        has_fixed_shapes = loop.xla == "on" or (loop.xla == "auto" and world.device.is_gpu)
        self._layouts = self._few_shapes() if has_fixed_shapes else None
        is_optimized = world.device.is_gpu or self._plan.steps >= OPTIMIZED_FROM
        self.attention_note = ""  # what to tell of --attention cudnn, if it is given
        in_xla = self._cudnn() if config.step.attention == "cudnn" else None
        tracing = Tracing(config.step.recompute, copies_layers=is_optimized, in_xla=in_xla)
        num_layers = model.config.num_hidden_layers
        frozen = {
            name for name in model.named_tensors() if config.layers.is_frozen(name, num_layers)
        }
        self.words = AllWords(model, tracing, frozen)
        if not self.words.variables:
            raise InputError(
                f"--freeze {config.layers.freeze} leaves nothing to train: this model has no"
                " tensors above its encoder"
            )
        # where neither the head's scores need all words, nor LAMB their norm
        may_be_few = not (frozen or model.head.reads_words or config.optimizer == "lamb")
        if may_be_few and isinstance(data.rows, Rows):  # rows in memory
            self.words = TrainedWords(model, data.rows.column("input_ids")[0], tracing)
        self._optimizer = self._all_reduce_optimizer(job)
        self.step = self._training_step(job, is_optimized)

    @property
    def plan(self) -> Plan:
        """For the ranks that there are: after a death the survivors take the steps of all."""
        return self._plan.on_ranks(self._world.size)

    def feed(self, seed: int) -> Feed:
        """The rows in the order of this seed. With `--packing auto` a step's rows are divided by
        their tokens and grouped by length."""
        rows = self._data.rows
        make_batch = self._task.batch
        is_packed = self._config.step.packing != "off"
        lengths = partial(rows.lengths_at, "input_ids") if is_packed else np.ones_like
        checked = with_checked_ids(make_batch, self.model.config)
        grouping = self._layouts or (by_length if is_packed else in_one_group)
        single = self._layouts.single() if self._layouts else ()
        collates_of_shapes = [partial(make_batch, grouping=layout) for layout in single]
        order = self._data.stream.order(len(rows), seed)
        return Feed(
            rows=rows,
            order=order,
            collate=partial(checked, grouping=grouping),
            lengths=lengths,
            collates_of_shapes=collates_of_shapes,
        )

    def run(
        self, spec: RunSpec, job: Job, history: History, held_out: HeldOut | None = None
    ) -> "Trained":
        """Trains from the start of a run to the end of the plan and saves the model in the folder
        `model` of the job's run. With `held_out.best` it is that of the best evaluation.

        Raises InputError: gradients stay non-finite, or memory runs out.
        """
        world, run, start, seed = self._world, job.run, spec.start, spec.seed
        plan, loop = self.plan, self._config.loop
        folder = run.folder / CHECKPOINTS
        continues = start.checkpoint is not None and start.checkpoint.parent == folder
        fixed = fixed_settings(self._data, self._config, seed)
        state = self._first_state(start, fixed, continues, held_out, run)
        is_at_end = is_finished(state, held_out)  # only its model was not saved
        self._announce(job, plan, state.step, held_out)
        if not (continues or began_here(history.entries)):
            set_former_run_aside(run, history)
        run.remove(result_file(trains=True))
        feed = self.feed(seed)
        saved_model = SavedModel(self.model, start, run.say)
        parts = saved_model, SavedOptimizer(self.step.optimizer)
        keeps = self._stable_until()
        with closing(Checkpoints(folder, world, parts, loop, run.publish, keeps)) as checkpoints:
            self._take_values(start, run, seed, checkpoints, state)
            if is_at_end:
                history.begin("evaluation", start.reason, state.step)
            else:
                history.begin(TRAINING, start.reason, state.step, spec.changed)
                run.remove(result_file(trains=False))  # of an older model
                self._describe(spec, job, plan, fixed)
                if self._layouts:
                    self._compile([*feed.batches_of_shapes()], run)
            world.stops.from_now_on("finishing what it does, which the next start need not repeat")
            state = fit(self.step, feed, plan, checkpoints, run, loop, state, held_out)
        steps = state.step
        if held_out and held_out.best and state.best:
            position, score = state.best
            if position != state.position:
                steps = position // plan.global_batch_size
                path, _ = world.on_first(checkpoint_at, folder, position)
                run.say(f"the best checkpoint: {path.name}, {held_out.best} {score:.4f}")
                load_on_all(self.model, path, world, run)
        digest = world.on_first(self._save, start, run)
        return Trained(steps, digest)

    def _first_state(
        self,
        start: Start,
        fixed: Mapping,
        continues: bool,
        held_out: HeldOut | None,
        run: Run,
    ) -> State:
        """Where the training begins. Scores of other held-out data, or of another metric, say
        nothing about which model is the best."""
        longer = start.state is not None and is_lengthened(start, self._config)
        state = first_state(self.plan, dict(fixed), start.state, continues, longer)
        if held_out is None:
            return state
        before = state.evaluations
        state = state.for_evaluations(held_out.key)
        if before and not state.evaluations:
            run.say(
                f"note: the dev set or the metric is not that of before: the {len(before)} scores"
                " so far do not choose the best model"
            )
        return state

    def _announce(self, job: Job, plan: Plan, step: int, held_out: HeldOut | None) -> None:
        """Says the plan and the first step, and makes sure that all ranks have the same."""
        for line in (str(plan), *self._data.stream.in_words(plan)):
            job.run.say(line)
        recipe = [f"--{name} {value}" for name, value in self._config.recipe().items()]
        if recipe:
            job.run.say(f"recipe: {', '.join(recipe)}")
        rates = self._rates_of_parts()
        if rates:
            peaks = [f"{rate.part} {rate.factor * plan.learning_rate:.3g}" for rate in rates]
            job.run.say(f"peak learning rates: {', '.join(peaks)}")
        if self.words.read and self._config.layers.freeze:
            numbers = [math.prod(each.shape) for each in self.words.variables]
            of_all = sum(math.prod(each.shape) for each in self.model.trainable_variables)
            job.run.say(
                f"--freeze {self._config.layers.freeze}: {sum(numbers):,} of {of_all:,} numbers are"
                " trained"
            )
        if step:
            job.run.say(f"continues at step {step:,} of {plan.steps:,}")
        self._say_warnings(job, plan, held_out)
        shapes = []
        for name, tensor in self.model.named_tensors().items():
            shapes.append((name, tuple(tensor.shape)))
        data = self._data.key, len(self._data.rows)
        self._world.agree({"the data": data, "the plan": plan, "the tensors": shapes})

    def _take_values(
        self, start: Start, run: Run, seed: int, checkpoints: Checkpoints, state: State
    ) -> None:
        """Gives model and optimizer the values that a training begins with."""
        self.step.begin(seed)
        self.model.initialize(
            seed, needs=lambda name: start.weights is None or self._is_new(name, start)
        )
        self._world.on_first(self._load, start, run, seed, checkpoints)
        # those that the run only reads; `TrainingStep.synchronize` sends the others
        broadcast_variables(self.words.read, self._world)
        self.words.take()
        # the schedule follows the progress
        if start.state is None or state.step != start.state.step:
            self._optimizer.optimizer.begin_at(state.step)

    def _few_shapes(self) -> Layouts:
        """The few shapes of micro-batches that XLA compiles, chosen from a sample of the steps. A
        short training has one shape unless --xla is on, with rows as long as the longest, and so
        has one without packing."""
        rows, plan = self._data.rows, self.plan
        is_short = self._config.loop.xla == "auto" and plan.steps < SEVERAL_SHAPES_FROM
        sample = []  # the lengths in each micro-batch of some steps
        if self._config.step.packing != "off" and not is_short:
            order = self._data.stream.order(len(rows), self._config.loop.seed)
            num_steps = min(plan.steps, STEPS_OF_LAYOUTS)
            steps = np.linspace(0, plan.steps, num_steps, endpoint=False).astype(int)
            for position in (steps * plan.global_batch_size).tolist():
                numbers = order.rows_at(position, position + plan.global_batch_size)
                lengths = rows.lengths_at("input_ids", numbers)
                for own in balanced(lengths, plan.size):
                    for places in micro_batches_of(own, lengths, plan.accumulation):
                        sample.append(self._task.lengths(rows, numbers[places]))
        # after deaths a micro-batch may have more rows
        plans = [self._plan.on_ranks(size) for size in range(1, plan.size + 1)]
        fewest_batches = min(plan.size * plan.accumulation for plan in plans)
        most_rows = math.ceil(plan.global_batch_size / fewest_batches)
        return Layouts(sample, most_rows * self._task.texts_per_row, self._longest_row())

    def _longest_row(self) -> int:
        """The most tokens of a row of attention in this training."""
        rows = self._data.rows
        if not isinstance(rows, Rows):  # telling would take too long
            return self._task.max_seq_length
        return int(self._task.lengths(rows, np.arange(len(rows))).max())

    def _cudnn(self) -> Kernels | None:
        """Those with cuDNN's attention, if it may be used."""
        reason = why_not_cudnn(self.model, self._world, self._layouts is not None)
        if reason:
            self.attention_note = f"note: --attention cudnn changes nothing: {reason}"
            return None
        self.attention_note = "attention: cuDNN's, whose values were those of bert/ops.py on trial"
        return ON_CUDNN

    def _all_reduce_optimizer(self, job: Job) -> AllreduceOptimizer:
        """The optimizer with the plan's schedule."""
        config, plan = self._config, self._plan
        schedule = RateSchedule(
            plan.learning_rate,
            plan.steps,
            plan.warmup_steps,
            config.rate.lr_scheduler_type,
            plan.decay_steps,
            config.rate.form,
        )
        rates = self._rates_of_parts()
        return AllreduceOptimizer(
            make_optimizer(config.optimizer, schedule, config.optimization, rates),
            self.words.variables,
            job.world,
            job.collectives,
            scales_loss=self.model.compute_dtype == "float16",
            compression=config.step.compression,
            clip_norm=config.optimization.max_grad_norm,
        )

    def _rates_of_parts(self) -> tuple[PartRate, ...]:
        """Which factor of the schedule's rate each part has; none if all have the same."""
        layers, num_layers = self._config.layers, self.model.config.num_hidden_layers
        return layers.rates(num_layers, self._config.plan.learning_rate)

    def _is_new(self, name: str, start: Start) -> bool:
        """Whether a tensor keeps its initial values, although the weights of the start have it."""
        num_layers = self.model.config.num_hidden_layers
        is_again = start.state is None and self._config.layers.is_new(name, num_layers)
        return is_again or name in start.fresh_tensors

    def _stable_until(self) -> int | None:
        """The position before the rate falls at the end, from which a longer training can go on."""
        plan = self.plan
        if self._config.rate.lr_scheduler_type != "wsd":
            return None
        return (plan.steps - plan.decay_steps) * plan.global_batch_size

    def _training_step(self, job: Job, is_optimized: bool) -> TrainingStep:
        """The step, compiled as the device and the length of the training need it."""
        job.run.say("building the training step: the first step takes longer")
        others = self._optimizer, self.words.write_back
        if self._config.loop.step == "whole":
            reason = why_not_whole(self._task, job, self._layouts is not None)
            if reason:
                raise InputError(f"--step whole cannot be: {reason}")
            if job.world.size > 1:
                return self._layered_step(by_xla if self._layouts else traced_once)
        if self._layouts is None:
            calling = nullcontext if is_optimized else graphs_as_traced
            return SplitStep(self._gradient(traced_once), *others, calling=calling)
        gradient = self._gradient(by_xla)
        is_alone_on_gpu = job.world.device.is_gpu and job.world.size == 1
        if is_alone_on_gpu and isinstance(gradient, LossGradient):
            return WholeStep(gradient, *others)
        return SplitStep(gradient, *others)

    def _layered_step(self, compiled: Compile) -> TrainingStep:
        """The step with its sums inside, for `--step whole`."""
        words = self.words
        gradient = self._loss_gradient(compiled)
        others = self._optimizer, words.write_back
        return LayeredStep(gradient, self._loss, words.names, *others, compiled=compiled)

    def _gradient(self, compiled: Compile) -> Gradient:
        """That of the task's loss."""
        task = self._task
        if task.joint:
            joint_loss, texts_of = task.joint
            passes = Passes(self._outputs(no_stage), self.words.variables, compiled)
            return JointGradient(joint_loss, passes, texts_of, task.weights, self._world)
        return self._loss_gradient(compiled)

    def _loss_gradient(self, compiled: Compile) -> LossGradient:
        """That of a loss which is a sum over rows."""
        task = self._task
        loss = self._loss(no_stage)
        return LossGradient(loss, task.weights, task.terms, self.words.variables, compiled)

    def _loss(self, stage: Stage) -> Loss:
        """The loss of a batch, with a stage before each layer."""
        outputs = self._outputs(stage)
        return lambda batch, key: self._task.loss(outputs(batch, key), batch)

    def _outputs(self, stage: Stage) -> Callable[[dict, tf.Tensor], Any]:
        """The scores of a batch with a dropout key, and a stage before each layer."""
        scores = self.words.scores
        longest = rounded_up(self._longest_row())
        return lambda batch, key: scores(batch | {"longest": longest}, key, stage)

    def _compile(self, batches_of_shapes: Sequence[Batch], run: Run) -> None:
        """Lets XLA compile the step for these batches, one of each shape."""
        count = len(batches_of_shapes)
        run.say(
            f"XLA compiles the step for {count} shape{'s' * (count > 1)} of batches; for BERT-base"
            " on an H200 each took about a minute"
        )

        def compile_all() -> None:
            with run.progress(count, "compiling", "shape") as bar:
                for batch in batches_of_shapes:
                    checks = self._config.loop.check_steps > 0
                    self.step.compile(batch, self.plan.accumulation, checks)
                    bar.update()

        # XLA keeps the kernels that it has found by trying (`tuning_folder`)
        if self._world.device.is_gpu and self._world.size > 1 and self.step.compiles_alone:
            self._world.first_here_first(compile_all)
        else:
            compile_all()

    def _load(self, start: Start, run: Run, seed: int, checkpoints: Checkpoints) -> None:
        """Loads the weights and moments that a run starts from. On rank 0."""
        model = self.model
        tensors = self.model.named_tensors()
        if start.weights is None:
            run.say(f"weights: initial values, seed {seed}: training from scratch")
            return
        if start.checkpoint:
            checkpoints.restore(start.checkpoint)
            return
        # a model that has been trained already has all tensors of its head
        is_new = start.state is None
        names = [name for name in tensors if is_new and self._is_new(name, start)]
        fresh = {name: tensors[name].numpy() for name in names}
        new = model.head.shapes(model.config) if is_new else ()
        loaded = weights.load(model, start.weights, new=new)
        run.say(f"weights: {loaded} ({start.reason})")
        for name, value in fresh.items():
            tensors[name].assign(value)
        if is_new and self._config.layers.reinit_layers:
            count = sum(self._is_new(name, start) for name in tensors)
            run.say(f"initial values: {count} tensors of pooler and top layers")
        if start.moments:
            SavedOptimizer(self._optimizer).restore(start.moments)
            run.say(f"moments: {start.moments}")

    def _describe(self, spec: RunSpec, job: Job, plan: Plan, fixed: Mapping) -> None:
        """Writes run.json."""
        facts = {
            **facts_of(spec, job, self._task),
            "fixed": fixed,
            "plan": asdict(plan),
            "hub_commits": {"model": spec.start.commit, "data_set": self._data.commit},
        }
        if spec.start.origin:
            facts["origin"] = spec.start.origin
        if stream := self._data.stream.facts(plan):
            facts["stream"] = stream
        job.run.write_json(RUN_FILE, masked(facts))
        job.run.begin(job.config)

    def _save(self, start: Start, run: Run) -> str:
        """Writes the folder `model` of the run. Returns the SHA-256 of its weights. On rank 0."""

        def fill(folder):
            weights.copied(self.model, start.tokenizer)(folder)
            files = {TASK_FILE: self._task.settings}
            files |= self._task.files(self.model.config.hidden_size)
            for name, value in files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_json(folder / name, value)

        run.replace_folder(MODEL, fill)
        return sha256(run.folder / MODEL / WEIGHTS)

    def _say_warnings(self, job: Job, plan: Plan, held_out: HeldOut | None) -> None:
        """Warns of surprising plans."""
        say = job.run.say
        # by which `make_plan` has divided, also if a rank has died since
        size = self._world.ranks.launched_size
        if size > 1 and self._config.plan.global_batch_size is None:
            of_one = plan.global_batch_size // size
            say(
                f"note: {plan.steps_of_one:,} steps of one rank are {plan.steps:,} here, with"
                f" {size} times the rows; --global_batch_size {of_one} keeps one rank's steps and"
                " rate"
            )
        if plan.warmup_steps >= plan.steps:
            say(
                f"warning: the warmup of {plan.warmup_steps:,} steps does not end before the"
                f" training, which has {plan.steps:,}"
            )
        warning = None if self._task.head.reads_words else rate_warning(plan)
        if warning:
            say(warning)
        if self.attention_note:
            say(self.attention_note)
        sends_less = job.collectives.compresses or isinstance(self.step, LayeredStep)
        if self._config.step.compression != "none" and not sends_less:
            say(
                "note: --compression changes nothing with the backend"
                f" {job.collectives.name} on these machines"
            )
        if held_out:
            every = held_out.interval(plan)
            count = math.ceil(plan.steps / every)
            say(f"evaluation every {every:,} steps, {count:,} in all")
            patience = held_out.patience
            if patience is not None and count <= patience + 1:  # only after the last one
                say(
                    f"warning: with {count} evaluations --early_stopping_patience {patience} never"
                    " stops early"
                )
