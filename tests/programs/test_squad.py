"""bert-squad from its flags to its files, on a tiny model and generated questions; where a run
starts from."""

import json
import shutil
from os import truncate

import numpy as np
import pytest
from harness.program_runs import (
    bert,
    files_in,
    metrics_in,
    refusal,
    weights_in,
    without_newest_checkpoint,
    written_scores,
)
from harness.squad_files import make_entries, write_squad
from harness.texts import write_lines, write_model
from harness.weight_files import write_tf1

from bert import weights
from ringbase.files import read_json
from tasks.runs.report.files import read_evaluation

NUM_DEV, STEPS, BATCH = 40, 24, 32
TRAIN = (
    "--do_train",
    "--do_predict",
    f"--train_batch_size={BATCH}",
    f"--num_train_steps={STEPS}",
    "--learning_rate=2e-3",
    "--save_checkpoints_steps=8",
    "--log_steps=2",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Vocabulary and configuration, train.json and dev.json."""
    folder = tmp_path_factory.mktemp("data")
    write_model(folder, num_layers=1)
    write_squad(folder / "train.json", make_entries(600, 1))
    write_squad(folder / "dev.json", make_entries(NUM_DEV + 5, 2))
    return folder


@pytest.fixture(scope="module")
def squad(data):
    files = (
        f"--vocab_file={data}/vocab.txt",
        f"--bert_config_file={data}/bert_config.json",
        f"--train_file={data}/train.json",
        f"--predict_file={data}/dev.json",
        "--max_seq_length=40",
        "--max_query_length=16",
        "--doc_stride=12",
        f"--max_predict_examples={NUM_DEV}",
    )
    return lambda output_dir, *flags: bert("squad", output_dir, *files, *flags)


@pytest.fixture
def squad_refused(squad, capsys):
    """The one line with which a training with these flags more ends."""

    def line_of(output_dir, flags, *named):
        return refusal(capsys, "bert-squad", lambda: squad(output_dir, *TRAIN, *flags), *named)

    return line_of


@pytest.fixture(scope="module")
def trained(squad, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    squad(folder, *TRAIN)
    return folder


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained run, which a test may change."""
    return shutil.copytree(trained, tmp_path / "copy")


def checkpoint(step):
    return f"rows-{BATCH * step:012d}"


def test_a_run_learns_and_leaves_googles_files(trained):
    losses = [line["loss"] for line in metrics_in(trained)]
    assert len(losses) == STEPS // 2 + 1
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    entries = make_entries(NUM_DEV + 5, 2)[:NUM_DEV]
    predictions = read_json(trained / "predictions.json")
    assert list(predictions) == [f"q{number}" for number in range(NUM_DEV)]
    best = {
        id_: listed[0]["text"]
        for id_, listed in read_json(trained / "nbest_predictions.json").items()
    }
    assert best == predictions
    result = read_json(trained / "result.json")
    assert written_scores(trained) == result["scores"]
    right = [text == entry[2] for text, entry in zip(predictions.values(), entries, strict=True)]
    assert result["scores"].pop("exact_match") == 100 * np.mean(right)
    assert set(result["scores"]) == {"f1"}
    assert set(result["prediction"]) == {"rows", "seconds"}
    plan = read_json(trained / "run.json")["plan"]
    assert (plan["steps"], plan["global_batch_size"]) == (STEPS, BATCH)
    assert list((trained / "tensorboard").glob("events.*"))
    names = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert names == [checkpoint(step) for step in (8, 16, 24)]


def test_a_finished_run_is_not_trained_again(squad, trained, copy, capsys):
    """What it took stays with its scores."""
    kept = ("scores", "seconds", "world_size")
    (copy / "predictions.json").unlink()
    (copy / "model/notes.txt").write_text("mine")
    squad(copy, *TRAIN)
    assert f"the complete training in {copy}" in capsys.readouterr().err
    assert (copy / "model/notes.txt").read_text() == "mine"
    (copy / "model/notes.txt").unlink()
    new = ("result.json", "report.html", "history.json", "model/README.md")
    assert files_in(copy, *new) == files_in(trained, *new)
    again, result = read_json(copy / "result.json"), read_json(trained / "result.json")
    assert [again[name] for name in kept] == [result[name] for name in kept]


def test_a_run_remembers_its_starts(squad, data, trained, tmp_path, capsys):
    """Broken off after step 16, gone on with other flags, predicted twice."""
    folder = without_newest_checkpoint(trained, tmp_path / "run")
    first, *_ = read_json(folder / "history.json")
    assert (first["what"], first["step"], first["from"]) == ("training", 0, "initial values")
    assert first["predicted"] == [f"--predict_file {data}/dev.json"]
    del first["seconds"]  # as of a job that was killed
    (folder / "history.json").write_text(json.dumps([first]))
    last_time = metrics_in(folder)[-1]["time"]
    squad(folder, *TRAIN, "--log_steps=4")
    before, again = read_json(folder / "history.json")
    assert before["seconds"] == pytest.approx(last_time - first["began"], abs=0.2)
    assert (again["what"], again["step"], again["ranks"]) == ("training", 16, 1)
    assert again["from"].startswith("checkpoint ")
    assert again["changed"] == {"log_steps": [2, 4]}
    result = read_json(folder / "result.json")
    assert result["seconds"] == pytest.approx(before["seconds"] + again["seconds"], abs=0.2)
    page = (folder / "report.html").read_text()
    assert "--log_steps 2 → 4" in page
    assert page.count("restart, 1 ranks") == 2  # on the curves of loss and speed
    assert ">initial values</td>" in page  # where the weights come from

    squad(folder, "--do_predict")
    assert "replaces the predictions" not in capsys.readouterr().err
    write_squad(tmp_path / "other.json", make_entries(4, 3))
    squad(folder, "--do_predict", f"--predict_file={tmp_path}/other.json")
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "replaces the predictions" in line]
    assert line.index("other.json") < line.index("dev.json")
    assert [each["what"] for each in read_json(folder / "history.json")[2:]] == ["prediction"] * 2


def test_prediction_alone_changes_nothing_that_the_training_wrote(squad, trained, copy):
    """`--do_train=False --init_checkpoint=<the original>` of lambdal's recipe takes the run's own
    weights."""
    write_tf1(copy.parent / "original", weights.read(copy / "checkpoints" / checkpoint(8)))
    flags = ("--do_train=False", "--do_predict=True", f"--init_checkpoint={copy.parent}/original")
    squad(copy, *flags, "--version_2_with_negative=True", "--null_score_diff_threshold=1e9")
    expected = read_json(trained / "predictions.json")
    assert read_json(copy / "predictions.json") == expected  # nothing is above this threshold
    assert len(read_json(copy / "null_odds.json")) == NUM_DEV
    scores = read_json(copy / "predict_result.json")["scores"]
    assert {"exact", "f1", "best_f1", "best_f1_thresh"} <= set(scores)
    predicted = ("predictions.json", "nbest_predictions.json", "null_odds.json", "eval_results.txt")
    predicted += ("predictions.jsonl", "mistakes.jsonl", "history.json")
    assert files_in(copy, *predicted, "predict_result.json") == files_in(trained, *predicted)
    alone = read_evaluation(copy, "as bert-report reads it")
    assert alone.measured == scores
    assert alone.config["null_score_diff_threshold"] == 1e9


def test_a_changed_setting_is_refused_with_both_values(squad_refused, trained):
    before = files_in(trained)
    for flag, old, new in (("--learning_rate", "0.002", "3e-05"), ("--max_seq_length", "40", "48")):
        squad_refused(trained, [f"{flag}={new}"], flag, old, new, "--resume never")
    assert files_in(trained) == before


def test_what_changed_the_training_data_is_named(squad_refused, data, trained, tmp_path):
    """A flag or a file, not a digest."""
    before, train = files_in(trained), data / "train.json"
    other = write_squad(tmp_path / "other.json", make_entries(600, 3))
    words = (data / "vocab.txt").read_text().splitlines()
    # the last three swapped
    write_lines(tmp_path / "vocab.txt", *words[:-3], *words[-3:][::-1])
    for flags, named in (
        (["--nodo_lower_case"], ["--do_lower_case was True, now it is False"]),
        ([f"--vocab_file={tmp_path}/vocab.txt"], [f"{tmp_path}/vocab.txt", "vocabulary"]),
        ([f"--train_file={other}"], [f"--train_file was {train}, now it is {other}"]),
        (["--max_train_examples=500"], ["--max_train_examples was None, now it is 500"]),
    ):
        assert "digest" not in squad_refused(trained, flags, *named, "--resume never")
    content = train.read_bytes()
    try:
        train.write_bytes(other.read_bytes())
        elsewhere = ("--save_checkpoints_steps=7", "--predict_batch_size=3", "--device=cpu")
        line = squad_refused(trained, elsewhere, "the content", f"--train_file {train}")
        assert not any(flag.partition("=")[0] in line for flag in elsewhere)
    finally:
        train.write_bytes(content)
    assert files_in(trained) == before


def test_a_damaged_checkpoint_is_passed_over_and_named(squad, squad_refused, copy, capsys):
    newest, *older = (copy / "checkpoints" / checkpoint(step) for step in (24, 16, 8))
    path, other = newest / "model.safetensors", copy.parent / "other"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    (copy / "result.json").unlink()  # as of a job that was killed; else model/ is used
    squad(copy, "--do_predict")
    printed = capsys.readouterr().err
    assert all(name in printed for name in (str(older[0]), "model.safetensors"))
    for folder in older:
        truncate(folder / "state.json", 5)
    for folder, flag, named in (
        (copy, "--learning_rate=2e-3", [newest.name, "--resume never"]),
        (other, f"--init_checkpoint={older[0]}", [older[0], "state.json"]),
        (other, f"--resume={copy}", ["none", "intact"]),
    ):
        squad_refused(folder, [flag], *named)


@pytest.mark.slow
def test_resume_takes_another_runs_progress_or_none(squad, trained, tmp_path, copy, capsys):
    """Until there is own progress. `never` keeps what the old run has left in another folder."""
    source = without_newest_checkpoint(trained, tmp_path / "source")
    squad(tmp_path / "new", *TRAIN, f"--resume={source}")
    assert weights_in(tmp_path / "new/model") == weights_in(trained / "model")
    assert f"checkpoint {source}/checkpoints/{checkpoint(16)}" in capsys.readouterr().err
    (copy / "predict_result.json").touch()
    squad(copy, *TRAIN, "--resume=never", "--num_train_steps=1")
    assert not (copy / "predict_result.json").exists()  # it was about the old model
    new, (before,) = copy / "checkpoints", copy.glob("before-*")
    old = before / "checkpoints"
    assert [path.name for path in new.iterdir()] == [checkpoint(1)]
    assert {path.name for path in old.iterdir()} == {*map(checkpoint, (8, 16, 24))}


BAD = {
    "--bert_config_file=null": ["--bert_config_file"],
    "--vocab_file=null": ["--vocab_file"],
    "--model=someone/not-in-the-cache": ["--model someone/not-in-the-cache", "hub"],
    # a folder of TensorFlow 1
    "--do_train": ["--output_dir", "--init_checkpoint", "model.ckpt-1000"],
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_input_is_one_line(squad_refused, tmp_path, flag):
    for step in (900, 1000) if flag == "--do_train" else ():
        (tmp_path / f"model.ckpt-{step}.index").touch()
    before = files_in(tmp_path)
    squad_refused(tmp_path, [flag], *BAD[flag])
    assert files_in(tmp_path) == before


@pytest.mark.slow
def test_a_training_is_evaluated_keeps_the_best_model_and_runs_with_seeds(
    squad, squad_refused, data, tmp_path
):
    learn = ("--do_train", f"--train_batch_size={BATCH}", "--num_train_steps=6", "--eval_steps=2")
    # the rate is so high that the last model need not be the best
    learn += ("--learning_rate=1e-2", "--load_best_model_at_end")
    scores = squad(tmp_path, *learn, "--do_predict", "--seeds=1,2")
    of_seeds = []
    for folder in (tmp_path / "seed-1", tmp_path / "seed-2"):
        measured = [line["f1"] for line in metrics_in(folder) if "f1" in line]
        assert len(measured) == 3
        of_seeds.append(read_json(folder / "result.json")["scores"]["f1"])
        assert of_seeds[-1] == max(measured)
        assert len(read_json(folder / "predictions.json")) == NUM_DEV
    assert scores["f1"] == np.mean(of_seeds)
    alone = squad(tmp_path / "alone", *learn, "--seed=2")
    assert alone == {}  # only to choose the model: nothing is predicted
    assert weights_in(tmp_path / "alone/model") == weights_in(tmp_path / "seed-2/model")

    unlabelled = read_json(data / "dev.json")
    for paragraph in unlabelled["data"][0]["paragraphs"]:
        paragraph["qas"][0]["answers"] = []
    (tmp_path / "new.json").write_text(json.dumps(unlabelled))
    new = f"--predict_file={tmp_path}/new.json"
    squad_refused(tmp_path / "new", [*learn, "--do_predict=False", new], "--predict_file")
