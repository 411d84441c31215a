"""The programs from Python: the names of `ringbert`, and jobs as typed arguments."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ringbert
from ringbert.errors import InputError
from tasks import flags
from tasks.classifier.program import Config as ClassifierConfig
from tasks.launching.jobs import argv_of
from tasks.pretraining.program import Config as PretrainingConfig
from tasks.squad.program import Config as SquadConfig

JOB = ringbert.Squad(train_file="a", output_dir="o")
HEAVY = {"tensorflow", "keras", "mpi4py", "transformers", "datasets", "torch"}


# -- names --------------------------------------------------------------------------------------------------------


def test_the_jobs_load_neither_tensorflow_nor_mpi():
    code = (
        "import sys, ringbert; assert 'tasks' not in sys.modules; ringbert.InputError; "
        "print(ringbert.Squad(train_file='a', output_dir='b')); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown, loaded = done.stdout.splitlines()
    assert shown == "Squad(output_dir='b', do_train=True, train_file='a')"
    assert not HEAVY & set(loaded.split())


def test_the_names_are_listed_and_others_are_refused():
    assert {"launch", "Squad", "Classifier"} <= set(dir(ringbert))
    with pytest.raises(AttributeError, match="module 'ringbert' has no attribute 'lunch'"):
        _ = ringbert.lunch


# -- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        ({"train_file": "a"}, {"do_train"}),
        ({"predict_file": "a"}, {"do_predict"}),
        ({"train_file": "a", "predict_file": "b"}, {"do_train", "do_predict"}),
        ({"train_file": "a", "predict_file": "b", "do_predict": True}, {"do_predict"}),
        ({"train_file": "a", "predict_file": "b", "do_train": True, "do_predict": False}, {"do_train"}),
        ({"dataset_name": "rajpurkar/squad"}, {"do_train", "do_predict"}),
    ],
)
def test_files_say_what_squad_does(arguments, done):
    job = ringbert.Squad(output_dir="out", **arguments)
    assert {name for name in ("do_train", "do_predict") if getattr(job, name)} == done


def test_files_say_what_the_other_jobs_do():
    own = ringbert.Classification(output_dir="o", train_file="a", dev_file="b", test_file="c")
    assert (own.do_train, own.do_eval, own.do_predict) == (True, True, True)
    assert own.predict_file == "c"
    task = ringbert.Classification(output_dir="o", task_name="mrpc", data_dir="d")
    assert (task.do_train, task.do_eval, task.do_predict) == (True, True, False)
    pretraining = ringbert.Pretraining(output_dir="o", input_file="a")
    assert (pretraining.do_train, pretraining.do_eval) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trian_file": "a"}, r"Squad has no argument trian_file; did you mean train_file\?"),
        ({"nonsense": 1}, r"Squad has no argument nonsense; help\(ringbert.Squad\) lists all arguments"),
        ({"bf16": True}, r"Squad has no argument bf16; write precision='bf16'"),
        ({}, "nothing to do: Squad needs train_file or predict_file"),
        ({"do_train": True}, r"do_train needs train_file \(or dataset_name\)"),
        ({"train_file": "a", "learning_rate": "fast"}, 'learning_rate must be a number, got "fast"'),
        ({"train_file": "a", "learning_rate": -1}, "learning_rate must be at least 0, got -1"),
        ({"train_file": "a", "max_seq_length": 384.5}, r"max_seq_length must be an integer, got 384\.5"),
        ({"train_file": "a", "model": "b", "model_name_or_path": "c"}, "model_name_or_path gives model a second"),
        ({"train_file": "a", "output_dir": None}, "output_dir must be text, got null"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(InputError, match=f"^{message}"):
        ringbert.Squad(**{"output_dir": "out", **arguments})


def test_a_required_argument_is_named():
    with pytest.raises(InputError, match=r"^Pretraining needs output_dir and input_file$"):
        ringbert.Pretraining()


def test_arguments_need_names():
    with pytest.raises(InputError, match=r"^Squad takes arguments by name, such as train_file=…; '/a' came with"):
        ringbert.Squad(Path("/a"))
    with pytest.raises(
        InputError, match=r"^Pretraining takes arguments by name, such as input_file=…; 3 came with"
    ):
        ringbert.Pretraining(3, output_dir="o")


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("squad",), {}, r"job must be ringbert.Squad\(…\), .* or ringbert.Pretraining\(…\), got 'squad'$"),
        ((ringbert.Squad,), {}, r"job must be Squad with its arguments, ringbert.Squad\(…\), got the class$"),
        ((JOB,), {"rank": 2}, r"launch has no argument rank; did you mean ranks\?$"),
        ((JOB,), {"nonsense": 2}, "launch has no argument nonsense; there are job, ranks, "),
        ((), {"ranks": 2}, "launch: missing a required argument: 'job'; its arguments are job, ranks"),
        ((JOB, 2, "host"), {}, "launch: too many positional arguments; its arguments are job, ranks"),
    ],
)
def test_launches_that_are_refused(arguments, named, message):
    with pytest.raises(InputError, match=f"^{message}"):
        ringbert.launch(*arguments, **named)


@pytest.mark.parametrize(
    ("job", "config_class"),
    [
        (
            ringbert.Squad(
                output_dir=Path("~/나의 폴더"), train_file="it's; $HOME.json", learning_rate=np.float64(1e-4) / 3,
                packing="off", num_train_steps=np.int64(7), model_name_or_path="-x", dataset_name="",
            ),
            SquadConfig,
        ),
        (ringbert.Classification(output_dir="o", train_file="a", dev_file="b", eval_steps=9), ClassifierConfig),
        (ringbert.Pretraining(output_dir="o", input_file="a,b", num_train_epochs=0.1), PretrainingConfig),
    ],
)  # fmt: skip
def test_the_command_line_gives_the_same_configuration(job, config_class):
    parsed = flags.parse(config_class, argv_of(job), prog="", description="")
    assert dataclasses.asdict(parsed) == dataclasses.asdict(job)
    assert dataclasses.replace(job, seed=3).seed == 3


def test_what_a_command_line_cannot_say_is_refused():
    with pytest.raises(InputError, match="train_file cannot be 'null'"):
        argv_of(ringbert.Squad(output_dir="o", train_file="null"))


def test_the_documentation_lists_the_arguments():
    text = str(ringbert.Squad.__doc__)
    assert "\n  output_dir: folder of this run: checkpoints, metrics, results (required)\n" in text
    assert all(f"\n  {field.name}: " in text for field in dataclasses.fields(ringbert.Squad))
    assert "--max_seq_length" not in text
    names = [line.split(":")[0].strip() for line in text.split("Args:")[1].splitlines() if line[2:3].strip()]
    assert names[:5] == ["model", "train_file", "predict_file", "output_dir", "train_batch_size"]
    fields = {field.name: field.metadata["group"] for field in dataclasses.fields(ringbert.Squad)}
    assert fields[names[-1]] == "machine"
    assert names == list(inspect.signature(ringbert.Squad).parameters)
