"""Folders on file systems as people have them: rights, locks and syncs that are refused, old
checkpoints that cannot be removed, what cannot be read. A training holds, or one line says why not.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import corpora
from harness.classifier_runs import model_flags, own_files, write_data
from harness.jobs import run
from harness.program_runs import command, files_in, weights_in, without_newest_checkpoint
from harness.texts import BERT_CONFIG

from ringbase.files import remove_folder

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[1] / "harness/odd_file_system.c"
STEPS = ("--num_train_steps=4", "--save_checkpoints_steps=1", "--keep_checkpoints=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Variables by which a folder has a file system that lacks something."""
    library = tmp_path_factory.mktemp("odd") / "odd.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, SOURCE, "-ldl"], check=True)
    return lambda lacks, under: {"LD_PRELOAD": str(library), "ODD": lacks, "ODD_UNDER": str(under)}


@pytest.fixture
def train(data, tmp_path):
    """A training in `tmp_path / "out"`, with its cache in `tmp_path / "cache"`."""

    def call(*more, enter=(), **variables):
        flags = [*model_flags(data), *own_files(data), "--do_train", *STEPS]
        job = command("tasks.classifier", *flags, f"--output_dir={tmp_path}/out", *more)
        cache = {"RINGBERT_CACHE": f"{tmp_path}/cache"}
        return run([*enter, *job], **cache | variables)

    return call


def test_a_training_holds_without_rights_syncs_of_folders_or_locks(train, odd, tmp_path):
    done = train(**odd("chmod dirsync flock", tmp_path))  # the run and the cache
    assert done.status == 0, done
    assert (tmp_path / "out/result.json").is_file()
    assert "cannot be locked against other jobs" in done.stderr, done


def test_folders_that_cannot_be_renamed_are_found_before_the_training(train, odd, tmp_path):
    for place, named in (
        ("out", "its file system cannot rename folders"),
        ("cache", "RINGBERT_CACHE"),
    ):
        done = train(**odd("rename", tmp_path / place))
        assert done.status == 1, done
        last = done.stderr.splitlines()[-1]
        assert named in last, done
        assert str(tmp_path / place) in last, done
        assert "plan:" not in done.stderr, done
    doctor = command("tasks.doctor", "--quick", f"--output_dir={tmp_path}/out")
    (tmp_path / "out").mkdir(exist_ok=True)
    found = run(doctor, **odd("rename", tmp_path / "out"))
    assert found.status == 1, found
    assert "cannot rename folders" in " ".join(found.stdout.split()), found


def test_what_cannot_be_read_is_neither_damaged_nor_missing(train, odd, tmp_path):
    """Neither is an older checkpoint taken instead, nor are rows made again."""
    assert train("--num_train_steps=2").status == 0
    (tmp_path / "out/result.json").unlink()
    shutil.rmtree(tmp_path / "out/model")
    for place in "out/checkpoints", "cache":
        before = files_in(tmp_path / place)
        done = train("--num_train_steps=2", **odd("read", tmp_path / place))
        assert done.status == 1, done
        last = done.stderr.splitlines()[-1]
        assert "cannot be read" in last, done
        assert "Input/output error" in last, done
        assert files_in(tmp_path / place) == before
    given = train(
        "--num_train_steps=2",
        f"--output_dir={tmp_path}/other",
        f"--init_checkpoint={next((tmp_path / 'out/checkpoints').iterdir())}",
        **odd("read", tmp_path / "out/checkpoints"),
    )
    assert "cannot be read" in given.stderr.splitlines()[-1], given
    assert "damaged" not in given.stderr, given
    assert train("--num_train_steps=2").status == 0


def test_a_corpus_that_cannot_be_read_is_not_called_damaged(odd, tmp_path):
    corpora.write(tmp_path, corpora.make_texts(20))
    vocab_size = len((tmp_path / "vocab.txt").read_text().split())
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": 1}
    (tmp_path / "bert_config.json").write_text(json.dumps(BERT_CONFIG | sizes))
    corpora.build(tmp_path)
    verify = command("tasks.corpus", "verify", f"--input_dir={tmp_path}/shards")
    build = command(
        "tasks.corpus",
        "build",
        f"--input_file={tmp_path}/*.part",
        f"--vocab_file={tmp_path}/vocab.txt",
        f"--output_dir={tmp_path}/again",
    )
    pretraining = command(
        "tasks.pretraining",
        "--do_train",
        f"--bert_config_file={tmp_path}/bert_config.json",
        f"--input_file={tmp_path}/shards",
        f"--output_dir={tmp_path}/out",
    )
    for job, file in (
        (verify, "shard-"),
        (pretraining, "shard-"),
        (build, ".part"),
        (build, "vocab.txt"),
    ):
        done = run(job, ODD_FILE=file, RINGBERT_CACHE=str(tmp_path), **odd("read", tmp_path))
        assert done.status == 1, done
        last = done.stderr.splitlines()[-1]
        assert file in last, done
        assert "Input/output error" in last, done
        assert "damaged" not in done.stderr, done
        assert not (tmp_path / "again/manifest.json").exists()


def mounts():
    probe = ["unshare", "--mount", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def test_an_old_checkpoint_that_stays_is_a_warning(train, tmp_path):
    """A mount within it, as a file that is open over NFS leaves it."""
    if not mounts():
        pytest.skip("mounts of its own need root")
    assert train("--keep_checkpoints=9").status == 0
    without_newest_checkpoint(tmp_path / "out", tmp_path / "again")
    oldest = min((tmp_path / "again/checkpoints").iterdir())
    script = f'mkdir {oldest}/held && mount -t tmpfs tmpfs {oldest}/held && exec "$@"'
    enter = ["unshare", "--mount", "sh", "-c", script, "sh"]
    done = train(f"--output_dir={tmp_path}/again", enter=enter)
    assert done.status == 0, done
    warnings = [line for line in done.stderr.splitlines() if "cannot be removed and stays" in line]
    assert len(warnings) == 1, done
    assert str(oldest) in warnings[0], done
    assert weights_in(tmp_path / "again/model") == weights_in(tmp_path / "out/model")


def test_of_a_link_only_the_link_goes(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / "old").symlink_to(tmp_path / "elsewhere")
    assert remove_folder(tmp_path / "old") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere"]
    assert (tmp_path / "elsewhere/file").is_file()


def test_a_folder_of_an_image_is_removed_and_replaced(tmp_path):
    """Overlayfs refuses to rename a folder of its lower layer (EXDEV)."""
    if not mounts():
        pytest.skip("mounts of its own need root")
    for name in ("lower/old", "lower/model", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("lower/old/file", "lower/model/file"):
        (tmp_path / name).write_text("of the image")
    script = """
import sys
from pathlib import Path
from ringbase.files import remove_folder, replace_folder
merged = Path(sys.argv[1])
assert remove_folder(merged / "old") is None
replace_folder(merged / "model", lambda into: (into / "file").write_text("new"))
print(sorted(path.name for path in merged.iterdir()), (merged / "model/file").read_text())
"""
    layers = ",".join(f"{name}dir={tmp_path}/{name}" for name in ("lower", "upper", "work"))
    mount = f'mount -t overlay overlay -o {layers} {tmp_path}/merged && exec "$@"'
    python = [sys.executable, "-c", script, tmp_path / "merged"]
    done = run(["unshare", "--mount", "sh", "-c", mount, "sh", *python])
    if "mount:" in done.stderr:
        pytest.skip(f"no overlayfs here: {done.stderr}")
    assert done.stdout == "['model'] new\n", done


@pytest.mark.parametrize(
    ("options", "named"), [("ro", "give an --output_dir that"), ("size=64k", "make room in --outp")]
)
def test_a_folder_that_is_read_only_or_full_is_one_line_that_says_what_to_do(
    train, tmp_path, options, named
):
    if not mounts():
        pytest.skip("mounts of its own need root")
    (tmp_path / "out").mkdir()
    script = f'mount -t tmpfs -o {options} none {tmp_path}/out; exec "$@"'
    done = train(enter=["unshare", "--mount", "sh", "-c", script, "sh"])
    assert done.status == 1, done
    assert named in done.stderr.splitlines()[-1], done


def test_an_empty_volume_does_not_hide_why_a_run_is_refused(train, tmp_path):
    """A mount point cannot be removed at the end."""
    if not mounts():
        pytest.skip("mounts of its own need root")
    (tmp_path / "out").mkdir()
    enter = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs none {tmp_path}/out; exec "$@"',
        "sh",
    ]
    done = train("--train_file=missing.csv", enter=enter)
    assert done.status == 1, done
    assert "missing.csv" in done.stderr.splitlines()[-1], done
