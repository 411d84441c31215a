"""Remote inputs and run folders, on fsspec's store in memory. tests/soak/install has an S3
server."""

import errno
import shutil
import time
from pathlib import Path

import fsspec
import pytest
from harness.parsing import SETTINGS, named
from harness.refusals import refused

from distributed.run import Run
from distributed.world import World
from ringbase import manifest
from ringbase.errors import Unavailable
from ringbase.settings import fields_of
from tasks.runs import remote
from tasks.runs.remote import Mirror, local_folder, local_inputs

URL = "memory://bucket"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def store(cache):
    store = fsspec.filesystem("memory")
    store.store.clear()
    for name, text in {"train.csv": "a", "shards/0.arrow": "b", "shards/more.txt": "d"}.items():
        store.pipe(f"/bucket/{name}", text.encode())
    yield store
    store.store.clear()


def inputs(command, values):
    return local_inputs(fields_of(named(SETTINGS[command])), values, World())


def test_inputs_are_copied_once_and_again_when_they_change(store):
    def copies(command="bert-classifier", **values):
        return inputs(command, values)

    found = copies(train_file=f"{URL}/train.csv", data_dir=f"{URL}/shards") | copies(
        "bert-pretraining", input_file=f"{URL}/shards/*.arrow"
    )
    file, pattern, folder = (found[name] for name in ("train_file", "input_file", "data_dir"))
    assert [Path(name).read_text() for name in (file, f"{folder}/more.txt")] == ["a", "d"]
    assert file.endswith("/train.csv")
    assert pattern.endswith("/*.arrow")
    assert (
        copies(model="google-bert/bert-base-uncased", vocab_file="vocab.txt", output_dir=URL) == {}
    )
    assert copies(train_file=f"{URL}/train.csv") == {"train_file": file}
    no_places = {"label_column": f"{URL}/train.csv", "class_weights": '{"http://a": 1}'}
    assert copies(**no_places) == {}
    assert copies("bert-features", output_file=f"{URL}/vectors.jsonl") == {}
    store.pipe("/bucket/train.csv", b"new")
    assert Path(copies(train_file=f"{URL}/train.csv")["train_file"]).read_text() == "new"


def test_a_broken_connection_is_no_fault_of_the_cache(store, monkeypatch):
    def broken(*_):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr(type(store), "get", broken)
    named = f"--train_file {URL}/train.csv", "Connection reset by peer"
    line = refused(lambda: inputs("bert-squad", {"train_file": f"{URL}/train.csv"}), *named)
    assert "RINGBERT_CACHE" not in line


@pytest.mark.parametrize("url", [f"{URL}/absent", f"{URL}/*.json", "nowhere://bucket/train.csv"])
def test_what_is_not_there_is_one_line(store, url):
    refused(lambda: inputs("bert-tagger", {"train_file": url}), f"--train_file {url}")


def test_a_run_s_folder_is_uploaded_and_comes_back_on_another_machine(store, tmp_path):
    """The manifest comes last, what is gone is removed, and locks stay here."""
    mirror, url = Mirror(f"{URL}/run"), f"{URL}/run"
    run = Run(local_folder(url), World(), mirror.upload)
    run.lock()
    mirror.download(run.folder)  # nothing yet
    for number in (1, 2):
        checkpoint = run.folder / f"checkpoints/rows-{number}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights").write_text(str(number))
        manifest.seal(checkpoint, number)
        run.publish()
    names = [f"rows-{number}/{name}" for number in (1, 2) for name in ("weights", "manifest.json")]
    expected = [f"/bucket/run/checkpoints/{name}" for name in names]
    assert sorted(store.find("/bucket/run"), key=store.created) == expected
    for file in (run.folder / "checkpoints/rows-1").iterdir():
        file.unlink()
    run.publish(is_last=True)
    run.close()
    names = [f"/bucket/run/checkpoints/rows-2/{name}" for name in ("manifest.json", "weights")]
    assert store.find("/bucket/run") == names

    other = tmp_path / "other"
    (other / "stale").mkdir(parents=True)
    (other / "stale/file").touch()
    Mirror(url).download(other)
    assert (other / "checkpoints/rows-2/weights").read_text() == "2"
    assert not (other / "stale/file").exists()
    manifest.check_intact(other / "checkpoints/rows-2")


def write_checkpoint(folder, position):
    folder = folder / f"checkpoints/rows-{position}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(str(position))
    manifest.seal(folder, position)


def test_a_checkpoint_whose_upload_failed_is_kept_and_uploaded_by_the_next_start(
    store, tmp_path, monkeypatch
):
    """What another machine has removed from the store since is no such checkpoint: it goes here
    too."""
    url, folder = f"{URL}/run", tmp_path / "run"
    mirror = Mirror(url)
    run = Run(folder, World(), mirror.upload)
    write_checkpoint(folder, 1)
    write_checkpoint(folder / "seed-2", 1)
    run.publish()
    write_checkpoint(folder, 2)
    write_checkpoint(folder / "seed-2", 2)
    with monkeypatch.context() as patch:
        put = type(store).put_file

        def fail_after_the_weights(self, source, target, **options):
            if target.endswith("manifest.json"):
                raise OSError("no route to the store")
            put(self, source, target, **options)

        patch.setattr(type(store), "put_file", fail_after_the_weights)
        run.publish()
    of_other = tmp_path / "other"
    Mirror(url).download(of_other)
    assert not (of_other / "checkpoints/rows-2/manifest.json").exists()
    store.rm("/bucket/run/checkpoints/rows-1", recursive=True)

    again = Mirror(url)
    assert sorted(again.download(folder)) == ["checkpoints/rows-2", "seed-2/checkpoints/rows-2"]
    assert not (folder / "checkpoints/rows-1").exists()
    manifest.check_intact(folder / "checkpoints/rows-2")
    again.upload(folder)
    third = tmp_path / "third"
    assert Mirror(url).download(third) == []
    paths = [*third.rglob("checkpoints/*")]
    assert sorted(path.name for path in paths) == ["rows-1", "rows-2", "rows-2"]
    for path in paths:
        manifest.check_intact(path)
    assert Mirror(url).download(folder) == []


def test_an_upload_that_fails_is_told_and_fails_the_last_time(tmp_path, capsys):
    run = Run(tmp_path / "run", World(), Mirror("nowhere://bucket/run").upload)
    (run.folder / "file").touch()
    run.publish()
    assert "warning: --output_dir nowhere://bucket/run" in capsys.readouterr().err
    refused(lambda: run.publish(is_last=True), "--output_dir nowhere://bucket/run")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_file_of_the_same_size_that_another_machine_changed_is_fetched(store, tmp_path, kind):
    """Large ones, which are fetched only if the store says that they have changed; also from a
    folder that is given as file://, in which nobody makes folders."""
    url = f"{URL}/run" if kind == "memory" else f"file://{tmp_path}/store/run"
    machines = []
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        machines.append((Mirror(url), folder))
    (first, of_first), (second, of_second) = machines
    weights = "model/model.safetensors"
    (of_first / weights).write_bytes(b"1" * remote.SMALL_BYTES)
    first.upload(of_first)
    shutil.rmtree(of_second)
    of_second.mkdir()
    second.download(of_second)
    assert (of_second / weights).read_bytes() == (of_first / weights).read_bytes()
    (of_second / weights).write_bytes(b"2" * remote.SMALL_BYTES)
    second.upload(of_second)
    fetched = []
    kind_of_store = type(fsspec.filesystem(kind))
    own_get = kind_of_store.get

    def counted(self, names, copies):
        fetched.append(len(names))
        own_get(self, names, copies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind_of_store, "get", counted)
        Mirror(url).download(of_first)
        Mirror(url).download(of_first)
    assert (of_first / weights).read_bytes() == (of_second / weights).read_bytes()
    assert fetched == [1, 0]


def test_a_store_that_refuses_for_now_is_asked_again(store, tmp_path, monkeypatch):
    """And what still fails ends a job so that it is started again; what is not there, at once."""
    calls = []
    own_put = type(store).put_file

    def refuse(self, source, target, **options):
        calls.append(target)
        if len(calls) < 3:
            raise OSError("503 Slow Down")
        own_put(self, source, target, **options)

    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "put_file", refuse)
        Mirror(f"{URL}/run").upload(tmp_path)
    assert len(calls) == 3
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "find", lambda *_, **__: (_ for _ in ()).throw(OSError("503")))
        with pytest.raises(Unavailable):
            Mirror(f"{URL}/run").download(tmp_path)
        with pytest.raises(SystemExit, match="70"), World(program="prog"):
            Mirror(f"{URL}/run").download(tmp_path)
