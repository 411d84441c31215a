"""What a run is, from flags and folders alone: no ranks, no TensorFlow, no training."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from harness import folders
from harness.mpi import ROOT
from harness.parsing import SETTINGS, main_of, named
from harness.refusals import refused
from harness.texts import write_lines

from ringbase.settings import flat
from tasks.programs import COMMANDS
from tasks.runs import flags
from tasks.runs.resolve.command import resolve
from tasks.runs.resolve.plan import planned
from tasks.runs.resolve.spec import as_json, digest_of
from tasks.runs.rows.reader import Readings

PROGRAMS = {command.name: command.program for command in COMMANDS}
# what a model of each program was trained with, other than the defaults
TRAINED_WITH = {
    "bert-squad": {"version_2_with_negative": True, "max_seq_length": 96, "doc_stride": 16},
    "bert-classifier": {"max_seq_length": 64, "text_column": "review", "text_pair_column": "b"},
    "bert-tagger": {"max_seq_length": 64, "characters": True},
    "bert-embedder": {"max_seq_length": 64, "pooling": "cls", "normalize": False},
}
LABELS = {
    "bert-classifier": {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}},
    "bert-tagger": {"id2label": {"0": "O", "1": "B-x", "2": "I-x"}, "label2id": {"O": 0}},
}
LABELS["bert-classifier"]["problem_type"] = "single_label_classification"


def runs_of(program, folder, *argv, resume="auto", said=None):
    """The configuration and the specs of a command line that writes `folder`."""
    argv = [f"--output_dir={folder}", *argv]
    config = flags.parse(named(SETTINGS[program]), argv, prog=program)
    written = {name: flat(config)[name] for name in config.given}
    said = [] if said is None else said
    known = Readings()
    found = resolve(PROGRAMS[program], config, written, folder, resume, known, said.append)
    return found.config, found.specs


def spec_of(program, folder, *argv, **options):
    _, (spec,) = runs_of(program, folder, *argv, **options)
    return spec


predicts = "--do_predict", "--predict_file=p"


# -- the settings of a trained model ---------------------------------------------------------------


def complete(folder, **facts):
    folders.write_run(folder / "out", scores={"f1": 1.0}, **facts)
    return folder / "out", ()


def unfinished(folder, **facts):
    folders.write_run(folder / "out", steps=(8,), **facts)
    return folder / "out", ()


def without_checkpoints(folder, **facts):
    folders.write_run(folder / "out", steps=(), scores={"f1": 1.0}, **facts)
    return folder / "out", ()


def model(folder, **facts):
    folders.write_model(folder / "model", **facts)
    return folder / "new", (f"--model={folder}/model",)


def init_checkpoint(folder, **facts):
    folders.write_model(folder / "model", **facts)
    return folder / "new", (f"--init_checkpoint={folder}/model",)


def model_of_a_run(folder, **facts):
    run, _ = complete(folder, **facts)
    return folder / "new", (f"--model={run}/model",)


def checkpoint_of_a_run(folder, **facts):
    run, _ = unfinished(folder, **facts)
    (checkpoint,) = (run / "checkpoints").iterdir()
    return folder / "new", (f"--init_checkpoint={checkpoint}",)


def another_run(folder, **facts):
    run, _ = unfinished(folder, **facts)
    return folder / "new", (f"--resume={run}",)


def another_complete_run(folder, **facts):
    run, _ = complete(folder, **facts)
    return folder / "new", (f"--resume={run}",)


def seeds(folder, **facts):
    for seed in (1, 2):
        folders.write_run(folder / f"out/seed-{seed}", scores={"f1": 1.0}, **facts)
    return folder / "out", ("--seeds=1,2",)


def hub_name(folder, **facts):
    commit = "0123456789" * 4
    repository = folder / "hub/models--someone--tiny"
    folders.write_model(repository / "snapshots" / commit, **facts)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return folder / "new", ("--model=someone/tiny",)


DOORS = [
    complete,
    unfinished,
    without_checkpoints,
    model,
    init_checkpoint,
    model_of_a_run,
    checkpoint_of_a_run,
    another_run,
    another_complete_run,
    seeds,
    hub_name,
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("program", TRAINED_WITH)
def test_predictions_take_the_settings_of_their_model_by_every_door(
    program, door, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    trained_with = TRAINED_WITH[program]
    folder, argv = door(tmp_path, saved=trained_with, **LABELS.get(program, {}))
    resume = next((flag[9:] for flag in argv if flag.startswith("--resume=")), "auto")
    config, specs = runs_of(program, folder, *predicts, *argv, resume=resume)
    assert flat(config).items() >= trained_with.items()
    for spec in specs:
        assert spec.config.items() >= trained_with.items()
        assert spec.start.saved == trained_with


@pytest.mark.parametrize("program", TRAINED_WITH)
def test_given_flags_win_and_a_difference_is_said(program, tmp_path):
    trained_with = TRAINED_WITH[program]
    folder, _ = complete(tmp_path, saved=trained_with, **LABELS.get(program, {}))
    said = []
    length = trained_with["max_seq_length"]
    given = f"--max_seq_length={length + 16}"
    spec = spec_of(program, folder, *predicts, given, said=said)
    assert spec.config["max_seq_length"] == length + 16
    (note,) = [text for text in said if text.startswith("note: --")]
    assert note == f"note: --max_seq_length {length + 16}: the model was trained with {length}"
    said.clear()
    spec_of(program, folder, *predicts, f"--max_seq_length={length}", said=said)
    assert not [text for text in said if text.startswith("note: --")]


def test_a_training_has_its_own_settings(tmp_path):
    """But the pooling of a model of sentence-transformers, and where it goes on, as it began."""
    folders.write_model(tmp_path / "m", saved=TRAINED_WITH["bert-squad"])
    trains = "--do_train", "--train_file=t", f"--model={tmp_path}/m", "--max_seq_length=128"
    config, _ = runs_of("bert-squad", tmp_path / "new", *trains)
    assert not config.windows.version_2_with_negative
    assert config.windows.doc_stride == 128
    fixed = {"--pooling": "cls", "--max_seq_length": 128, "--normalize": True}
    run = folders.write_run(tmp_path / "vectors", steps=(8,), fixed=fixed)
    config, _ = runs_of("bert-embedder", run, "--do_train", "--train_file=t")
    assert config.vectors.pooling == "cls"
    config, _ = runs_of("bert-embedder", tmp_path / "other", *trains)
    assert config.vectors.pooling == "mean"


def test_the_pooling_of_sentence_transformers_is_a_settled_flag(tmp_path):
    folder = folders.write_model(tmp_path / "st")
    write_lines(
        folder / "modules.json",
        '[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]',
    )
    write_lines(folder / "1_Pooling/config.json", '{"pooling_mode_cls_token": true}')
    trains = "--do_train", "--train_file=t", f"--model={folder}"
    spec = spec_of("bert-embedder", tmp_path / "new", *trains)
    assert (spec.config["pooling"], spec.config["normalize"]) == ("cls", True)


def test_a_named_tasks_settings_need_its_data(tmp_path):
    """`--data_dir` of a model that was trained on CoLA is CoLA's; without it the files are own."""
    saved = {"task_name": "cola", "max_seq_length": 64}
    folder, _ = complete(tmp_path, saved=saved, id2label={"0": "0", "1": "1"})
    spec = partial(spec_of, "bert-classifier", folder)
    assert spec("--do_eval", "--data_dir=glue").config["task_name"] == "cola"
    assert spec(*predicts).config["task_name"] is None
    refused(lambda: spec("--do_eval", "--from_hub", "--task_name=null"), "--task_name")


# -- where a run starts ----------------------------------------------------------------------------

SQUAD = "--do_train", "--train_file=t"
PREDICT_ONLY = predicts


def where(spec, folder):
    """The weights that a run starts from, relative to the test's folder."""
    weights = spec.start.weights
    return None if weights is None else str(weights.relative_to(folder))


RUNS = {  # the steps of checkpoints, the best of them, whether the training is complete
    "nothing": None,
    "unfinished": ((8, 16), None, False),
    "unfinished, evaluated": ((8, 16), 8, False),
    "complete": ((8, 16, 24), None, True),
    "complete, best kept": ((8, 16, 24), 16, True),
    "complete, checkpoints removed": ((), 16, True),
    "at its end, not complete": ((16, 24), None, False),
}
NEWEST = "out/checkpoints/rows-{:012d}"
STARTS = [  # the folder, the command -> weights, whether it is complete, steps
    ("nothing", SQUAD, None, False, None),
    ("nothing", (*SQUAD, "--model={}/m"), "m", False, None),
    ("unfinished", SQUAD, NEWEST.format(16 * 32), False, 16),
    ("unfinished", PREDICT_ONLY, NEWEST.format(16 * 32), False, 16),
    ("unfinished", (*SQUAD, "--model={}/m"), NEWEST.format(16 * 32), False, 16),
    ("unfinished, evaluated", SQUAD, NEWEST.format(16 * 32), False, 16),
    ("unfinished, evaluated", PREDICT_ONLY, NEWEST.format(8 * 32), False, 8),
    ("complete", SQUAD, "out/model", True, 24),
    ("complete", PREDICT_ONLY, "out/model", True, 24),
    ("complete, best kept", SQUAD, "out/model", True, 16),
    ("complete, best kept", PREDICT_ONLY, "out/model", True, 16),
    ("complete, best kept", (*PREDICT_ONLY, "--model={}/m"), "out/model", True, 16),
    ("complete, checkpoints removed", SQUAD, "out/model", True, 16),
    ("complete, checkpoints removed", PREDICT_ONLY, "out/model", True, 16),
    ("at its end, not complete", SQUAD, NEWEST.format(24 * 32), False, 24),
    ("at its end, not complete", PREDICT_ONLY, NEWEST.format(24 * 32), False, 24),
]


def write(folder, kind):
    if RUNS[kind]:
        steps, best, is_complete = RUNS[kind]
        scores = {"f1": 50.0} if is_complete else None
        folders.write_run(folder / "out", steps=steps, best=best, scores=scores)
    folders.write_model(folder / "m")
    texts_flags = f"--bert_config_file={folder}/m/config.json", f"--vocab_file={folder}/m/vocab.txt"
    return [*texts_flags, "--max_seq_length=96"]


@pytest.mark.parametrize(("kind", "argv", "weights", "is_complete", "steps"), STARTS)
def test_where_a_run_starts(kind, argv, weights, is_complete, steps, tmp_path):
    more = write(tmp_path, kind)
    argv = [flag.format(tmp_path) for flag in argv]
    spec = spec_of("bert-squad", tmp_path / "out", *argv, *more)
    start = spec.start
    assert (where(spec, tmp_path), start.is_complete, start.steps) == (weights, is_complete, steps)


@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind != "nothing"])
def test_resume_never_starts_from_the_beginning(kind, tmp_path):
    more = write(tmp_path, kind)
    argv = *SQUAD, f"--model={tmp_path}/m", "--resume=never"
    spec = spec_of("bert-squad", tmp_path / "out", *argv, *more, resume="never")
    assert where(spec, tmp_path) == "m"
    assert not spec.start.goes_on


@pytest.mark.parametrize("kind", [kind for kind in RUNS if RUNS[kind] and RUNS[kind][0]])
def test_another_runs_progress_is_its_newest_checkpoint_for_a_training(kind, tmp_path):
    more = write(tmp_path, kind)
    resume = str(tmp_path / "out")
    trains = spec_of("bert-squad", tmp_path / "new", *SQUAD, *more, resume=resume)
    newest = max(RUNS[kind][0])
    assert where(trains, tmp_path) == NEWEST.format(newest * 32)
    assert not trains.start.is_complete
    of_checkpoints = f"{resume}/checkpoints"
    again = spec_of("bert-squad", tmp_path / "new", *SQUAD, *more, resume=of_checkpoints)
    assert where(again, tmp_path) == NEWEST.format(newest * 32)


def test_the_checkpoints_of_another_run_are_that_run(tmp_path):
    """Of which predictions take the best."""
    more = write(tmp_path, "unfinished, evaluated")
    for place in ("out", "out/checkpoints"):
        resume = str(tmp_path / place)
        spec = spec_of("bert-squad", tmp_path / "new", *PREDICT_ONLY, *more, resume=resume)
        assert where(spec, tmp_path) == NEWEST.format(8 * 32)
    one = str(tmp_path / NEWEST.format(16 * 32))
    spec = spec_of("bert-squad", tmp_path / "new", *PREDICT_ONLY, *more, resume=one)
    assert str(spec.start.weights) == one


def test_never_is_for_what_other_jobs_have_left(tmp_path, monkeypatch):
    """Not for what this job has begun, when it starts again; of seeds each for itself."""
    monkeypatch.setenv("RINGBERT_JOB_ID", "host-1-2")
    more = write(tmp_path, "nothing")
    start = {"began": 0, "what": "training", "ranks": 1, "from": "", "step": 0, "seconds": 1}
    for seed, job in ((1, "host-1-2"), (2, "host-7-8")):
        run = folders.write_run(tmp_path / f"out/seed-{seed}", scores={"f1": 1.0})
        (run / "history.json").write_text(json.dumps([start | {"job": job}]))
    argv = *SQUAD, *more, "--seeds=1,2", f"--model={tmp_path}/m"
    _, (begun, old) = runs_of("bert-squad", tmp_path / "out", *argv, resume="never")
    assert begun.start.is_complete
    assert not old.start.goes_on
    (tmp_path / "out/seed-2/history.json").write_text("damaged")
    _, (_, old) = runs_of("bert-squad", tmp_path / "out", *argv, resume="never")
    assert not old.start.goes_on


def test_a_complete_model_that_somebody_changed_is_named(tmp_path):
    more = write(tmp_path, "complete")
    said = []
    spec_of("bert-squad", tmp_path / "out", *PREDICT_ONLY, *more, said=said)
    assert not [text for text in said if "SHA-256" in text]
    (tmp_path / "out/model/model.safetensors").write_text("other weights")
    spec_of("bert-squad", tmp_path / "out", *PREDICT_ONLY, *more, said=said)
    (warning,) = [text for text in said if "SHA-256" in text]
    assert warning.startswith(f"warning: {tmp_path}/out/model/model.safetensors")


def test_a_training_whose_settings_nobody_knows_any_more_begins_anew(tmp_path):
    """As a complete run of an earlier version without its checkpoints."""
    more = write(tmp_path, "complete, checkpoints removed")
    (tmp_path / "out/run.json").write_text('{"config": {}}')
    assert not spec_of("bert-squad", tmp_path / "out", *SQUAD, *more).start.goes_on
    assert spec_of("bert-squad", tmp_path / "out", *PREDICT_ONLY, *more).start.is_complete


# -- refusals --------------------------------------------------------------------------------------


def test_what_cannot_be_resolved_is_one_line(tmp_path):
    out = tmp_path / "out"
    more = write(tmp_path, "unfinished")
    new = tmp_path / "new"
    squad = partial(spec_of, "bert-squad")
    refused(lambda: squad(new, *PREDICT_ONLY), "no trained run", new)
    refused(lambda: squad(new, *SQUAD), "no model configuration", "--bert_config_file", "--model")
    refused(lambda: squad(new, *SQUAD, *more, "--max_seq_length=600"), "128", "600")
    refused(lambda: squad(new, *SQUAD, *more, resume=str(tmp_path / "no")), "--resume", "no")
    refused(lambda: squad(out, *PREDICT_ONLY, *more, "--metric=squad_v2"), "--metric", "version_2")
    short = "--max_seq_length=20", "--max_query_length=64"
    refused(lambda: squad(out, *PREDICT_ONLY, *more, *short), "--max_seq_length 20", "67")
    folders.write_run(tmp_path / "many/seed-1", steps=(8,))
    line = "several seeds (seed-1)", "--seeds"
    refused(lambda: squad(tmp_path / "many", *SQUAD, *more), *line)
    write_lines(new / "model.ckpt-90.index", "")
    write_lines(new / "model.ckpt-200.index", "")
    refused(lambda: squad(new, *SQUAD, *more), "TensorFlow 1", f"{new}/model.ckpt-200 ")
    (out / "run.json").write_text('{"config": [1]}')
    refused(lambda: squad(out, *PREDICT_ONLY), out / "run.json", "damaged")
    with pytest.raises(OSError, match="File name too long"):  # one line too: the system's
        squad(tmp_path / ("x" * 300), *PREDICT_ONLY)


def test_settings_of_a_model_that_are_no_settings_are_named(tmp_path):
    folder = folders.write_model(tmp_path / "m", saved={"max_seq_length": "64"})
    argv = *predicts, f"--model={folder}"
    line = f"{folder}: --max_seq_length must be an integer, got '64'"
    refused(lambda: spec_of("bert-squad", tmp_path / "new", *argv), line)


def test_seeds_that_start_from_different_models_are_refused(tmp_path):
    for seed, layers in ((1, 1), (2, 2)):
        folders.write_run(tmp_path / f"out/seed-{seed}", scores={}, num_hidden_layers=layers)
    argv = *predicts, "--seeds=1,2", "--max_seq_length=96"
    refused(lambda: runs_of("bert-squad", tmp_path / "out", *argv), "seed-2", "--resume never")


# -- the value -------------------------------------------------------------------------------------


def test_a_spec_is_json_and_its_digest_tells_runs_apart(tmp_path):
    more = write(tmp_path, "nothing")
    command = partial(spec_of, "bert-squad", tmp_path / "out", *SQUAD, *more)
    spec = command()
    assert json.loads(json.dumps(as_json(spec))) == as_json(spec)
    digests = {digest_of(spec), digest_of(command())}
    assert len(digests) == 1
    for flag in ("--seed=7", "--learning_rate=1e-4", "--precision=bf16", f"--model={tmp_path}/m"):
        digests.add(digest_of(command(flag)))
    assert len(digests) == 5


def test_a_run_is_described_as_the_user_named_it(tmp_path):
    """Page and card have a remote file's URL, not the name of its copy in the cache."""
    more = write(tmp_path, "nothing")
    argv = [f"--output_dir={tmp_path}/out", *SQUAD, *more, "--train_file=/cache/5317/t.json"]
    config = flags.parse(named(SETTINGS["bert-squad"]), argv, prog="bert-squad")
    written = {name: flat(config)[name] for name in config.given}
    written["train_file"] = "s3://bucket/t.json"
    program = PROGRAMS["bert-squad"]
    found = resolve(program, config, written, tmp_path / "out", "auto", Readings(), print)
    (spec,) = found.specs
    assert spec.describes["data"] == {"train_file": "s3://bucket/t.json"}
    assert found.config.questions.train_file == "/cache/5317/t.json"


def test_nothing_costly_is_imported():
    """Resolution is done before TensorFlow, Keras and MPI are there."""
    modules = ["tasks.runs.resolve.plan", "tasks.runs.resolve.labels"]
    modules += [each.__module__ for each in PROGRAMS.values()]
    code = f"import {', '.join(modules)}, sys\n"
    code += "print({'tensorflow', 'keras', 'mpi4py'} & sys.modules.keys() or 'none')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "none\n", done.stderr


def test_each_file_of_a_folder_is_opened_once(tmp_path, monkeypatch):
    """Checkpoints are also compared with their manifest, which reads their bytes."""
    folders.write_run(tmp_path / "out", scores={"f1": 1.0}, saved={"max_seq_length": 96})
    opened = []

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str | Path):
            path = Path(arguments[0])
            if path.parent == tmp_path / "out" or path.name == "task.json":
                opened.append(path.name)

    sys.addaudithook(note)
    spec_of("bert-squad", tmp_path / "out", *PREDICT_ONLY)
    names = sorted(opened)
    opened.clear()
    assert names == ["result.json", "run.json", "task.json"]


# -- `--plan` --------------------------------------------------------------------------------------


def write_questions(file, num):
    paragraphs = []
    for number in range(num):
        answer = {"text": "cat", "answer_start": 6}
        question = {"id": str(number), "question": "who ?", "answers": [answer]}
        context = f"a fox cat {number}"
        paragraphs.append({"context": context, "qas": [question]})
    file.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))


def plans_of(program, folder, *argv, ranks=1):
    argv = [f"--output_dir={folder}", *argv]
    config = flags.parse(named(SETTINGS[program]), argv, prog=program)
    said = []
    return planned(PROGRAMS[program], config, ranks, said.append), said


@pytest.mark.usefixtures("cache")
def test_a_plan_is_exact_or_says_about(tmp_path):
    """Texts are rows; questions may be several, until their rows are in the cache."""
    more = write(tmp_path, "nothing")
    rows = [f"the cat {number},{number % 2}" for number in range(48)]
    write_lines(tmp_path / "train.csv", "text,label", *rows)
    argv = [*more, f"--train_file={tmp_path}/train.csv", "--do_train", "--train_batch_size=4"]
    argv += ["--num_train_epochs=2", "--allow_unknown"]
    (run,), said = plans_of("bert-classifier", tmp_path / "out", *argv, ranks=3)
    assert (run["plan"]["rows"], run["plan"]["steps"], run["plan_about"]) == (48, 24 // 3, None)
    assert run["ranks"] == run["plan"]["size"] == 3
    assert not [line for line in said if "about" in line]
    write_questions(tmp_path / "train.json", 20)
    argv[3] = f"--train_file={tmp_path}/train.json"
    (run,), said = plans_of("bert-squad", tmp_path / "out", *argv)
    assert (run["plan"], run["plan_about"]["steps"]) == (None, 10)
    (line,) = [line for line in said if line.startswith("plan: ")]
    assert line.count("about") == 3
    assert "about 10 steps" in line
    assert not (tmp_path / "out").exists()


def test_a_plan_of_what_is_complete_trains_nothing(tmp_path):
    more = write(tmp_path, "complete")
    (run,), said = plans_of("bert-squad", tmp_path / "out", *SQUAD, *more)
    assert (run["plan"], run["plan_about"]) == (None, None)
    assert run["goes_on_from"] == {"complete": True, "steps": 24}
    assert said == [f"{tmp_path}/out: the complete training in {tmp_path}/out stays as it is"]


def test_a_plan_refuses_what_the_run_would(tmp_path):
    more = write(tmp_path, "nothing")
    fixed = {"--learning_rate": 1e-4, "--max_seq_length": 96}
    folders.write_run(tmp_path / "out", steps=(8,), fixed=fixed)
    plan = partial(plans_of, "bert-squad", tmp_path / "out", *SQUAD, *more)
    refused(plan, "--learning_rate = 0.0001", "5e-05")
    refused(partial(plan, "--seeds=1,2"), "holds a single run")


def test_a_plan_downloads_no_model_and_reads_no_store(tmp_path):
    plan = partial(plans_of, "bert-squad")
    named_model = *SQUAD, "--model=someone/none"
    refused(lambda: plan(tmp_path / "new", *named_model), "someone/none", "cache")
    refused(lambda: plan("memory://bucket/run", *SQUAD), "--plan", "memory://bucket/run")


def test_a_plan_is_json_on_standard_output_and_words_on_standard_error(tmp_path, capsys):
    more = write(tmp_path, "unfinished")
    argv = [f"--output_dir={tmp_path}/out", *PREDICT_ONLY, *more, "--plan"]
    with pytest.raises(SystemExit) as stop:
        main_of("bert-squad")(argv)
    printed = capsys.readouterr()
    assert not stop.value.code
    (run,) = json.loads(printed.out)
    assert (run["program"], run["does"]) == ("bert-squad", ["eval", "predict"])
    assert f"checkpoint {tmp_path}/out/checkpoints" in printed.err
    assert "tensorflow" not in printed.err
