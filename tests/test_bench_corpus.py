"""bert-bench corpus: what it measures, on a small text, beside a stand-in for Google's script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert.text import tokenizer
from ringbert.errors import InputError
from tasks.bench import corpus as bench_corpus
from tasks.bench import process as bench_process
from tasks.bench import program as bench

ROOT = Path(__file__).resolve().parent.parent
WORDS = ["the", "cat", "saw", "a", "dog", "on", "hill", "and", "ran"]
SMALL = (
    "--rival_megabytes=0.02", "--scaling_megabytes=0.05", "--megabytes=0.04", "--repeat=1", "--batch_size=4",
    "--num_steps=3", "--device=cpu",
)  # fmt: skip
# Like Google's script it needs tf.flags, tf.gfile, tf.python_io, tf.logging and tf.app, and the tokenization.py
# beside it, in one of the two ways in which Google's repository and package import it.
STAND_IN = """
import os
import sys
import time
import tensorflow as tf
{imported}
flags = tf.flags
FLAGS = flags.FLAGS
for name in ("input_file", "output_file", "vocab_file"):
    flags.DEFINE_string(name, None, "")
flags.DEFINE_bool("do_lower_case", True, "")
for name in ("max_seq_length", "max_predictions_per_seq", "random_seed", "dupe_factor"):
    flags.DEFINE_integer(name, 0, "")
flags.DEFINE_float("masked_lm_prob", 0, "")
flags.DEFINE_float("short_seq_prob", 0, "")

def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    assert "tasks" not in sys.modules and len(os.sched_getaffinity(0)) == 1
    assert (FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, FLAGS.dupe_factor) == (128, 20, 1)
    assert (FLAGS.masked_lm_prob, FLAGS.short_seq_prob, FLAGS.do_lower_case) == (0.15, 0.1, True)
    writer = tf.python_io.TFRecordWriter(FLAGS.output_file)
    with tf.gfile.GFile(FLAGS.input_file, "r") as reader:
        for line in reader:
            writer.write(tokenization.tokenize(line).encode())
    writer.close()
    time.sleep(1.5)

if __name__ == "__main__":
    tf.app.run()
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A folder with text.txt of 30 documents, one sentence per line, and vocab.txt."""
    folder = tmp_path_factory.mktemp("text")
    sentences = [" ".join(WORDS[(n + k * k) % len(WORDS)] for k in range(12)) + " ." for n in range(20)]
    documents = ["\n".join(sentences[n % 7 :]) + "\n" for n in range(30)]
    (folder / "text.txt").write_text("\n".join(documents))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]))
    return folder


@pytest.fixture
def stand_in(tmp_path):
    """A folder with scripts of Google's names, which import tokenization.py in the given way."""

    def make(imported: str, script: str = STAND_IN) -> Path:
        (tmp_path / "create_pretraining_data.py").write_text(script.replace("{imported}", imported))
        (tmp_path / "tokenization.py").write_text("def tokenize(line):\n    return line.upper()\n")
        return tmp_path

    return make


@pytest.mark.slow
def test_without_a_checkout_google_is_skipped_by_name(text, tmp_path):
    done = run(*shared_flags(text), *SMALL, f"--output_file={tmp_path}/figures.json")
    assert done.returncode == 0, done.stderr
    assert "  google-research/bert: not given (--google_dir)\n" in done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"text_mb", "rates", "scaling", "memory", "reading"}
    assert figures["text_mb"] == pytest.approx((text / "text.txt").stat().st_size / 1e6, abs=2e-6)
    rates = figures["rates"]
    assert rates["google"] is None
    assert set(rates) == {"mb", "google", "tfrecord", "static", "arrow"}
    for name in ("tfrecord", "static", "arrow"):
        assert 0 < rates[name]["mb_per_s"] < 100
        assert 50 < rates[name]["peak_mb"] < 2000  # an interpreter with numpy and pyarrow
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


@pytest.mark.slow
def test_a_script_of_tensorflow_1_runs_unmodified_and_is_compared(text, stand_in, tmp_path):
    told: list[str] = []
    shared = shared_bench(text, tmp_path, stand_in("import tokenization"), told)
    figures = bench_corpus.compare(shared, text / "text.txt")
    assert records(tmp_path / "google-0") == upper_lines(text)
    assert figures["google"]["examples"] == len(upper_lines(text))
    assert figures["tfrecord"]["examples"] == len(records(next((tmp_path / "tfrecord-0").glob("*.tfrecord"))))
    google, ours = figures["google"], figures["tfrecord"]
    assert figures["mb"] / google["mb_per_s"] > 1.5  # it sleeps so long, which is work and no start-up
    assert figures["ratio_tfrecord"] == pytest.approx(ours["mb_per_s"] / google["mb_per_s"])
    assert figures["ratio_arrow"] == pytest.approx(figures["arrow"]["mb_per_s"] / google["mb_per_s"])
    assert any(line.startswith("  ratio static masks once, TFRecord: ") for line in told)


@pytest.mark.slow
def test_the_layout_of_googles_package_runs_too(text, stand_in, tmp_path):
    timing = shared_bench(text, tmp_path, stand_in("from bert import tokenization")).google(
        text / "text.txt", "google-0"
    )
    assert records(tmp_path / "google-0") == upper_lines(text)
    assert timing.seconds > 1.5
    assert timing.peak_bytes > timing.peak_anonymous_bytes > 100e6  # TensorFlow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "told"),
    [("raise ValueError('no such thing')", "its script failed: ValueError: no such thing"),
     ("pass", "its script wrote no --output_file")],
)  # fmt: skip
def test_a_script_that_fails_is_told_in_one_line(text, stand_in, tmp_path, script, told):
    shared = shared_bench(text, tmp_path, stand_in("", script))
    with pytest.raises(InputError, match=told) as raised:
        shared.google(text / "text.txt", "google-0")
    assert "\n" not in str(raised.value)


def test_bad_flags_and_launchers_are_refused(text, tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match=r"--google_dir .*: create_pretraining_data\.py is not there"):
        bench_corpus.measure(config(text, google_dir=str(tmp_path)), (128, 2, 2, 512), print)
    (text / "empty.txt").write_text("\n \n")
    empty = bench_corpus.CorpusConfig(input_file=f"{text}/empty.txt", vocab_file=f"{text}/vocab.txt")
    with pytest.raises(InputError, match="there is no text in it"):
        bench_corpus.measure(empty, (128, 2, 2, 512), print)
    for flags, told in (
        (["--vocab_file=v"], "one of --input_file and --dataset_name is needed"),
        (["--input_file=t"], "--vocab_file"),
        (["--input_file=t", "--vocab_file=v", "--megabytes=0"], "--megabytes is 0.0, needed is more than 0"),
        (["--input_file=t", "--vocab_file=v", "--repeat=0"], "--repeat is 0, needed is at least 1"),
    ):
        with pytest.raises(SystemExit) as stop:
            bench.main(["corpus", *flags])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stop:
        bench.main(["corpus", *shared_flags(text)])
    assert stop.value.code == 1
    told = "bert-bench corpus is one process: start it without mpirun or srun"
    assert capsys.readouterr().err == f"bert-bench: error: {told}\n"


def test_a_build_that_fails_is_told_in_one_line(text, tmp_path):
    (tmp_path / "one.txt").write_text("the cat saw a dog .\nthe dog ran .\n")
    with pytest.raises(InputError, match=r"bert-corpus build failed: .* the corpus is one document") as raised:
        shared_bench(text, tmp_path).build(tmp_path / "one.txt", "shards", True)
    assert "\n" not in str(raised.value)


def test_text_is_prepared_as_both_programs_read_it(tmp_path):
    from bert.corpus.documents import Source

    lines = [
        "It was a long night, and nobody in the old house slept. It",
        "rained. Nobody came.",
        "",
        "",
        "The end.",
    ]
    (tmp_path / "running.txt").write_text("\n".join(lines))
    source = Source(str(tmp_path / "running.txt"), split_sentences=True, document_separator="blanks")
    prepared = tmp_path / "prepared.txt"
    size = bench_corpus._write(prepared, bench_corpus._sentences(source), 1)
    assert prepared.read_text() == (
        "It was a long night, and nobody in the old house slept.\nIt rained.\nNobody came.\n\nThe end.\n\n"
    )
    assert size == prepared.stat().st_size
    repeated = tmp_path / "repeated.txt"
    bench_corpus._write(repeated, bench_corpus._repeated(prepared), 2.5 * size / 1e6)
    assert repeated.read_text().startswith(2 * prepared.read_text())
    assert 2.5 * size <= repeated.stat().st_size < 3 * size
    assert (3 * prepared.read_text()).startswith(repeated.read_text())


def test_peak_memory_is_that_of_all_processes_together():
    """A process with 100 MB in use starts one with 150 MB; both end before the last sample."""
    child = "x = b'1' * 150_000_000; import time; time.sleep(0.7)"
    parent = f"import subprocess, sys; x = b'1' * 100_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    resident, anonymous = bench_process._watch(process)
    assert process.returncode == 0
    assert 250e6 < anonymous < 300e6  # and two interpreters
    assert anonymous < resident < 350e6


# -- what the tests share -----------------------------------------------------------------------------------------


def shared_flags(text: Path) -> tuple[str, ...]:
    return (f"--input_file={text}/text.txt", f"--vocab_file={text}/vocab.txt")


def config(text: Path, **values) -> bench_corpus.CorpusConfig:
    return bench_corpus.CorpusConfig(input_file=f"{text}/text.txt", vocab_file=f"{text}/vocab.txt", **values)


def shared_bench(
    text: Path, folder: Path, google_dir: Path | None = None, told: list[str] | None = None
) -> bench_corpus.Bench:
    settings = config(text, google_dir=google_dir and str(google_dir), repeat=1)
    lines: list[str] = [] if told is None else told
    return bench_corpus.Bench(settings, folder, tokenizer.load(f"{text}/vocab.txt"), lines.append)


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tasks.bench", "corpus", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)


def records(path: Path) -> list[bytes]:
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def upper_lines(text: Path) -> list[bytes]:
    return [f"{line}\n".upper().encode() for line in (text / "text.txt").read_text().split("\n")[:-1]]
