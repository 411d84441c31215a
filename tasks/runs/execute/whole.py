"""Whether a training can take `--step whole` (distributed/layer_sums.py)."""

from tasks.runs.execute.job import Job
from tasks.runs.task import Trainable


def why_not_whole(task: Trainable, job: Job, has_fixed_shapes: bool) -> str:
    """What keeps a training from it; "" if nothing does, the same on every rank.
    `has_fixed_shapes`: whether XLA compiles the training's steps."""
    world, collectives = job.world, job.collectives
    if task.joint:
        return (
            "the loss joins the rows of all ranks amid the step, which no compiled function waits"
            " for"
        )
    if world.ranks.is_elastic:
        return "with --elastic, MPI alone can go on without a rank"
    if world.size == 1:
        is_compiled = has_fixed_shapes and world.device.is_gpu
        return "" if is_compiled else "one rank needs a GPU, and XLA, for it"
    if not collectives.in_graph:
        return (
            f"no compiled function holds the sums of --backend {collectives.name}: it needs nccl,"
            " and for each rank a GPU of its own"
        )
    if has_fixed_shapes and not collectives.in_xla:
        return f"XLA compiles no sums of --backend {collectives.name}: add --xla off"
    if collectives.in_xla and not has_fixed_shapes:
        return f"with --backend {collectives.name} it needs XLA, which --xla off turns off"
    return ""
