"""Whether training is right: small models against NumPy, N ranks against one, a resumed run against a whole."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert import weights
from distributed.checkpoint import Checkpoints
from distributed.collectives import Collectives
from distributed.collectives.local import LocalCollectives
from distributed.doctor.examination import Finding, failed, not_tested, ok
from distributed.state import State
from distributed.world import World
from tasks.doctor import reference
from tasks.doctor.trial import HEADS, SEED, Trial, Xla, small_model, windows
from tasks.squad.program import collate, span_loss

BATCH = 8
# How far loss and gradient may be from float64's, as a share: several times what was measured (docs/machines.md).
TOLERANCES = {"fp32": 1e-5, "bf16": 6e-2, "fp16": 8e-3}
LOSS_TOLERANCES = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 2e-3}
SLOPE_TOLERANCE = 1e-4  # of float32's gradient along a direction, from NumPy's differences in float64
WEIGHTS_TOLERANCE = 1e-3  # of the largest change: sums in another order, after two steps of Adam
WRONG = (
    "training cannot be right here: update the driver and TensorFlow with its CUDA libraries, try another GPU, "
    "--device cpu or another --precision, and report it with this page"
)


class Truth:
    """The checks of one device; the reference is computed once."""

    def __init__(self) -> None:
        self.loss, self.gradient = 0.0, dict[str, np.ndarray]()

    def check_reference(self, world: World) -> Finding:
        """The plain float32 path on the CPU against NumPy in float64: the loss, and the gradient in three
        directions."""
        examples = windows(2 * BATCH)
        trial = Trial(alone(world), LocalCollectives(), global_batch=BATCH)
        rows = trial.feed.order.rows_at(0, BATCH)
        chosen = [examples[row] for row in rows]
        with tf.device("/CPU:0"):
            model = small_model("fp32")
            batch = tf.nest.map_structure(tf.constant, collate(trial.feed.rows.take(rows)))
            with tf.GradientTape() as tape:
                loss = span_loss(model(batch), batch) / BATCH
            variables = [variable.value for variable in model.trainable_variables]
            gradients = tape.gradient(loss, variables)
        names = model.named_tensors()
        self.loss = float(loss)
        self.gradient = {
            name: tf.convert_to_tensor(part).numpy().astype(np.float64)
            for name, part in zip(names, gradients, strict=True)
        }
        tensors = {name: variable.numpy().astype(np.float64) for name, variable in names.items()}
        exact = reference.mean_loss(tensors, chosen, HEADS)
        loss_error = abs(self.loss - exact) / exact
        error = max(self._slope_error(tensors, chosen, seed) for seed in range(3))
        text = f"loss {self.loss:.6f}, error {loss_error:.1e}; gradient along 3 directions, error {error:.1e}"
        if loss_error > LOSS_TOLERANCES["fp32"] or error > SLOPE_TOLERANCE:
            return failed(f"{text}: too large", "this CPU, or TensorFlow's build for it, computes wrongly")
        return ok(text)

    def _slope_error(self, tensors: dict[str, np.ndarray], examples: list, seed: int) -> float:
        """How far the gradient is from the slope along a direction: its own for seed 0, else near it at random."""
        generator = np.random.default_rng(seed)
        size, total = norm(self.gradient), sum(part.size for part in self.gradient.values())
        noise = (seed > 0) / np.sqrt(total)
        direction = {
            name: part / size + noise * generator.standard_normal(part.shape)
            for name, part in self.gradient.items()
        }
        expected = sum(float(np.sum(part * direction[name])) for name, part in self.gradient.items())
        return abs(reference.slope(tensors, direction, examples, HEADS) - expected) / abs(expected)

    def check_precision(self, world: World, precision: str, xla: Xla) -> Finding:
        """Loss and gradient of the compiled model on this rank's device against the CPU's plain float32."""
        if not world.device.is_gpu and (precision, xla) == ("fp16", "gradient"):
            return not_tested("fp16 is for GPUs")
        trial = Trial(alone(world), LocalCollectives(), small_model(precision), xla, global_batch=BATCH)
        loss, gradient = trial.first_gradient()
        loss_error = abs(loss - self.loss) / self.loss
        error = norm({name: gradient[name] - part for name, part in self.gradient.items()}) / norm(self.gradient)
        device = world.device.kind.upper()
        text = f"{device} against plain float32: loss error {loss_error:.1e}, gradient error {error:.1e}"
        details = {"loss_error": loss_error, "gradient_error": error}
        if not (loss_error <= LOSS_TOLERANCES[precision] and error <= TOLERANCES[precision]):
            limit = f"{LOSS_TOLERANCES[precision]:g} and {TOLERANCES[precision]:g}"
            return failed(f"{text}: must be at most {limit}", WRONG, **details)
        return ok(text, **details)


def on_request(finding: Finding, flag: str) -> Finding:
    """A failure of what no training uses unless the user asks for it is a warning."""
    if finding.status != "failed":
        return finding
    return replace(finding, status="warning", advice=f"do not give {flag} here")


def check_ranks(world: World, collectives: Collectives) -> Finding:
    """Two steps of all ranks against two steps that each rank takes alone, on the same global batches."""
    if world.size == 1:
        return not_tested("there is one rank")
    batch = max(BATCH, 2 * world.size)
    together = Trial(world, collectives, global_batch=batch)
    together.optimizer.broadcast_variables()
    before = together.weights()
    together.train(0, 2)
    together.optimizer.check_replicas()
    single = Trial(alone(world), LocalCollectives(), global_batch=batch)
    single.train(0, 2)
    return compared(
        together.weights(), single.weights(), before, f"{world.size} ranks and one rank, 2 steps of {batch} rows"
    )


def check_whole_step(world: World) -> Finding:
    """Two steps whose gradient and update are one compiled function against two plain steps."""
    if not world.device.is_gpu:
        return not_tested("on CPUs gradient and update are compiled separately")
    plain = Trial(alone(world), LocalCollectives(), global_batch=BATCH)
    compiled = Trial(alone(world), LocalCollectives(), xla="step", global_batch=BATCH)
    before = plain.weights()
    for trial in (compiled, plain):
        trial.train(0, 2)
    return compared(compiled.weights(), plain.weights(), before, "XLA's whole step and plain operations, 2 steps")


def check_sum_in_step(world: World, collectives: Collectives) -> Finding:
    """Two steps of which the sum over ranks is a compiled part, on request, against two with the sum after it."""
    if world.size == 1 or not collectives.in_graph:
        return not_tested("sums inside XLA are for several ranks with the backend nccl")
    batch = max(BATCH, 2 * world.size)
    inside, after = (Trial(world, collectives, xla=xla, global_batch=batch) for xla in ("step", "off"))
    before = after.weights()
    for trial in (inside, after):
        trial.optimizer.broadcast_variables()
        trial.train(0, 2)
        trial.optimizer.check_replicas()
    text = "the sum inside XLA and after the backward pass, 2 steps"
    return on_request(compared(inside.weights(), after.weights(), before, text), "--xla on")


def check_resume(world: World, collectives: Collectives, folder: Path) -> Finding:
    """Four steps against two, a checkpoint, and two more from it by a new model."""
    whole = Trial(world, collectives, global_batch=max(BATCH, 2 * world.size))
    whole.optimizer.broadcast_variables()
    before = whole.weights()
    whole.train(0, 2)
    place = Path(world.on_first(lambda: tempfile.mkdtemp(prefix=".bert-doctor.", dir=existing(folder))))
    try:
        checkpoints = Checkpoints(place, world, lambda: weights.copied(whole.model))
        state = State(2 * whole.global_batch, 2, 4, whole.global_batch, {})
        checkpoints.save(whole.optimizer, state)
        checkpoints.finish()
        checkpoints.close()
        whole.train(2, 4)
        other = small_model("fp32", seed=SEED + 1)
        resumed = Trial(world, collectives, other, global_batch=whole.global_batch)
        world.on_first(restore, resumed, checkpoints)
        resumed.optimizer.broadcast_variables()
        resumed.train(2, 4)
    finally:
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
    text = "4 steps, and 2 steps, a checkpoint and 2 more"
    if not world.device.is_gpu and not np.array_equal(whole.weights(), resumed.weights()):
        return failed(
            f"{text}: not the same bits", "a resumed run would differ: check disk and memory of this host"
        )
    return compared(whole.weights(), resumed.weights(), before, text)


def restore(trial: Trial, checkpoints: Checkpoints) -> None:
    (path,) = checkpoints.folder.glob("rows-*")
    weights.load(trial.model, path)
    checkpoints.restore(path, trial.optimizer)


def compared(ours: np.ndarray, theirs: np.ndarray, before: np.ndarray, what: str) -> Finding:
    """Whether two trainings from the same start end with the same weights, to rounding."""
    if np.array_equal(ours, theirs):
        return ok(f"{what}: the same bits", difference=0.0)
    difference = float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs - before)))
    text = f"{what}: weights differ by {difference:.1e} of the largest change"
    if not difference <= WEIGHTS_TOLERANCE:
        return failed(f"{text}, must be at most {WEIGHTS_TOLERANCE:g}", WRONG, difference=difference)
    return ok(text, difference=difference)


def alone(world: World) -> World:
    """This rank as if there were no others."""
    return replace(world, comm=None, rank=0, size=1, local_rank=0, local_size=1, node=0, num_nodes=1)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def norm(parts: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(part)) for part in parts.values())))
