"""Where a run starts from: its newest checkpoint, another run's, named weights, initial values; and refusals."""

import json
from dataclasses import replace
from os import truncate
from pathlib import Path

import pytest
import texts

from distributed.checkpoint import folder_name
from distributed.state import State
from ringbert.errors import InputError
from ringbert.manifest import seal
from tasks.origin import CHECKPOINTS, Needs, OriginSettings, find_origin, newest_checkpoint, origin_of_model

NEEDS = Needs(max_seq_length=64)
SETTINGS: dict[str, object] = {"--learning_rate": 5e-5, "--max_seq_length": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a configuration and a vocabulary, but no weights."""
    folder = tmp_path_factory.mktemp("model")
    texts.write_model(folder)
    return folder


def settings_of(files: Path, **changes) -> OriginSettings:
    values = {"bert_config_file": f"{files}/bert_config.json", "vocab_file": f"{files}/vocab.txt"}
    return OriginSettings(**values | changes)


def write_checkpoint(run: Path, model: Path, step: int, evaluations: list[list[float]] | None = None) -> Path:
    """A complete checkpoint of a run with batches of 10, with a configuration and a vocabulary."""
    folder = run / CHECKPOINTS / folder_name(10 * step)
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes((model / "bert_config.json").read_bytes())
    (folder / "vocab.txt").write_bytes((model / "vocab.txt").read_bytes())
    state = State(10 * step, step, 100, 10, SETTINGS, evaluations or [])
    (folder / "state.json").write_text(json.dumps(vars(state)))
    seal(folder, state.position)
    return folder


def test_a_run_goes_on_from_its_newest_intact_checkpoint(model, run, capsys):
    older, newest = write_checkpoint(run.folder, model, 3), write_checkpoint(run.folder, model, 7)
    origin = find_origin(settings_of(model, model="no/such/model"), run, True, NEEDS)  # its progress comes first
    assert (origin.checkpoint, origin.weights, origin.state.step) == (newest, newest, 7)
    assert origin.reason == f"checkpoint {newest}, step 7 of 100"
    assert origin.continues(run.folder / CHECKPOINTS)
    assert origin.words.vocab_size == origin.bert_config.vocab_size

    content = bytearray((newest / "vocab.txt").read_bytes())
    content[0] ^= 1
    (newest / "vocab.txt").write_bytes(content)
    assert find_origin(settings_of(model), run, True, NEEDS).checkpoint == older
    assert "vocab.txt changed since it was written" in capsys.readouterr().err
    fresh = find_origin(settings_of(model, resume="never"), run, True, NEEDS)
    assert (fresh.checkpoint, fresh.weights, fresh.state, fresh.reason) == (None, None, None, "initial values")


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(model, run, tmp_path):
    for step in (3, 7):
        truncate(write_checkpoint(run.folder, model, step) / "state.json", 5)
    words = r"rows-000000000030: state.json has 5 bytes, not \d+; rows-000000000070: .* or --resume never to start"
    for trains in (True, False):
        with pytest.raises(InputError, match=words):
            find_origin(settings_of(model), run, trains, NEEDS)
    assert find_origin(settings_of(model, resume="never"), run, True, NEEDS).checkpoint is None

    other = write_checkpoint(tmp_path / "other", model, 7)
    named = settings_of(model, resume="never", init_checkpoint=str(other))
    assert find_origin(named, run, True, NEEDS).weights == other
    truncate(other / "state.json", 5)
    with pytest.raises(InputError, match=rf"--init_checkpoint {other} is damaged: state.json has 5 bytes, not"):
        find_origin(named, run, True, NEEDS)
    with pytest.raises(InputError, match="none of them is intact"):
        newest_checkpoint(f"{tmp_path}/other", tmp_path / "new", print)


def test_prediction_takes_the_best_checkpoint(model, run):
    best = write_checkpoint(run.folder, model, 3)
    newest = write_checkpoint(run.folder, model, 7, evaluations=[[30, 0.9], [70, 0.4]])
    assert find_origin(settings_of(model), run, True, NEEDS).checkpoint == newest
    assert find_origin(settings_of(model), run, False, NEEDS).checkpoint == best


def test_resume_takes_another_run_until_there_is_progress_of_its_own(model, run, tmp_path):
    other = write_checkpoint(tmp_path / "other", model, 7)
    settings = settings_of(model, resume=f"{tmp_path}/other")
    origin = find_origin(settings, run, True, NEEDS)
    assert origin.checkpoint == other
    assert not origin.continues(run.folder / CHECKPOINTS)
    own = write_checkpoint(run.folder, model, 1)
    assert find_origin(settings, run, True, NEEDS).checkpoint == own
    with pytest.raises(InputError, match=r"--resume must be auto, never or the folder of a run, got .*nowhere"):
        newest_checkpoint(f"{tmp_path}/nowhere", tmp_path / "new", print)


@pytest.mark.parametrize(("name", "value"), [("--learning_rate", 3e-5), ("--max_seq_length", 384)])
def test_a_changed_setting_is_refused_with_both_values(model, run, name, value):
    write_checkpoint(run.folder, model, 3)
    origin = find_origin(settings_of(model), run, True, NEEDS)
    origin.check_settings(SETTINGS)
    with pytest.raises(InputError, match=rf"{name} = {SETTINGS[name]}, .* has {value}: .*--resume never"):
        origin.check_settings(SETTINGS | {name: value})
    replace(origin, state=None, checkpoint=None).check_settings({})  # a new run has nothing to differ from


def test_a_folder_of_a_tensorflow_1_run_is_refused(model, run):
    for step in (900, 1000):
        (run.folder / f"model.ckpt-{step}.index").touch()
    with pytest.raises(InputError, match=r"TensorFlow 1 run.*--init_checkpoint .*model\.ckpt-1000"):
        find_origin(settings_of(model), run, True, NEEDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no/such/model"}, "no such folder or checkpoint"),
        ({"model": "someone/not-in-the-cache"}, "--model someone/not-in-the-cache: .*hub"),
        ({"bert_config_file": None}, "no model configuration: give --bert_config_file"),
        ({"vocab_file": None}, "no vocabulary: give --vocab_file"),
        ({"vocab_file": "missing.txt"}, "--vocab_file missing.txt: no such file"),
    ],
)
def test_model_files_that_do_not_fit(model, run, changes, message):
    with pytest.raises(InputError, match=message):
        origin_of_model(settings_of(model, **changes), run.say, NEEDS)


def test_a_model_too_short_for_the_rows_is_refused(model, run):
    with pytest.raises(InputError, match="--max_seq_length must be at most the model's 128 positions, got 500"):
        origin_of_model(settings_of(model), run.say, Needs(max_seq_length=500))


def test_a_vocabulary_larger_than_the_model_is_refused(model, run, tmp_path):
    longer = tmp_path / "longer.txt"
    longer.write_text((model / "vocab.txt").read_text() + "one\nmore\n")
    message = r"longer.txt has \d+ entries, the model's configuration \d+: --vocab_file"
    with pytest.raises(InputError, match=message):
        origin_of_model(settings_of(model, vocab_file=str(longer)), run.say, NEEDS)


def test_rows_of_ids_need_no_vocabulary_but_get_that_of_the_shards(model, run, capsys):
    bare = settings_of(model, vocab_file=None)
    assert origin_of_model(bare, run.say, replace(NEEDS, tokenizer=False)).tokenizer is None
    assert "the model is saved without its vocabulary" in capsys.readouterr().err
    found = origin_of_model(bare, run.say, replace(NEEDS, tokenizer_folder=model))
    assert found.words.vocab_size == found.bert_config.vocab_size
