"""What the files of a run say of it: of a training run.json, else `RUN` of predict_result.json."""

from typing import Any

from distributed.versions import environment
from ringbase.secrets import masked
from tasks.runs.execute.job import Job
from tasks.runs.resolve.spec import RunSpec, digest_of
from tasks.runs.rows.memory import described
from tasks.runs.task import Trainable


def facts_of(spec: RunSpec, job: Job, task: Trainable) -> dict[str, Any]:
    """The facts of a run, whatever it does."""
    facts = {
        "config": job.config,
        "spec": digest_of(spec),
        "describes": spec.describes,
        "start": spec.start.reason,
        "metric": task.metric,
        "head": task.head.name,
        "environment": environment(),
    }
    if in_memory := described(job.config):
        facts["in_memory"] = in_memory
    return masked(facts)
