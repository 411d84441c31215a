"""bert-bench corpus: what it measures, on a small text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from texts import write_small_corpus

from bert.corpus.settings import TextSettings
from bert.text import tokenizer
from distributed.world import World
from ringbert.errors import InputError
from tasks.bench import corpus as bench_corpus
from tasks.bench import process
from tasks.bench import program as bench

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A folder with text.txt and vocab.txt."""
    folder = tmp_path_factory.mktemp("text")
    write_small_corpus(folder)
    return folder


@pytest.mark.slow
def test_all_is_measured(text, tmp_path):
    flags = (
        "--rival_megabytes=0.02", "--scaling_megabytes=0.05", "--megabytes=0.04", "--repeat=1", "--batch_size=4",
        "--num_steps=3", "--device=cpu", f"--output_file={tmp_path}/figures.json",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tasks.bench", "corpus", *input_flags(text), *flags]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"text_mb", "rates", "scaling", "memory", "reading"}
    assert figures["text_mb"] == pytest.approx((text / "text.txt").stat().st_size / 1e6, abs=2e-6)
    rates = figures["rates"]
    assert set(rates) == {"mb", "tfrecord", "static", "arrow"}
    for name in ("tfrecord", "static", "arrow"):
        assert 0 < rates[name]["mb_per_s"] < 100
        assert 50 < rates[name]["peak_mb"] < 2000  # an interpreter with numpy and pyarrow
        assert f"{rates[name]['mb_per_s']:.2f} MB/s" in done.stderr
    memory = figures["memory"]
    assert memory["large_mb"] == pytest.approx(10 * memory["small_mb"], rel=0.01)  # whole lines
    assert memory["ratio"] == memory["large_peak_mb"] / memory["small_peak_mb"]
    assert memory["small_peak_anonymous_mb"] < memory["small_peak_mb"]
    if len(os.sched_getaffinity(0)) > 1:
        assert figures["scaling"]["cores"] == len(os.sched_getaffinity(0))
        assert f"ratio {figures['scaling']['ratio']:.2f}\n" in done.stderr
    reading = figures["reading"]
    step_s = sum(reading[name] for name in ("data_s", "compute_s", "reduce_s", "apply_s"))
    assert reading["step_s"] == pytest.approx(step_s)
    assert reading["data_wait"] == pytest.approx(reading["data_s"] / step_s)
    assert reading["reader_rows_per_s"] > 0
    assert f"waiting for data {reading['data_s'] * 1e3:.2f} ms, {reading['data_wait']:.2%}\n" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab_file=v"], "--input_file"),
        (["--input_file=t"], "--vocab_file must be given"),
        (["--input_file=t", "--vocab_file=v", "--megabytes=0"], "--megabytes must be more than 0, got 0.0"),
        (["--input_file=t", "--vocab_file=v", "--repeat=0"], "--repeat must be at least 1, got 0"),
        (["--input_file=t", "--google-dir=bert"], "is now `python -m benchmarks.corpus_google`"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(["corpus", *flags])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_a_launcher_is_refused(text, monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stop:
        bench.main(["corpus", *input_flags(text)])
    assert stop.value.code == 1
    message = "this benchmark starts its own processes: run it without mpirun or srun"
    assert capsys.readouterr().err == f"bert-bench: error: {message}\n"


def test_empty_text_is_refused(text, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    config = bench_corpus.CorpusConfig(input_file=f"{tmp_path}/empty.txt", vocab_file=f"{text}/vocab.txt")
    with pytest.raises(InputError, match="contains no text"):
        bench_corpus.bench_corpus(config, World())


def test_a_build_that_fails_is_one_line(text, tmp_path):
    (tmp_path / "one.txt").write_text("the cat saw a dog .\nthe dog ran .\n")
    shop = bench_corpus.Workshop(tmp_path, text / "vocab.txt", tokenizer.load(f"{text}/vocab.txt"))
    with pytest.raises(InputError, match=r"bert-corpus build failed: .* the corpus is one document") as raised:
        shop.build(tmp_path / "one.txt", "shards", True)
    assert "\n" not in str(raised.value)


def test_text_is_written_as_sentences(tmp_path):
    lines = [
        "It was a long night, and nobody in the old house slept. It",
        "rained. Nobody came.",
        "",
        "",
        "The end.",
    ]
    (tmp_path / "running.txt").write_text("\n".join(lines))
    file = str(tmp_path / "running.txt")
    source = TextSettings(input_file=file, split_sentences=True, document_separator="blanks")
    sentences = tmp_path / "sentences.txt"
    megabytes = bench_corpus.write_lines(sentences, bench_corpus.sentence_lines(source), 1)
    assert sentences.read_text() == (
        "It was a long night, and nobody in the old house slept.\nIt rained.\nNobody came.\n\nThe end.\n\n"
    )
    assert round(megabytes * 1e6) == sentences.stat().st_size
    repeated = tmp_path / "repeated.txt"
    bench_corpus.write_lines(repeated, bench_corpus.lines_of(sentences, repeated=True), 2.5 * megabytes)
    assert repeated.read_text().startswith(2 * sentences.read_text())
    assert 2.5 * megabytes <= repeated.stat().st_size / 1e6 < 3 * megabytes
    assert (3 * sentences.read_text()).startswith(repeated.read_text())


def test_peak_memory_is_that_of_all_processes_together():
    """A process with 100 MB in use starts one with 150 MB; both end before the last sample."""
    child = "x = b'1' * 150_000_000; import time; time.sleep(0.7)"
    parent = f"import subprocess, sys; x = b'1' * 100_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    started = subprocess.Popen([sys.executable, "-c", parent])
    resident, anonymous = process._watch(started)
    assert started.returncode == 0
    assert 250e6 < anonymous < 300e6  # and two interpreters
    assert anonymous < resident < 350e6


def input_flags(text: Path) -> tuple[str, ...]:
    return (f"--input_file={text}/text.txt", f"--vocab_file={text}/vocab.txt")
