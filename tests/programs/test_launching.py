"""`ringbert.launch` and its jobs: arguments, what is shown of the ranks, how they end, and what is
raised."""

import inspect
import os
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from harness.jobs import assert_gone, started
from harness.program_runs import ROOT, written_scores
from harness.refusals import refused
from harness.squad_files import make_entries, write_squad
from harness.texts import write_lines, write_model

import ringbert
from ringbase.errors import as_arguments
from ringbase.files import read_json

squad = partial(ringbert.Squad, output_dir="out", device="cpu")
JOB = squad(train_file="a.json")


@pytest.mark.parametrize(
    ("kind", "arguments", "done"),
    [
        ("Squad", {"train_file": "a", "predict_file": "b", "do_predict": True}, {"do_predict"}),
        ("Squad", {"dataset_name": "rajpurkar/squad"}, {"do_train", "do_predict"}),
        (
            "Classification",
            {"train_file": "a", "dev_file": "b", "test_file": "c"},
            {"do_train", "do_eval", "do_predict"},
        ),
        ("Classification", {"task_name": "mrpc", "data_dir": "d"}, {"do_train", "do_eval"}),
        ("Pretraining", {"input_file": "a"}, {"do_train"}),
    ],
)
def test_files_say_what_a_job_does(kind, arguments, done):
    job = getattr(ringbert, kind)(output_dir="out", **arguments)
    names = ("do_train", "do_eval", "do_predict")
    assert {name for name in names if getattr(job, name, False)} == done


def test_a_job_tells_its_plan(tmp_path):
    """As `--plan` does (tests/files/test_resolve.py); only a script knows its own task."""
    write_model(tmp_path)
    write_lines(tmp_path / "train.csv", "text,label", *(f"cat {n},{n % 2}" for n in range(64)))
    model = {"bert_config_file": f"{tmp_path}/bert_config.json"}
    job = ringbert.Classification(
        output_dir=str(tmp_path / "out"),
        train_file=str(tmp_path / "train.csv"),
        vocab_file=str(tmp_path / "vocab.txt"),
        num_train_epochs=2,
        **model,
    )
    (run,) = job.plan(ranks=2)
    assert (run["does"], run["plan"]["steps"], run["plan"]["size"]) == (["train"], 2, 2)
    refused(partial(squad(train_file="a.json").plan, 2), "give bert_config_file")
    script = ringbert.Script(tmp_path / "train.csv", output_dir="out")
    refused(script.plan, "train.csv", "--plan")


def test_a_job_shows_its_command():
    assert (
        str(JOB) == "Squad: bert-squad --output_dir=out --device=cpu --train_file=a.json --do_train"
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: squad(trian_file="a"), ["trian_file", "train_file"]),
        (squad, ["nothing to do"]),
        (lambda: squad(train_file="a", learning_rate="fast"), ["learning_rate", "fast"]),
        (lambda: squad(train_file=["a", "b"]), ["train_file", "a", "b"]),
        (lambda: squad(train_file="a", max_seq_length=[9]), ["max_seq_length", "[9]"]),
        (lambda: squad(train_file="a", seeds=[1, 1]), ["seeds", "1,1"]),
        (lambda: squad(train_file="a", seeds=["1,2"]), ["seeds", "comma"]),
        (lambda: ringbert.launch(ringbert.Squad), ["job", "ringbert.Squad"]),
        (lambda: ringbert.launch(JOB, ranks=5, hosts={"a": 2, "b": 2}), ["-np", "4", "5"]),
    ],
)
def test_jobs_and_launches_that_are_refused(call, named):
    refused(call, *named)


def test_messages_name_arguments_and_keep_commands():
    told = "--max-rows 1 (--a, --b): run `x --y z`, or --help, or pass --max_rows on"
    assert as_arguments(told) == "max_rows 1: run `x --y z`, or --help, or pass max_rows on"
    squads = squad(train_file="none.json", model="/nope")
    assert "--" not in refused(partial(squads.plan, 2), "/nope")


def test_the_files_of_a_script_may_be_names_in_a_list(tmp_path):
    (tmp_path / "own.py").touch()
    job = ringbert.Script(tmp_path / "own.py", output_dir="o", input_file=["a", "b"], num_file=3)
    assert job.argv == ["--output_dir=o", "--input_file=a,b", "--num_file=3"]


def test_a_script_takes_paths_and_booleans_as_flags_do():
    script = ROOT / "examples/own_task.py"
    job = ringbert.Script(script, output_dir=Path("stars"), do_train="false")
    assert (job.output_dir, job.do_train) == ("stars", False)
    assert job.argv == ["--output_dir=stars", "--do_train=false"]


def test_flags_with_commas_take_lists():
    assert squad(train_file="a", seeds=[1, 2]).argv == squad(train_file="a", seeds="1,2").argv
    assert squad(train_file="a", seeds=range(2)).seeds == "0,1"
    several = ringbert.Classification(
        output_dir="out", train_file="a", multi_label=True, label_column=("toxic", "insult")
    )
    assert several.label_column == "toxic,insult"
    shards = ringbert.Pretraining(
        output_dir="out", input_file=["a/*", "b/*"], eval_input_file=["c"]
    )
    assert (shards.input_file, shards.eval_input_file) == ("a/*,b/*", "c")
    own = ringbert.Script(ROOT / "examples/own_task.py", output_dir="out", seeds=[1, 2])
    assert "--seeds=1,2" in own.argv


@pytest.mark.parametrize("kind", ["Squad", "Classification", "Tagging", "Pretraining"])
def test_a_job_s_signature_has_its_flags(kind):
    """Those of --help, with type and default."""
    job = getattr(ringbert, kind)
    parameters = inspect.signature(job).parameters
    # the first of a flag's names, as argparse writes them
    listed = re.findall(r"^  --(?:\[no\])?(\w+)", job.__doc__, re.MULTILINE)
    assert set(listed) == {*parameters, "config", "flagfile", "version"}
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    assert needed - {"input_file"} == {"output_dir"}
    assert parameters["learning_rate"].annotation is float
    assert parameters["output_dir"].annotation is str


def test_a_result_is_a_table_in_notebooks(tmp_path):
    result = ringbert.Result({"eval_f1": 0.88, "loss": 1.5}, Path("a<b"), 12.0, 2, {})
    shown = []
    parser = HTMLParser()
    parser.handle_data = shown.append
    parser.feed(result._repr_html_())
    assert shown == ["eval_f1", "0.8800", "loss", "1.5000", "(12 s on 2 ranks, a<b)"]
    page = tmp_path / "report.html"
    page.touch()
    assert f'href="{page.as_uri()}"' in replace(result, output_dir=tmp_path)._repr_html_()


def with_tensorflow(folder, source):
    """The environment of ranks that import a module of this source as TensorFlow."""
    (folder / "site").mkdir()
    (folder / "site/tensorflow.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([f"{folder}/site", str(ROOT)])}


def test_the_programs_line_is_raised_and_shown_once(tmp_path, monkeypatch, capsys):
    """On one rank, without mpirun, in a folder with packages of the same names."""
    monkeypatch.chdir(tmp_path)
    for name in ("tasks", "bert", "distributed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise AssertionError('imported from the working folder')"
        )
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    refused(lambda: ringbert.launch(JOB), "OMPI_COMM_WORLD_SIZE", "4")  # ranks cannot start ranks
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    monkeypatch.setenv("PATH", "/nonexistent")
    variables = with_tensorflow(
        tmp_path, "raise ModuleNotFoundError(\"No module named 'tensorflow'\")"
    )
    refused(lambda: ringbert.launch(JOB, environment=variables), "TensorFlow is not installed")
    shown = capsys.readouterr()
    assert shown.err.startswith("bert-squad: error: TensorFlow is not installed")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_crash_is_raised_with_the_last_lines(tmp_path):
    dies = "import os\nprint('the last line', flush=True)\nos.kill(os.getpid(), 9)\n"
    variables = with_tensorflow(tmp_path, dies)
    with pytest.raises(RuntimeError, match=r"(?s)bert-squad .*137.*\nthe last line\n"):
        ringbert.launch(JOB, environment=variables)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_message_is_what_a_rank_told_and_not_what_is_printed(ranks, tmp_path):
    """Also where mpirun writes what the ranks print into files."""
    told = tmp_path / "told.py"
    told.write_text(
        "import sys\n"
        "from distributed.world import World\n"
        "from ringbase.errors import InputError\n"
        "print('bert-squad: error: only printed', file=sys.stderr)\n"
        "with World.join(None, 'told'):\n"
        "    raise InputError('bad\\n한' + 2000 * '국')\n"
    )
    printed = tmp_path / "printed.py"
    printed.write_text("import sys\nsys.exit('bert-squad: error: only printed')\n")
    options = {"ranks": ranks, "progress": False}
    if ranks > 1:
        options["mpi_args"] = ["--oversubscribe", "--output", f"file={tmp_path}/output"]
    found = refused(lambda: ringbert.launch(ringbert.Script(told, output_dir="o"), **options))
    assert found.startswith("bad 한국국")
    with pytest.raises(RuntimeError):
        ringbert.launch(ringbert.Script(printed, output_dir="o"), **options)


def script(**arguments):
    """The command line of a script that launches Squad with these arguments."""
    code = f"import ringbert; ringbert.launch(ringbert.Squad(**{arguments}))"
    return [sys.executable, "-c", code]


def test_the_ranks_end_with_a_killed_parent(tmp_path):
    file = tmp_path / "child"
    source = f"import os, time\nopen({str(file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    variables = with_tensorflow(tmp_path, source)
    with started(script(train_file="a", output_dir=f"{tmp_path}/out"), **variables) as parent:
        parent.wait_for(lambda: file.exists() and file.read_text())
    assert_gone(int(file.read_text()))


@pytest.fixture
def arguments(tmp_path):
    """Those of a training, whose file and folder have names that a shell would cut."""
    write_model(tmp_path, num_layers=1)
    return {
        "vocab_file": f"{tmp_path}/vocab.txt",
        "bert_config_file": f"{tmp_path}/bert_config.json",
        "train_file": str(write_squad(tmp_path / "it's; $HOME.json", make_entries(200, 1))),
        "output_dir": f"{tmp_path}/나의 폴더",
        "max_seq_length": 40,
        "doc_stride": 9,
        "max_query_length": 9,
        "global_batch_size": 16,
        "device": "cpu",
    }


@pytest.mark.slow
def test_a_job_is_trained_and_scored_and_then_predicts(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments["predict_file"] = write_squad(Path("dev.json"), make_entries(20, 2))
    arguments["output_dir"] = "나의 폴더"
    job = ringbert.Squad(num_train_epochs=np.float64(1) / 3, **arguments)
    first = ringbert.launch(job, ranks=2)
    assert "2 ranks on 1 machine, cpu" in capsys.readouterr().err
    assert (first.ranks, first.output_dir) == (2, tmp_path / "나의 폴더")
    assert first.scores == written_scores(first.output_dir)
    assert first.details == read_json(first.output_dir / "result.json")
    assert first.details["seconds"] == first.seconds > 0
    prediction = ringbert.Squad(**arguments | {"train_file": None})
    assert ringbert.launch(prediction, progress=False).scores == first.scores
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_an_interrupt_saves_the_training(arguments):
    """It reaches this process alone, which hands it on."""
    out = Path(arguments["output_dir"])
    with started(script(num_train_epochs=1000.0, **arguments)) as parent:
        parent.wait_for((out / "metrics.jsonl").exists)
        assert not list(out.glob("checkpoints/*"))
        parent.process.send_signal(signal.SIGINT)
        done = parent.end()
    assert (
        "KeyboardInterrupt: bert-squad was interrupted; launch it again to continue" in done.stderr
    )
    assert len(list(out.glob("checkpoints/rows-*/state.json"))) == 1, done
