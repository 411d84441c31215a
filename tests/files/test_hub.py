"""Revisions of the hub's models and data sets, from a cache in the layout that huggingface_hub
writes."""

import hashlib
import shutil
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet
import pytest
from harness.corpora import read_documents
from harness.jobs import shell
from harness.refusals import refused
from harness.texts import write_model

from bert import hub
from bert.corpus.units import load_data_set
from ringbase.settings import made
from tasks.runs.resolve.start import Needs, start_of_model
from tasks.runs.settings import ModelSettings

OLD, NEW, OTHER = (hashlib.sha1(name.encode()).hexdigest() for name in ("old", "new", "other"))


def name_commit(cache, repository, name, commit):
    path = cache / repository / "refs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache with two commits of the model someone/tiny: OLD is tagged v1, NEW is main."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    for commit, name, num_layers in ((OLD, "v1", 1), (NEW, "main", 2)):
        write_model(folder / "models--someone--tiny" / "snapshots" / commit, num_layers)
        name_commit(folder, "models--someone--tiny", name, commit)
    return folder


@pytest.mark.parametrize(
    ("revision", "commit", "num_layers"), [(None, NEW, 2), ("v1", OLD, 1), (OLD, OLD, 1)]
)
def test_configuration_vocabulary_and_weights_are_those_of_the_revision(
    cache, revision, commit, num_layers
):
    settings = made(ModelSettings, {"model": "someone/tiny", "model_revision": revision})
    start = start_of_model(settings, print, Needs())
    assert start.weights == cache / "models--someone--tiny" / "snapshots" / commit
    assert start.bert_config.num_hidden_layers == num_layers
    assert start.words.source.endswith(f"{commit}/vocab.txt")
    assert start.commit == commit
    assert commit in start.reason


@pytest.mark.usefixtures("cache")
def test_a_revision_that_is_not_there_or_of_no_hub_model_is_refused(tmp_path):
    refused(lambda: hub.find("someone/tiny", OTHER), "someone/tiny", f"--model_revision {OTHER}")
    refused(lambda: hub.find(str(tmp_path), "v1"), "--model_revision", tmp_path)
    for others in ({}, {"init_checkpoint": "bert_model.ckpt"}):
        with pytest.raises(ValueError, match="--model_revision"):
            made(ModelSettings, {"model_revision": "v1", **others})


@pytest.fixture
def data_sets(tmp_path, monkeypatch):
    """The cache of `datasets` with one commit of someone/texts, and the hub's notes on its
    revisions."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    load_data_set.cache_clear()
    texts = datasets.Dataset.from_dict({"text": ["one", "two"]})
    texts.to_parquet(tmp_path / "texts" / "train.parquet")
    datasets.load_dataset(str(tmp_path / "texts"), split="train", cache_dir=str(tmp_path / "made"))
    (made,) = (path.parent for path in (tmp_path / "made").rglob("dataset_info.json"))
    shutil.copytree(made, tmp_path / "datasets" / "someone___texts" / "default" / "0.0.0" / NEW)
    for name, commit in (("main", NEW), ("v1", OLD)):
        name_commit(tmp_path / "hub", "datasets--someone--texts", name, commit)
    return tmp_path / "texts"


def test_data_are_those_of_the_revision_or_refused(data_sets):
    """`datasets` alone would take the newest copy of its cache, of whatever revision."""

    def read(name, revision=None):
        return read_documents(dataset_name=str(name), dataset_revision=revision)

    for revision in (None, "main", NEW):
        assert read("someone/texts", revision) == [["one"], ["two"]]
    for revision in ("v1", OLD, "v2"):
        call = partial(read, "someone/texts", revision)
        refused(call, "someone/texts", revision, "--dataset_revision")
    assert read(data_sets) == [["one"], ["two"]]
    refused(lambda: read(data_sets, "v1"), "--dataset_revision", data_sets)
    for revision, commit in (None, NEW), ("v1", OLD), (OTHER, OTHER), ("v2", None):
        assert hub.cached_commit("someone/texts", revision) == commit


def test_rows_for_which_the_disk_lacks_the_room_are_refused_before_anything_is_written(
    data_sets, monkeypatch
):
    """`datasets` itself asks only where a page states the size, and a folder has no page."""
    free = shutil.disk_usage(data_sets)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    cache = data_sets.parent / "datasets"
    before = sorted(cache.rglob("*.arrow"))
    metadata = pyarrow.parquet.read_metadata(data_sets / "train.parquet")
    size = metadata.row_group(0).total_byte_size
    call = partial(read_documents, dataset_name=str(data_sets))
    refused(call, "--dataset_name", data_sets, f"{size:,} bytes", "10 are free")
    assert sorted(cache.rglob("*.arrow")) == before
    assert read_documents(dataset_name="someone/texts") == [["one"], ["two"]]  # is there already


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (401, "RepoNotFound", "no such public repository"),
        (403, "GatedRepo", "its owner must admit you"),
        (404, "RevisionNotFound", "no such revision"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(status, code, reason):
    class Hub(BaseHTTPRequestHandler):
        """Refuses as the real hub does."""

        def do_GET(self):
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    find = "from bert.hub import find; find('someone/something', 'v2')"
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hub.server_port}"
        command = (sys.executable, "-c", find)
        done = shell(*command, status=1, wait_s=60, HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
        hub.shutdown()
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ringbase.errors.InputError: --model someone/something")
    assert reason in error.partition("it cannot be downloaded from the hub: ")[2]
    assert len(error) < 250
