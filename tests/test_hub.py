"""Revisions of the hub's models and data sets, from a cache in the layout that huggingface_hub writes."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from program_runs import in_process
from squad_files import make_entries, write_squad
from texts import write_model

from bert import hub, weights
from bert.corpus.inputs import load_data_set
from bert.corpus.settings import TextSettings
from ringbert.errors import InputError
from tasks.origin import ModelSettings, Needs, origin_of_model
from tasks.squad.program import Config, run_squad

OLD, NEW, OTHER = (hashlib.sha1(name.encode()).hexdigest() for name in ("old", "new", "other"))


def add_commit(cache: Path, repository: str, commit: str, files: Path) -> None:
    """A commit in the hub's cache: files named by their content, and links to them."""
    folder = cache / repository
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "snapshots" / commit).mkdir(parents=True)
    for file in files.iterdir():
        blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (folder / "snapshots" / commit / file.name).symlink_to(Path("../../blobs", blob.name))


def name_commit(cache: Path, repository: str, name: str, commit: str) -> None:
    path = cache / repository / "refs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The hub's cache with two commits of the model someone/tiny: OLD is tagged v1, NEW is main."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    for commit, num_layers in ((OLD, 1), (NEW, 2)):
        files = tmp_path / commit
        files.mkdir()
        write_model(files, num_layers)
        config = json.loads((files / "bert_config.json").read_text())
        (files / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
        (files / "bert_config.json").unlink()
        (files / "vocab.txt").write_text((files / "vocab.txt").read_text().replace("bear", f"bear{num_layers}"))
        add_commit(folder, "models--someone--tiny", commit, files)
    name_commit(folder, "models--someone--tiny", "main", NEW)
    name_commit(folder, "models--someone--tiny", "v1", OLD)
    return folder


@pytest.mark.parametrize(
    ("revision", "commit", "num_layers"), [(None, NEW, 2), ("main", NEW, 2), ("v1", OLD, 1), (OLD, OLD, 1)]
)
def test_configuration_vocabulary_and_weights_are_those_of_the_revision(cache, revision, commit, num_layers):
    settings = ModelSettings(model="someone/tiny", model_revision=revision)
    origin = origin_of_model(settings, print, Needs(max_seq_length=64))
    assert origin.weights == cache / "models--someone--tiny" / "snapshots" / commit
    assert origin.bert_config.num_hidden_layers == num_layers
    assert origin.words.source.endswith(f"{commit}/vocab.txt")
    assert f"bear{num_layers}" in (origin.weights / "vocab.txt").read_text().split()
    assert (origin.commit, origin.reason) == (commit, f"--model someone/tiny, commit {commit}")


@pytest.mark.usefixtures("cache")
def test_a_revision_that_is_not_there_is_refused(tmp_path):
    words = (
        rf"^--model someone/tiny --model_revision {OTHER}: .* HF_HUB_OFFLINE is set and HF_HOME lacks it; "
        rf"run `hf download someone/tiny --revision {OTHER}` with a network$"
    )
    with pytest.raises(InputError, match=words):
        weights.find("someone/tiny", OTHER)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=rf"^--model_revision v1: {tmp_path}/folder is a folder here; only"):
        weights.find(f"{tmp_path}/folder", "v1")


@pytest.mark.parametrize("others", [{}, {"init_checkpoint": "bert_model.ckpt"}])
def test_a_revision_needs_a_model_of_the_hub(others):
    with pytest.raises(ValueError, match=r"^--model_revision needs --model with a hub name"):
        ModelSettings(model_revision="v1", **others)


@pytest.fixture
def data_sets(tmp_path, monkeypatch) -> Path:
    """The cache of `datasets` with one commit of someone/texts, and the hub's notes on its revisions."""
    import datasets

    folder = tmp_path / "datasets"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    load_data_set.cache_clear()
    source = tmp_path / "texts"
    source.mkdir()
    datasets.Dataset.from_dict({"text": ["one", "two"]}).to_parquet(source / "train.parquet")
    datasets.load_dataset(str(source), split="train", cache_dir=str(tmp_path / "made"))
    (made,) = (path.parent for path in (tmp_path / "made").rglob("dataset_info.json"))
    shutil.copytree(made, folder / "someone___texts" / "default" / "0.0.0" / NEW)
    for name, commit in (("main", NEW), ("v1", OLD)):
        name_commit(tmp_path / "hub", "datasets--someone--texts", name, commit)
    return folder


@pytest.mark.usefixtures("data_sets")
def test_data_are_those_of_the_revision_or_refused():
    """`datasets` alone would take the newest copy of its cache, of whatever revision."""
    for revision in (None, "main", NEW):
        table = load_data_set(TextSettings(dataset_name="someone/texts", dataset_revision=revision))
        assert table["text"][:] == ["one", "two"]
    for revision in ("v1", OLD):
        words = f"^--dataset_name someone/texts .train.: --dataset_revision {revision} is commit {OLD}, .*{NEW}$"
        with pytest.raises(InputError, match=words):
            load_data_set(TextSettings(dataset_name="someone/texts", dataset_revision=revision))
    with pytest.raises(InputError, match=r"^--dataset_name someone/texts: --dataset_revision v2 is not found: "):
        load_data_set(TextSettings(dataset_name="someone/texts", dataset_revision="v2"))
    assert [hub.cached_commit("someone/texts", revision) for revision in (None, "v1", OTHER, "v2")] == [
        NEW, OLD, OTHER, None,
    ]  # fmt: skip


def test_a_folder_of_data_has_no_revision(tmp_path):
    with pytest.raises(InputError, match=rf"^--dataset_revision v1: {tmp_path} is a folder here; only"):
        load_data_set(TextSettings(dataset_name=str(tmp_path), dataset_revision="v1"))


@pytest.mark.slow
def test_a_run_records_the_commit_of_its_model(cache, tmp_path, monkeypatch):
    """Also when it is continued, although it then starts from its own checkpoint."""
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    train = write_squad(tmp_path / "train.json", make_entries(16, 1))
    flags = [
        "--do_train", f"--train_file={train}", "--max_seq_length=40", "--max_query_length=16", "--doc_stride=12",
        "--train_batch_size=4", f"--output_dir={tmp_path}/run", "--save_checkpoints_steps=1",
    ]  # fmt: skip
    (tmp_path / "start").mkdir()
    shutil.copy(tmp_path / OLD / "config.json", tmp_path / "start" / "bert_config.json")
    new = [f"--bert_config_file={tmp_path}/start/bert_config.json", f"--vocab_file={tmp_path}/{OLD}/vocab.txt"]
    in_process("bert-squad", Config, run_squad, tmp_path / "first", *flags, *new, "--num_train_steps=1")
    trained = tmp_path / "first" / "model"
    add_commit(cache, "models--someone--trained", OTHER, trained)
    name_commit(cache, "models--someone--trained", "v1", OTHER)

    flags += ["--model=someone/trained", "--model_revision=v1", "--num_train_steps=4"]
    run = tmp_path / "run"
    in_process("bert-squad", Config, run_squad, run, *flags)
    facts = json.loads((run / "run.json").read_text())
    assert facts["hub_commits"] == {"model": OTHER, "data_set": None}
    assert facts["config"]["model_revision"] == "v1"
    assert facts["start"] == f"--model someone/trained, commit {OTHER}"

    newest = max((run / "checkpoints").iterdir(), key=os.path.basename)
    shutil.rmtree(newest)
    in_process("bert-squad", Config, run_squad, run, *flags)
    facts = json.loads((run / "run.json").read_text())
    assert facts["start"].startswith("checkpoint ")
    assert facts["hub_commits"]["model"] == OTHER
