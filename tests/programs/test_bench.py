"""bert-bench: the figures of a step add up; soak/rivals runs its other measurements."""

from types import SimpleNamespace

import pytest
from harness.jobs import shell
from harness.program_runs import command, refusal

from benchmarks import scaling
from ringbase.errors import InputError
from ringbase.files import read_json
from ringbase.settings import made
from tasks.bench.settings import LoadSettings
from tasks.bench.step import config_of, steps_per_s


@pytest.mark.slow
def test_the_figures_of_a_step_on_two_ranks(tmp_path):
    flags = ("--model_size=tiny", "--batch_size=2", "--seq_length=32", "--num_warmup=1")
    flags += ("--num_steps=3", "--device=cpu", f"--output_file={tmp_path}/figures")
    flags += ("--attention=cudnn",)
    printed = shell(*command("tasks.bench", "step", *flags, ranks=2)).stderr
    figures = read_json(tmp_path / "figures")
    examples, of_ranks = figures["examples_per_s"], figures["of_ranks"]
    assert f"total examples/sec: {examples:.2f} +- " in printed
    assert "rank 1: " in printed
    assert printed.count("note: --attention cudnn changes nothing: ") == 1
    assert len(of_ranks) == figures["world_size"] == 2
    assert examples == pytest.approx(sum(mean for mean, _ in of_ranks))
    embeddings, layer = (30522 + 2 + 512 + 2) * 128, 4 * 128 * 128 + 2 * 128 * 512 + 9 * 128 + 512
    assert figures["parameters"] == embeddings + 2 * layer + 2 * 128 + 2
    # No time is compared with another: on a busy machine any of these few steps may be the longest.
    assert all(figures[name] > 0 for name in ("compute_s", "data_s", "reduce_s", "apply_s"))
    # A multiplication and an addition for each weight and token, the scores and their use; three
    # times as much with the backward pass. The figure is that of rank 0.
    flop = 3 * 2 * (32 * (4 * 128 * 128 + 2 * 128 * 512) + 32 * 2 * 32 * 128) * 2
    assert figures["flop_per_s"] == pytest.approx(flop * of_ranks[0][0])
    assert figures["tokens_per_s"] == pytest.approx(32 * examples)


def test_the_model_has_the_dropouts_of_the_flags():
    values = {"attention_probs_dropout_prob": 0.0, "model_size": "tiny"}
    config = config_of(made(LoadSettings, values))
    assert (config.attention_probs_dropout_prob, config.hidden_dropout_prob) == (0.0, 0.1)
    values = {"hidden_dropout_prob": 0.1, "model_size": "modernbert-base"}
    with pytest.raises(InputError, match="modernbert has no dropout"):
        config_of(made(LoadSettings, values))


def test_on_a_gpu_only_the_last_of_the_measured_steps_is_waited_for():
    class Result:
        """Whoever reads it waits for the device."""

        def __init__(self, number):
            self.number = number

        def read(self):
            events.append(f"wait for {self.number}")

        def __getitem__(self, _):
            return self

        numpy = read

    class Step:
        def take(self, batches, number, requests, clock):
            events.append(f"start {number} with {batches}")
            clock.wait_for(Result(number), ends_step=True)
            return Result(number), []

    events = []
    assert steps_per_s(Step(), iter("abc"), SimpleNamespace(comm=None)) > 0
    assert events == ["start 0 with a", "start 1 with b", "start 2 with c", "wait for 2"]


def test_what_starts_ranks_by_itself_refuses_a_launcher(monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    refusal(capsys, "benchmarks.scaling", lambda: scaling.main([]), "mpirun")
