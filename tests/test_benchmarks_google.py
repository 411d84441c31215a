"""benchmarks.corpus_google: Google's script, or a stand-in for it, beside bert-corpus build."""

from pathlib import Path

import pytest
from texts import write_small_corpus

from benchmarks import corpus_google
from bert.text import tokenizer
from distributed.world import World
from ringbert.errors import InputError
from tasks.bench.corpus import Workshop

# Like Google's script it needs tf.flags, tf.gfile, tf.python_io, tf.logging and tf.app, and the tokenization.py
# beside it, in one of the two ways in which Google's repository and package import it.
STAND_IN = """
import os
import sys
import time
import tensorflow as tf
{importing}
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
    """A folder with text.txt and vocab.txt."""
    folder = tmp_path_factory.mktemp("text")
    write_small_corpus(folder)
    return folder


@pytest.fixture
def stand_in(tmp_path):
    """A function that makes a folder with scripts of Google's names.

    `importing` is the statement that imports tokenization.py.
    """

    def make(importing: str, script: str = STAND_IN) -> Path:
        folder = tmp_path / "google"
        folder.mkdir()
        (folder / "create_pretraining_data.py").write_text(script.replace("{importing}", importing))
        (folder / "tokenization.py").write_text("def tokenize(line):\n    return line.upper()\n")
        return folder

    return make


@pytest.fixture
def shop(text, tmp_path) -> Workshop:
    folder = tmp_path / "shop"
    folder.mkdir()
    return Workshop(folder, text / "vocab.txt", tokenizer.load(f"{text}/vocab.txt"))


@pytest.mark.slow
def test_a_script_of_tensorflow_1_runs_unmodified_and_is_compared(text, stand_in, capsys):
    config = config_of(text, stand_in("import tokenization"))
    figures = corpus_google.bench_google(config, World())
    google, ours = figures["google"], figures["tfrecord"]
    assert google["examples"] == len(upper_lines(text)) + 1  # an empty line ends the last document
    assert ours["examples"] > 0
    assert figures["mb"] / google["mb_per_s"] > 1.5  # it sleeps so long, which is work and no start-up
    assert figures["ratio_tfrecord"] == pytest.approx(ours["mb_per_s"] / google["mb_per_s"])
    assert figures["ratio_arrow"] == pytest.approx(figures["arrow"]["mb_per_s"] / google["mb_per_s"])
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("  ratio static masks once, TFRecord: ") for line in lines)


@pytest.mark.slow
def test_the_layout_of_googles_package_runs_too(text, stand_in, shop):
    timing = corpus_google.run_google(stand_in("from bert import tokenization"), shop, text / "text.txt")
    assert records(shop.folder / "google") == upper_lines(text)
    assert corpus_google.num_records(shop.folder / "google") == len(upper_lines(text))
    assert timing.seconds > 1.5
    assert timing.peak_bytes > timing.peak_anonymous_bytes > 100e6  # TensorFlow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "message"),
    [("raise ValueError('no such thing')", "its script failed: ValueError: no such thing"),
     ("pass", "its script wrote no --output_file")],
)  # fmt: skip
def test_a_script_that_fails_is_one_line(text, stand_in, shop, script, message):
    with pytest.raises(InputError, match=message) as raised:
        corpus_google.run_google(stand_in("", script), shop, text / "text.txt")
    assert "\n" not in str(raised.value)


def test_a_folder_without_the_script_is_refused(text, tmp_path):
    with pytest.raises(InputError, match=r"--google_dir .*: no create_pretraining_data\.py there"):
        corpus_google.bench_google(config_of(text, tmp_path), World())


def config_of(text: Path, google_dir: Path) -> corpus_google.GoogleConfig:
    return corpus_google.GoogleConfig(
        input_file=f"{text}/text.txt", vocab_file=f"{text}/vocab.txt", google_dir=str(google_dir), repeat=1
    )


def records(path: Path) -> list[bytes]:
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def upper_lines(text: Path) -> list[bytes]:
    return [f"{line}\n".upper().encode() for line in (text / "text.txt").read_text().split("\n")[:-1]]
