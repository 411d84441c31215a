"""Flags: absl's syntax, TOML files, the old command lines, one error line per job."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tasks import corpus, features, flags
from tasks.classifier import program as classifier
from tasks.pretraining import program as pretraining
from tasks.squad.program import Config

ROOT = Path(__file__).resolve().parent.parent
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class Small:
    output_dir: str = field(metadata={"help": "where the run is written", "group": "files"})
    model: str | None = field(
        default=None,
        metadata={"help": "name or folder", "aliases": ("--model_name_or_path",), "group": "files"},
    )
    layers: str = field(default="-1", metadata={"help": "which layers, 100 % by number"})
    max_seq_length: int = field(default=384, metadata={"help": "tokens in a row", "group": "training"})
    learning_rate: float = field(default=5e-5, metadata={"help": "peak rate", "group": "training"})
    num_train_steps: int | None = field(default=None, metadata={"help": "steps", "group": "training"})
    do_train: bool = field(default=False, metadata={"help": "train", "group": "training"})
    do_lower_case: bool = field(default=True, metadata={"help": "lower case", "group": "training"})
    precision: Literal["fp32", "bf16", "fp16"] = field(default="fp32", metadata={"help": "numbers"})

    def __post_init__(self) -> None:
        if self.max_seq_length > 512:
            came = f"--max_seq_length {self.max_seq_length}"
            raise ValueError(f"{came}:\n  the model has 512 positions; lower --max_seq_length")


@dataclass(frozen=True)
class Plain:
    """No groups, no help, no precision."""

    learning_rate: float = 5e-5
    version: str = field(default="x", init=False)
    max_seq_length: int = 128
    do_train: bool = False


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def parse(*argv: str, config_class: type = Small, output_dir: str | None = "out") -> Any:
    start = [f"--output_dir={output_dir}"] if output_dir else []
    return flags.parse(config_class, [*start, *argv], prog="bert-squad", description="Fine-tune on SQuAD.")


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, **options: Any) -> str:
    """The message of the one error line; checks status, prefix and that nothing else is printed."""
    with pytest.raises(SystemExit) as stop:
        parse(*argv, **options)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.endswith("\n")
    assert printed.err.startswith("bert-squad: error: ")
    return printed.err.removeprefix("bert-squad: error: ").strip()


# Values.


def test_defaults_come_from_the_dataclass() -> None:
    assert parse() == Small(output_dir="out")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max_seq_length=128"], {"max_seq_length": 128}),
        (["--max_seq_length", "128"], {"max_seq_length": 128}),
        (["--max-seq-length=128"], {"max_seq_length": 128}),
        (["-max_seq_length=128"], {"max_seq_length": 128}),
        (["-max-seq-length", "128"], {"max_seq_length": 128}),
        (["--max_seq_length=-1"], {"max_seq_length": -1}),
        (["--max_seq_length", "-1"], {"max_seq_length": -1}),
        (["--max_seq_length=1", "--max-seq-length=2"], {"max_seq_length": 2}),
        (["--learning_rate=3e-5"], {"learning_rate": 3e-5}),
        (["--learning_rate", "-1e-3"], {"learning_rate": -1e-3}),
        (["--learning_rate=1"], {"learning_rate": 1.0}),
        (["--num_train_steps=7"], {"num_train_steps": 7}),
        (["--num_train_steps=7", "--num_train_steps=null"], {"num_train_steps": None}),
        (["--layers", "-1,-2,-3"], {"layers": "-1,-2,-3"}),
        (["--layers=-1"], {"layers": "-1"}),
        (["--layers", "-1"], {"layers": "-1"}),
        (["--layers=--strange"], {"layers": "--strange"}),
        (["--layers="], {"layers": ""}),
        (["--layers=null"], {"layers": "null"}),
        (["--model=123"], {"model": "123"}),
        (["--model=true"], {"model": "true"}),
        (["--model=~"], {"model": "~"}),
        (["--model=a=b: [c] #d"], {"model": "a=b: [c] #d"}),
        (["--model=gs://bucket/*.json,x"], {"model": "gs://bucket/*.json,x"}),
        (["--model_name_or_path=klue/bert-base"], {"model": "klue/bert-base"}),
        (["--model-name-or-path", "x", "--model=y"], {"model": "y"}),
        (["--precision=bf16"], {"precision": "bf16"}),
    ],
)
def test_values(argv: list[str], expected: dict[str, Any]) -> None:
    config = parse(*argv)
    assert config == Small(output_dir="out", **expected)
    assert all(type(getattr(config, name)) is type(value) for name, value in expected.items())


@pytest.mark.parametrize("argv", [["--do_train"], ["-do_train"], ["--do-train"], ["--do_train", "--layers=x"]])
def test_bare_boolean(argv: list[str]) -> None:
    assert parse(*argv).do_train is True


@pytest.mark.parametrize("word", ["1", "true", "True", "TRUE", "t", "yes", "y"])
def test_true_words(word: str) -> None:
    assert parse(f"--do_train={word}").do_train is True
    assert parse("--do_train", word).do_train is True


@pytest.mark.parametrize("word", ["0", "false", "False", "FALSE", "f", "no", "n"])
def test_false_words(word: str) -> None:
    assert parse(f"--do_lower_case={word}").do_lower_case is False
    assert parse("-do-lower-case", word).do_lower_case is False


@pytest.mark.parametrize(
    "flag",
    [
        "--nodo_lower_case",
        "--no_do_lower_case",
        "--no-do-lower-case",
        "-nodo_lower_case",
        "--nodo-lower-case",
    ],
)
def test_negated_boolean(flag: str) -> None:
    assert parse(flag).do_lower_case is False
    assert parse(flag, "--do_lower_case").do_lower_case is True


def test_every_type_may_be_unset() -> None:
    @dataclass(frozen=True)
    class Unset:
        switch: bool | None = True
        choice: Literal["a", "b"] | None = "a"
        number: float | None = 1.0
        level: Literal[1, 2] = 1

    def read(*argv: str) -> Any:
        return parse(*argv, config_class=Unset, output_dir=None)

    assert read("--switch=null", "--choice=null", "--number=null") == Unset(None, None, None)
    assert read("--noswitch", "--choice=b", "--number=2", "--level=2") == Unset(False, "b", 2.0, 2)


def test_a_number_or_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Either:
        every: int | Literal["auto"] | None = None

    def read(*argv: str) -> Any:
        return parse(*argv, config_class=Either, output_dir=None).every

    assert [read(), read("--every=auto"), read("--every", "12"), read("--every=null")] == [None, "auto", 12, None]
    assert read("--config", write(tmp_path, 'every = "auto"')) == "auto"
    assert read("--config", write(tmp_path, "every = 12")) == 12
    for argv in (["--every=Auto"], ["--every=1.5"], ["--config", write(tmp_path, 'every = "12"')]):
        assert "an integer or one of auto" in refusal(capsys, *argv, config_class=Either, output_dir=None)


def test_argv_defaults_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bert-squad", "--output_dir=here"])
    assert flags.parse(Small, prog="bert-squad", description="") == Small(output_dir="here")


# Refusals.


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lerning_rate=1"], "unknown flag --lerning_rate; did you mean --learning_rate?"),
        (["--lerning-rate", "1"], "unknown flag --lerning-rate; did you mean --learning_rate?"),
        (["--learn=1"], "unknown flag --learn; did you mean --learning_rate?"),
        (["--model_name=x"], "unknown flag --model_name; did you mean --model_name_or_path?"),
        (["--nodo_trian"], "unknown flag --nodo_trian; did you mean --do_train?"),
        (["--nolayers"], "unknown flag --nolayers; did you mean --layers?"),
        (["--l=1"], "unknown flag --l; --help lists all flags"),
        (["--xyzzy"], "unknown flag --xyzzy; --help lists all flags"),
        (
            ["--bert_hub_module_handle=x"],
            "unknown flag --bert_hub_module_handle; TF Hub modules are not read: give their checkpoint by "
            "--init_checkpoint, or --model",
        ),
        (["--nodo_train=1"], "--nodo_train=1: a negated flag takes no value; write --do_train=1"),
        (["train.json"], "unexpected argument 'train.json'; every value belongs to a flag: --name=value"),
        (["--do_train", "maybe"], "unexpected argument 'maybe'; every value belongs to a flag: --name=value"),
        (["--"], "unexpected argument '--'; every value belongs to a flag: --name=value"),
        (["-1"], "unexpected argument '-1'; every value belongs to a flag: --name=value"),
        (["--layers"], "--layers needs a value: --layers=VALUE"),
        (["--layers", "--do_train"], "--layers needs a value: --layers=VALUE"),
        (["--layers", "-do_train"], "--layers needs a value: --layers=VALUE"),
        (["--layers", "-nodo_train"], "--layers needs a value: --layers=VALUE"),
        (["--do_train=maybe"], "--do_train=maybe: expected true or false"),
        (["--max_seq_length=12a"], "--max_seq_length=12a: expected an integer"),
        (["--max_seq_length=384.0"], "--max_seq_length=384.0: expected an integer"),
        (["--max_seq_length=true"], "--max_seq_length=true: expected an integer"),
        (["--max_seq_length="], "--max_seq_length=: expected an integer"),
        (["--max_seq_length=null"], "--max_seq_length=null: expected an integer"),
        (["--num_train_steps=few"], "--num_train_steps=few: expected an integer"),
        (["--learning_rate=fast"], "--learning_rate=fast: expected a number"),
        (["--learning_rate=nan"], "--learning_rate=nan: expected a number"),
        (["--learning_rate=1e999"], "--learning_rate=1e999: expected a number"),
        (["--precision=fp8"], "--precision=fp8: expected one of fp32, bf16, fp16"),
        (
            ["--max_seq_length=513"],
            "--max_seq_length 513: the model has 512 positions; lower --max_seq_length",
        ),
    ],
)
def test_refusals(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *argv) == message


def test_a_required_flag_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--do_train", output_dir=None) == "--output_dir must be given"


def test_other_errors_of_the_dataclass_are_bugs_and_keep_their_traceback() -> None:
    @dataclass(frozen=True)
    class Broken:
        output_dir: str = ""

        def __post_init__(self) -> None:
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        parse(config_class=Broken)


# The file.


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_file_gives_values_and_the_command_line_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        # a recipe
        output_dir = "from-file"
        max-seq-length = 256
        learning_rate = 1
        model_name_or_path = "모델"
        num_train_steps = 10
        do_train = true
        precision = "bf16"
        """,
    )
    expected = Small(
        output_dir="from-file",
        max_seq_length=256,
        learning_rate=1.0,
        model="모델",
        num_train_steps=10,
        do_train=True,
        precision="bf16",
    )
    config = parse("--config", path, output_dir=None)
    assert config == expected
    assert type(config.learning_rate) is float

    # Wherever --config stands; a flag given with its default's value wins, too; null unsets.
    config = parse("--max_seq_length=384", "--nodo_train", f"--config={path}", "--num_train_steps=null")
    assert (config.output_dir, config.max_seq_length, config.do_train) == ("out", 384, False)
    assert config.num_train_steps is None
    assert config.learning_rate == 1.0


def test_the_last_file_counts(tmp_path: Path) -> None:
    assert parse("--config=absent.toml", "--config", write(tmp_path, "max_seq_length = 5")).max_seq_length == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate = 1.0", "unknown key lerning_rate; did you mean learning_rate?"),
        ("xyzzy = 1", "unknown key xyzzy; --help lists all flags"),
        ("use_tpu = true", "unknown key use_tpu; --help lists all flags"),
        ('config = "other.toml"', "unknown key config; --help lists all flags"),
        ("[training]\ndo_train = true", "[training]: flags stand at the top, without tables"),
        ('max_seq_length = "384"', 'max_seq_length = "384": expected an integer'),
        ("max_seq_length = 384.0", "max_seq_length = 384.0: expected an integer"),
        ("max_seq_length = true", "max_seq_length = true: expected an integer"),
        ("num_train_steps = []", "num_train_steps = []: expected an integer"),
        ('learning_rate = "5e-5"', 'learning_rate = "5e-5": expected a number'),
        ("learning_rate = true", "learning_rate = true: expected a number"),
        ("learning_rate = nan", "learning_rate = NaN: expected a number"),
        (f"learning_rate = 1{'0' * 400}", f"learning_rate = 1{'0' * 400}: expected a number"),
        ("do_train = 1", "do_train = 1: expected true or false"),
        ('do_train = "true"', 'do_train = "true": expected true or false'),
        ("layers = -1", "layers = -1: expected a text"),
        ("model = 2020-01-01", 'model = "2020-01-01": expected a text'),
        ('precision = "fp8"', 'precision = "fp8": expected one of fp32, bf16, fp16'),
        ('model = "x"\nmodel_name_or_path = "y"', "model_name_or_path sets model a second time"),
    ],
)
def test_file_refusals_name_file_and_key(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    assert refusal(capsys, f"--config={path}") == f"--config {path}: {message}"


def test_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent.toml"
    assert refusal(capsys, f"--config={absent}") == f"--config {absent}: No such file or directory"
    assert "not a TOML file" in refusal(capsys, "--config", write(tmp_path, "do_train: true"))
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    assert "not a TOML file" in refusal(capsys, f"--config={tmp_path / 'run.toml'}")


# Old names.


def test_ignored_flags_say_so_in_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(
        *shlex.split(
            "--use_tpu=False --tpu_name=tpu-1 --tpu_zone us-east1-d --gcp_project= --master local --horovod "
            "--num_tpu_cores 8 --iterations_per_loop=1000 --use_one_hot_embeddings --noverbose_logging --amp "
            "--use_xla true --horovod=true --do_train"
        )
    )
    assert config == Small(output_dir="out", do_train=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = dict(line.split(": ", 1) for line in printed.err.splitlines())
    assert list(lines) == [
        *("--use_tpu", "--tpu_name", "--tpu_zone", "--gcp_project", "--num_tpu_cores", "--master"),
        *("--iterations_per_loop", "--use_one_hot_embeddings", "--verbose_logging", "--horovod", "--amp"),
        "--use_xla",
    ]
    assert all(line.startswith("ignored") for line in lines.values())
    assert lines["--horovod"] == "ignored, bert-squad is always distributed under mpirun"
    assert lines["--amp"] == "ignored; use --precision fp16 or bf16"


def test_without_ignored_flags_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    parse()
    assert capsys.readouterr() == ("", "")


def test_amp_gives_no_advice_where_there_is_no_precision(capsys: pytest.CaptureFixture[str]) -> None:
    parse("--amp", config_class=Plain, output_dir=None)
    assert capsys.readouterr().err == "--amp: ignored\n"


@pytest.mark.parametrize("argv", [["--use_tpu"], ["--use_tpu=True"], ["--use_tpu", "true"], ["-use-tpu=1"]])
def test_tpus_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *argv).startswith("--use_tpu=True: TPUs are not supported")
    parse(*argv, "--use_tpu=False")


def test_an_ignored_flag_with_a_wrong_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--horovod=maybe") == "--horovod=maybe: expected true or false"
    assert refusal(capsys, "--tpu_name") == "--tpu_name needs a value: --tpu_name=VALUE"


def test_a_field_takes_the_place_of_an_ignored_flag(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class WithAmp:
        amp: bool = False
        fp16: bool = False
        precision: str = "fp32"

    config = parse("--amp", "--fp16", config_class=WithAmp, output_dir=None)
    assert config == WithAmp(amp=True, fp16=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "precision"),
    [
        (["--fp16"], "fp16"),
        (["--bf16=true"], "bf16"),
        (["-bf16", "1"], "bf16"),
        (["--fp16", "--precision=fp16"], "fp16"),
        (["--fp16", "--bf16=false"], "fp16"),
        (["--fp16=false"], "fp32"),
        (["--nofp16", "--precision=bf16"], "bf16"),
        (["--fp16", "--fp16=false"], "fp32"),
    ],
)
def test_fp16_and_bf16_set_precision(argv: list[str], precision: str) -> None:
    assert parse(*argv).precision == precision


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--fp16", "--bf16"], "--fp16 and --bf16 exclude each other; give one of them"),
        (["--fp16", "--precision=bf16"], "--fp16 contradicts --precision bf16; give one of them"),
        (["--precision=fp32", "--bf16"], "--bf16 contradicts --precision fp32; give one of them"),
        (["--nofp16", "--precision=fp16"], "--fp16=false contradicts precision fp16; set --precision"),
        (["--fp16=half"], "--fp16=half: expected true or false"),
    ],
)
def test_contradicting_precisions(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *argv) == message


def test_precision_of_a_file_gives_way_to_fp16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = "--config=" + write(tmp_path, 'precision = "bf16"')
    assert parse(config, "--fp16").precision == "fp16"
    assert refusal(capsys, config, "--nobf16") == "--bf16=false contradicts precision bf16; set --precision"


def test_fp16_is_unknown_without_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--fp16", config_class=Plain, output_dir=None).startswith("unknown flag --fp16;")


def test_fp16_is_refused_where_precision_lacks_it(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class WithoutFp16:
        precision: Literal["fp32", "bf16"] = "fp32"

    def read(*argv: str) -> Any:
        return parse(*argv, config_class=WithoutFp16, output_dir=None)

    assert read("--bf16", "--fp16=false", "--amp").precision == "bf16"
    assert capsys.readouterr().err == "--amp: ignored; use --precision bf16\n"
    message = refusal(capsys, "--fp16", config_class=WithoutFp16, output_dir=None)
    assert message == "--fp16 is not supported; use --bf16"


# Old command lines: those of google-research/bert's and lambdal/bert's READMEs, and NVIDIA's flags.

BASE = """
    --vocab_file=/bert/vocab.txt --bert_config_file=/bert/bert_config.json
    --init_checkpoint=/bert/bert_model.ckpt --learning_rate=3e-5 --num_train_epochs=2.0 --doc_stride=128
"""
SQUAD_1 = "--train_file=/squad/train-v1.1.json --do_predict=True --predict_file=/squad/dev-v1.1.json"
SQUAD_2 = "--train_file=/squad/train-v2.0.json --do_predict=True --predict_file=/squad/dev-v2.0.json"
LARGE = "--train_batch_size=24 --max_seq_length=384 --output_dir=gs://some_bucket/squad_large/"
COMMON = {
    "vocab_file": "/bert/vocab.txt",
    "bert_config_file": "/bert/bert_config.json",
    "init_checkpoint": "/bert/bert_model.ckpt",
    "learning_rate": 3e-5,
    "num_train_epochs": 2.0,
    "doc_stride": 128,
    "do_predict": True,
}
SQUAD_1_FILES = {"train_file": "/squad/train-v1.1.json", "predict_file": "/squad/dev-v1.1.json"}
SQUAD_2_FILES = {"train_file": "/squad/train-v2.0.json", "predict_file": "/squad/dev-v2.0.json"}

COMMANDS = {
    "google, SQuAD 1.1, base": (
        f"{BASE} {SQUAD_1} --do_train=True --train_batch_size=12 --max_seq_length=384 "
        "--output_dir=/tmp/squad_base/",
        {
            **COMMON,
            **SQUAD_1_FILES,
            "do_train": True,
            "train_batch_size": 12,
            "output_dir": "/tmp/squad_base/",
        },
    ),
    "google, SQuAD 1.1, large, without its TPU": (
        f"{BASE} {SQUAD_1} {LARGE} --do_train=True --use_tpu=False --tpu_name=tpu-1",
        {**COMMON, **SQUAD_1_FILES, "do_train": True, "train_batch_size": 24},
    ),
    "google, SQuAD 2.0, large, without its TPU": (
        f"{BASE} {SQUAD_2} {LARGE} --do_train=True --use_tpu=False --tpu_name=tpu-1 "
        "--version_2_with_negative=True",
        {**COMMON, **SQUAD_2_FILES, "do_train": True, "version_2_with_negative": True},
    ),
    "google, SQuAD 2.0, large, prediction with a threshold": (
        f"{BASE} {SQUAD_2} {LARGE} --do_train=False --use_tpu=False --tpu_name=tpu-1 "
        "--version_2_with_negative=True --null_score_diff_threshold=-2.5",
        {**COMMON, **SQUAD_2_FILES, "do_train": False, "null_score_diff_threshold": -2.5},
    ),
    "lambdal, SQuAD 1.1 over Horovod": (
        f"{BASE} {SQUAD_1} --do_train=True --train_batch_size=12 --max_seq_length=256 "
        "--output_dir=/tmp/squad_base/",
        {
            **COMMON,
            **SQUAD_1_FILES,
            "do_train": True,
            "max_seq_length": 256,
            "output_dir": "/tmp/squad_base/",
        },
    ),
    "lambdal, SQuAD 2.0, cased, flags with values as own words": (
        f"{BASE} {SQUAD_2} --do_train True --train_batch_size 24 --max_seq_length 256 "
        "--output_dir ./squad2.0/ --version_2_with_negative True --do_lower_case False",
        {**COMMON, **SQUAD_2_FILES, "do_train": True, "do_lower_case": False, "output_dir": "./squad2.0/"},
    ),
    "NVIDIA, SQuAD 1.1 with horovod, amp and XLA": (
        f"{BASE} {SQUAD_1} --do_train=True --train_batch_size=8 --max_seq_length=384 --output_dir=/results "
        "--horovod --amp --use_xla",
        {**COMMON, **SQUAD_1_FILES, "do_train": True, "train_batch_size": 8, "output_dir": "/results"},
    ),
}
ON_TPU = {
    "google, SQuAD 1.1": f"{BASE} {SQUAD_1} {LARGE} --do_train=True --use_tpu=True --tpu_name=tpu-1",
    "google, SQuAD 2.0": f"{BASE} {SQUAD_2} {LARGE} --do_train=True --use_tpu=True --tpu_name=tpu-1 "
    "--version_2_with_negative=True --null_score_diff_threshold=-2.5",
}


RUN_SQUAD = shlex.split("""
    bert_config_file vocab_file output_dir train_file predict_file init_checkpoint do_lower_case
    max_seq_length doc_stride max_query_length do_train do_predict train_batch_size predict_batch_size
    learning_rate
    num_train_epochs warmup_proportion save_checkpoints_steps n_best_size max_answer_length
    version_2_with_negative null_score_diff_threshold
""")


def test_every_flag_of_run_squad_is_a_field() -> None:
    assert set(RUN_SQUAD) <= set(Config.__dataclass_fields__)


# The flags of the other scripts, but for those of TPUs; and their commands in google-research/bert's READMEs.
OTHER_SCRIPTS = {
    classifier.Config: """bert_config_file data_dir do_eval do_lower_case do_predict do_train eval_batch_size
        init_checkpoint learning_rate max_seq_length num_train_epochs output_dir predict_batch_size
        save_checkpoints_steps task_name train_batch_size vocab_file warmup_proportion""",
    pretraining.Config: """bert_config_file do_eval do_train eval_batch_size init_checkpoint input_file
        learning_rate max_eval_steps max_predictions_per_seq max_seq_length num_train_steps num_warmup_steps
        output_dir save_checkpoints_steps train_batch_size""",
    corpus.BuildConfig: """do_lower_case do_whole_word_mask dupe_factor input_file masked_lm_prob
        max_predictions_per_seq max_seq_length output_file random_seed short_seq_prob vocab_file""",
    features.Config: """batch_size bert_config_file do_lower_case init_checkpoint input_file layers max_seq_length
        output_file vocab_file""",
}
FILES = (
    "--vocab_file=/bert/vocab.txt --bert_config_file=/bert/bert_config.json "
    "--init_checkpoint=/bert/bert_model.ckpt"
)
OTHER_COMMANDS = [
    (
        classifier.Config,
        f"--task_name=MRPC --do_train=true --do_eval=true --data_dir=/glue/MRPC {FILES} --max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=/tmp/mrpc_output/",
        {"task_name": "MRPC", "do_eval": True, "learning_rate": 2e-5, "train_batch_size": 32},
    ),
    (
        classifier.Config,
        f"--task_name=MRPC --do_predict=true --data_dir=/glue/MRPC {FILES} --max_seq_length=128 "
        "--output_dir=/tmp/mrpc_output/",
        {"do_train": False, "do_predict": True},
    ),
    (
        classifier.Config,
        f"--task_name=XNLI --do_train=true --do_eval=true --data_dir=/xnli {FILES} --max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=2.0 --output_dir=/tmp/xnli_output/",
        {"task_name": "XNLI", "num_train_epochs": 2.0},
    ),
    (
        corpus.BuildConfig,
        "--input_file=./sample_text.txt --output_file=/tmp/tf_examples.tfrecord --vocab_file=/bert/vocab.txt "
        "--do_lower_case=True --max_seq_length=128 --max_predictions_per_seq=20 --masked_lm_prob=0.15 "
        "--random_seed=12345 --dupe_factor=5",
        {"output_dir": "/tmp/tf_examples.tfrecord", "random_seed": 12345, "dupe_factor": 5, "do_lower_case": True},
    ),
    (
        pretraining.Config,
        "--input_file=/tmp/tf_examples.tfrecord --output_dir=/tmp/pretraining_output --do_train=True "
        "--do_eval=True --bert_config_file=/bert/bert_config.json --init_checkpoint=/bert/bert_model.ckpt "
        "--train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20 "
        "--num_warmup_steps=10 --learning_rate=2e-5",
        {"num_train_steps": 20, "num_warmup_steps": 10, "max_predictions_per_seq": 20},
    ),
    (
        features.Config,
        f"--input_file=/tmp/input.txt --output_file=/tmp/output.jsonl {FILES} --layers=-1,-2,-3,-4 "
        "--max_seq_length=128 --batch_size=8",
        {"layers": "-1,-2,-3,-4", "batch_size": 8, "output_dir": "/tmp"},
    ),
]


@pytest.mark.parametrize("config_class", OTHER_SCRIPTS, ids=lambda c: c.__module__)
def test_every_flag_of_the_other_scripts_is_known(config_class) -> None:
    fields = dataclasses.fields(config_class)
    known = {field.name for field in fields if field.init}
    known |= {alias.lstrip("-") for field in fields for alias in field.metadata.get("aliases", ())}
    assert set(OTHER_SCRIPTS[config_class].split()) <= known


def flags_by_program() -> dict[str, set[str]]:
    """What docs/flags.md tells of each program, and of all."""
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")[1:]
    rows = {part.partition("\n")[0]: re.findall(r"^\| (`--.*?) \|", part, re.MULTILINE) for part in sections}
    return {name: set(re.findall(r"`--(\w+)`", " ".join(cells))) for name, cells in rows.items()}


@pytest.mark.parametrize(
    ("program", "config_class", "needed"),
    [
        ("bert-squad", Config, set(RUN_SQUAD)),
        ("bert-classifier", classifier.Config, set(OTHER_SCRIPTS[classifier.Config].split())),
        ("bert-pretraining", pretraining.Config, set(OTHER_SCRIPTS[pretraining.Config].split())),
        ("bert-corpus build", corpus.BuildConfig, set(OTHER_SCRIPTS[corpus.BuildConfig].split()) - {"output_dir"}),
        ("bert-features", features.Config, set(OTHER_SCRIPTS[features.Config].split())),
    ],
)
def test_the_table_of_flags_is_whole_and_true(program: str, config_class, needed: set[str]) -> None:
    """docs/flags.md names each flag of the script, and the program knows each flag that it names."""
    told = flags_by_program()
    assert needed <= told[program]
    fields = [field for field in dataclasses.fields(config_class) if field.init]
    known = {field.name for field in fields}
    known |= {alias.lstrip("-") for field in fields for alias in field.metadata.get("aliases", ())}
    assert told[program] <= known
    assert {name for name, _, _ in flags._IGNORED} <= told["All programs"]


# google-research/bert: what the scripts' `flags.DEFINE_…` give.
TRAINED = {
    "learning_rate": 5e-5,
    "warmup_proportion": 0.1,
    "num_train_epochs": 3.0,
    "save_checkpoints_steps": 1000,
}
GOOGLES_DEFAULTS = [
    (Config, TRAINED | {
        "max_seq_length": 384, "doc_stride": 128, "max_query_length": 64, "predict_batch_size": 8,
        "n_best_size": 20, "max_answer_length": 30, "null_score_diff_threshold": 0.0,
        "version_2_with_negative": False, "do_train": False, "do_predict": False,
    }),
    (classifier.Config, TRAINED | {
        "max_seq_length": 128, "eval_batch_size": 8, "predict_batch_size": 8, "do_train": False, "do_eval": False,
        "do_predict": False,
    }),
    (pretraining.Config, {
        "max_seq_length": 128, "eval_batch_size": 8, "learning_rate": 5e-5, "save_checkpoints_steps": 1000,
        "max_eval_steps": 100, "do_train": False, "do_eval": False,
    }),
    (corpus.BuildConfig, {
        "max_seq_length": 128, "max_predictions_per_seq": 20, "random_seed": 12345, "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1, "do_whole_word_mask": False,
    }),
    (features.Config, {"layers": "-1,-2,-3,-4", "max_seq_length": 128, "batch_size": 32}),
]  # fmt: skip


@pytest.mark.parametrize(("config_class", "googles"), GOOGLES_DEFAULTS)
def test_flags_keep_google_s_defaults(config_class, googles: dict) -> None:
    ours = {field.name: field.default for field in dataclasses.fields(config_class)}
    assert {name: ours[name] for name in googles} == googles


@pytest.mark.parametrize(("config_class", "command", "expected"), OTHER_COMMANDS)
def test_the_other_scripts_old_command_lines(config_class, command: str, expected: dict) -> None:
    config = flags.parse(config_class, shlex.split(command), prog="prog", description="")
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("flag", ["--do_lower_case=False", "--nodo_lower_case", "--do_lower_case false"])
def test_squad_takes_absl_booleans_where_null_is_allowed(flag: str) -> None:
    argv = ["--do_predict", "--predict_file=dev.json", *flag.split()]
    assert parse(*argv, config_class=Config).do_lower_case is False


@pytest.mark.parametrize("name", COMMANDS)
def test_old_command_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, expected = COMMANDS[name]
    config = parse(*shlex.split(command), config_class=Config, output_dir=None)
    assert {field_name: getattr(config, field_name) for field_name in expected} == expected
    noted = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    ignored = ("--use_tpu", "--tpu_name", "--horovod", "--amp", "--use_xla")
    assert noted == [flag for flag in ignored if flag in command]


@pytest.mark.parametrize("name", ON_TPU)
def test_old_command_lines_for_a_tpu_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, *shlex.split(ON_TPU[name]), config_class=Config, output_dir=None)
    assert message.startswith("--use_tpu=True: TPUs are not supported")


# Many processes, one line.


@pytest.mark.parametrize(
    ("environment", "prints"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "3"}, False),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_RANK": "1"}, False),
        ({"PMIX_RANK": "0"}, True),
        ({"PMIX_RANK": "2"}, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_PROCID": "1"}, True),  # a plain shell of sbatch
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "1"}, True),
        # mpirun inside a Slurm step: mpirun's rank counts.
        ({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, True),
    ],
)
def test_only_the_first_process_prints(
    environment: dict[str, str],
    prints: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    outcomes = []
    for argv in (["--lerning_rate=1"], ["--max_seq_length=513"], ["--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            parse(*argv)
        outcomes.append((stop.value.code, any(capsys.readouterr())))
    parse("--horovod")
    outcomes.append((None, any(capsys.readouterr())))
    # One that is still alive after the wait knows of an error that the first rank does not have.
    assert outcomes == [(2, True), (2, True), (0, prints), (0, prints), (None, prints)]
    assert len(waits) == (0 if prints else 2)  # before each failure, not before help


def mpirun() -> str | None:
    beside_python = Path(sys.executable).parent / "mpirun"
    return str(beside_python) if beside_python.exists() else shutil.which("mpirun")


@pytest.mark.skipif(mpirun() is None, reason="needs mpirun")
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        pytest.param(["--lerning_rate=1"], 2, marks=pytest.mark.slow),
        pytest.param(["--horovod"], 0, marks=pytest.mark.slow),
        pytest.param(["--version"], 0, marks=pytest.mark.slow),
    ],
)
def test_one_line_from_three_real_processes(argv: list[str], code: int) -> None:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    launcher = [str(mpirun()), *as_root, "--oversubscribe", "--bind-to", "none", "-np", "3"]
    finished = run(*argv, launcher=launcher)
    assert finished.returncode == code
    said = [line for line in (finished.stdout + finished.stderr).splitlines() if line.startswith(MARKS)]
    assert len(said) == 1, finished.stdout + finished.stderr


# Help and version.


def help_text(capsys: pytest.CaptureFixture[str], *argv: str, config_class: type = Small) -> str:
    with pytest.raises(SystemExit) as stop:
        parse(*(argv or ("--help",)), config_class=config_class, output_dir=None)
    assert stop.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_help_lists_flags_in_order_by_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = help_text(capsys)
    order = [
        *("Fine-tune on SQuAD.", "--help", "--version", "--config FILE.toml", "--layers", "--precision"),
        *("files:", "--output_dir", "--model TEXT, --model_name_or_path TEXT"),
        *(
            "training:",
            "--max_seq_length",
            "--learning_rate",
            "--num_train_steps",
            "--do_train",
            "--do_lower_case",
        ),
    ]
    lines = text.splitlines()
    found = [next(i for i, line in enumerate(lines) if line.strip().startswith(("-h, " + x, x))) for x in order]
    assert found == sorted(found)

    def line_of(flag: str) -> str:
        start = next(i for i, line in enumerate(lines) if line.strip().startswith(flag + " "))
        has_more = start + 1 < len(lines) and lines[start + 1].startswith(" " * 10)  # a long name's help
        return " ".join(lines[start : start + 1 + has_more])

    assert "tokens in a row" in line_of("--max_seq_length")
    assert "default: 384" in line_of("--max_seq_length")
    assert "default: 5e-05" in line_of("--learning_rate")
    assert "default: True" in line_of("--do_lower_case")
    assert "100 % by number" in line_of("--layers")
    assert "{fp32,bf16,fp16}" in line_of("--precision")
    assert "required" in line_of("--output_dir")
    assert "default" not in line_of("--output_dir")
    assert "ignored: use_tpu tpu_name" in text


def test_help_follows_the_dataclass_without_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, config_class=Plain)
    places = [text.index(f"  --{name} ") for name in ("learning_rate", "max_seq_length", "do_train")]
    assert places == sorted(places)
    assert "an integer (type: int, default: 128)" in text
    assert "precision" not in text


@pytest.mark.parametrize("argv", [["-h"], ["-help"], ["--do_train", "--help", "--nonsense"]])
def test_help_by_other_ways(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert help_text(capsys, *argv).startswith("usage: bert-squad ")


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def version(name: str) -> str:
        asked.append(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert help_text(capsys, "--version") == "ringbert 1.2.3\n"
    assert asked == ["ringbert"]

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert help_text(capsys, "--version") == "ringbert unknown (not installed)\n"


PROGRAM = """
import dataclasses, sys
from tasks.flags import parse

@dataclasses.dataclass(frozen=True)
class Config:
    output_dir: str = "out"

try:
    parse(Config, prog="bert-squad", description="")
finally:
    heavy = {"tensorflow", "keras", "mpi4py", "transformers", "torch", "numpy"} & sys.modules.keys()
    assert not heavy, heavy
"""


MARKS = ("bert-squad: error: ", "--horovod: ", "ringbert ")


def run(*argv: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    command = [*launcher, sys.executable, "-c", PROGRAM, *argv]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    times_s = []
    for _ in range(4):
        start_s = time.perf_counter()
        finished = run("--help")
        times_s.append(time.perf_counter() - start_s)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.startswith("usage: bert-squad ")
    assert min(times_s) < 0.5, times_s  # the best of four: the machine may be busy


def test_a_process_ends_with_status_2_and_one_line() -> None:
    finished = run("--max_seq_lenght=1")
    assert finished.returncode == 2
    assert finished.stderr == "bert-squad: error: unknown flag --max_seq_lenght; --help lists all flags\n"
    assert finished.stdout == ""
