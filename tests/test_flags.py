"""Flags: absl's syntax, types, refusals, TOML and flag files."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from parsing import Small, Words, parse, refusal

from tasks import flags


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# -- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--max_seq_length=128", {"max_seq_length": 128}),
        ("--max_seq_length 128", {"max_seq_length": 128}),
        ("--max-seq-length=128", {"max_seq_length": 128}),
        ("--max_seq-length=128", {"max_seq_length": 128}),
        ("-max_seq_length=128", {"max_seq_length": 128}),
        ("-max-seq-length 128", {"max_seq_length": 128}),
        ("--max_seq_length=-1", {"max_seq_length": -1}),
        ("--max_seq_length -1", {"max_seq_length": -1}),
        ("--max_seq_length=1 --max-seq-length=2", {"max_seq_length": 2}),
        ("--learning_rate=3e-5", {"learning_rate": 3e-5}),
        ("--learning_rate -1e-3", {"learning_rate": -1e-3}),
        ("--learning_rate=1", {"learning_rate": 1.0}),
        ("--num_train_steps=7", {"num_train_steps": 7}),
        ("--num_train_steps=7 --num_train_steps=null", {"num_train_steps": None}),
        ("--layers -1,-2,-3", {"layers": "-1,-2,-3"}),
        ("--layers=-1", {"layers": "-1"}),
        ("--layers -1", {"layers": "-1"}),
        ("--layers=--strange", {"layers": "--strange"}),
        ("--layers=", {"layers": ""}),
        ("--layers=null", {"layers": "null"}),
        ("--model=123", {"model": "123"}),
        ("--model=true", {"model": "true"}),
        ("--model=~", {"model": "~"}),
        ("--model=null", {"model": None}),
        ("--model=a=b:[c]#d", {"model": "a=b:[c]#d"}),
        ("--model=gs://bucket/*.json,x", {"model": "gs://bucket/*.json,x"}),
        ("--model -my-model", {"model": "-my-model"}),
        ("--model_name_or_path=klue/bert-base", {"model": "klue/bert-base"}),
        ("--model-name-or-path x --model=y", {"model": "y"}),
        ("--precision=bf16", {"precision": "bf16"}),
        ("--do_train", {"do_train": True}),
        ("-do_train", {"do_train": True}),
        ("--do-train", {"do_train": True}),
        ("--do_train --layers=x", {"do_train": True, "layers": "x"}),
        ("--nodo_lower_case", {"do_lower_case": False}),
        ("--no_do_lower_case", {"do_lower_case": False}),
        ("--no-do-lower-case", {"do_lower_case": False}),
        ("-nodo_lower_case", {"do_lower_case": False}),
        ("--nodo-lower-case", {"do_lower_case": False}),
        ("--nodo_lower_case --do_lower_case", {"do_lower_case": True}),
    ],
)
def test_values(line: str, expected: dict[str, Any]) -> None:
    config = parse(*line.split(" ") if line else ())
    assert config == Small(output_dir="out", **expected)
    assert all(type(getattr(config, name)) is type(value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("1", "true", "True", "TRUE", "t", "yes", "y"), True),
        (("0", "false", "False", "FALSE", "f", "no", "n"), False),
    ],
)
def test_words_of_booleans(words: Sequence[str], expected: bool) -> None:
    for word in words:
        for argv in ([f"--do_train={word}"], ["--do_train", word], ["-do-train", word]):
            assert parse("--do_train", *argv).do_train is expected
            assert parse("--nodo_train", *argv).do_train is expected


@dataclass(frozen=True)
class Unions:
    switch: bool | None = True
    choice: Literal["a", "b"] | None = "a"
    number: float | None = 1.0
    level: Literal[1, 2] = 1
    every: int | Literal["auto"] | None = 5


@pytest.mark.parametrize(
    ("line", "toml", "expected"),
    [
        ("--noswitch --choice=b --number=2", 'switch = false\nchoice = "b"\nnumber = 2', Unions(False, "b", 2.0)),
        ("--level=2 --every 12", "level = 2\nevery = 12", Unions(level=2, every=12)),
        ("--every=auto", 'every = "auto"', Unions(every="auto")),
        ("--switch=null --choice=null --number=null --every=null", None, Unions(None, None, None, 1, None)),
    ],
)
def test_unions(line: str, toml: str | None, expected: Unions, tmp_path: Path) -> None:
    lines = [line.split()] + ([["--config", write(tmp_path, toml)]] if toml else [])
    for argv in lines:
        config = parse(*argv, config_class=Unions)
        assert config == expected
        assert type(config.number) in (float, type(None))


@pytest.mark.parametrize(
    "argv",
    [
        ["here", "who is it?", "--top_k=2", "--json"],
        ["--json", "here", "--top_k", "2", "who is it?"],
        ["--json", "--top_k=2", "here", "--question=who is it?"],
    ],
)
def test_words_set_positional_fields(argv: list[str]) -> None:
    assert parse(*argv, config_class=Words) == Words("here", "who is it?", 2, True)


def test_words_may_look_like_anything_but_flags() -> None:
    assert parse("-", "a=b", config_class=Words) == Words("-", "a=b")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["here"], "QUESTION must be given"),
        ([], "FOLDER and QUESTION must be given"),
        (["a", "b", "c"], "unexpected argument 'c'; write --flag=value"),
        (["a", "b", "--top_k"], "--top_k needs a value: --top_k=VALUE"),
    ],
)
def test_words_that_are_missing_or_too_many(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *argv, config_class=Words) == message


def test_argv_defaults_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bert-squad", "--output_dir=here"])
    assert flags.parse(Small, prog="bert-squad", description="") == Small(output_dir="here")


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lerning_rate=1", "unknown flag --lerning_rate; did you mean --learning_rate?"),
        ("--lerning-rate 1", "unknown flag --lerning-rate; did you mean --learning_rate?"),
        ("--learn=1", "unknown flag --learn; did you mean --learning_rate?"),
        ("--model_name=x", "unknown flag --model_name; did you mean --model_name_or_path?"),
        ("--nodo_trian", "unknown flag --nodo_trian; did you mean --do_train?"),
        ("--nolayers", "unknown flag --nolayers; did you mean --layers?"),
        ("--l=1", "unknown flag --l; --help lists all flags"),
        ("--xyzzy", "unknown flag --xyzzy; --help lists all flags"),
        ("--use_gpu", "unknown flag --use_gpu; --help lists all flags"),
        (
            "--bert_hub_module_handle=x",
            "unknown flag --bert_hub_module_handle; pass the TF Hub module's checkpoint as --init_checkpoint, "
            "or use --model",
        ),
        ("--nodo_train=1", "--nodo_train=1 does not take an argument"),
        ("train.json", "unexpected argument 'train.json'; write --flag=value"),
        ("--do_train maybe", "unexpected argument 'maybe'; write --flag=value"),
        ("--", "unexpected argument '--'; write --flag=value"),
        ("-1", "unexpected argument '-1'; write --flag=value"),
        ("--layers", "--layers needs a value: --layers=VALUE"),
        ("--layers --do_train", "--layers needs a value: --layers=VALUE"),
        ("--layers -do_train", "--layers needs a value: --layers=VALUE"),
        ("--layers -nodo_train", "--layers needs a value: --layers=VALUE"),
        ("--do_train=maybe", '--do_train must be true or false, got "maybe"'),
        ("--max_seq_length=12a", '--max_seq_length must be an integer, got "12a"'),
        ("--max_seq_length=384.0", '--max_seq_length must be an integer, got "384.0"'),
        ("--max_seq_length=true", '--max_seq_length must be an integer, got "true"'),
        ("--max_seq_length=", '--max_seq_length must be an integer, got ""'),
        ("--max_seq_length=null", '--max_seq_length must be an integer, got "null"'),
        ("--num_train_steps=few", '--num_train_steps must be an integer, got "few"'),
        ("--learning_rate=fast", '--learning_rate must be a number, got "fast"'),
        ("--learning_rate=nan", '--learning_rate must be a number, got "nan"'),
        ("--learning_rate=1e999", '--learning_rate must be a number, got "1e999"'),
        ("--precision=fp8", '--precision must be fp32, bf16 or fp16, got "fp8"'),
        ("--max_seq_length=513", "--max_seq_length must be at most 512, got 513"),
    ],
)
def test_refusals(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *line.split()) == message


@pytest.mark.parametrize("argv", [["--every=Auto"], ["--every=1.5"]])
def test_refusals_name_every_alternative(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *argv, config_class=Unions).startswith("--every must be an integer or auto, got ")


def test_a_required_flag_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--do_train", output_dir=None) == "--output_dir must be given"


def test_other_errors_of_the_dataclass_are_bugs_and_keep_their_traceback() -> None:
    @dataclass(frozen=True)
    class Broken:
        def __post_init__(self) -> None:
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        parse(config_class=Broken)


# -- files --------------------------------------------------------------------------------------------------------


def test_a_file_sets_flags_and_the_command_line_wins(tmp_path: Path) -> None:
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
    config = parse("--config", path, output_dir=None)
    assert config == Small("from-file", "모델", "-1", 256, 1.0, 10, True, True, "bf16")
    assert type(config.learning_rate) is float

    # --config may stand anywhere; a flag wins even with its default value; null unsets.
    config = parse("--max_seq_length=384", "--nodo_train", f"--config={path}", "--num_train_steps=null")
    assert config == Small("out", "모델", "-1", 384, 1.0, None, False, True, "bf16")


def test_the_last_file_counts(tmp_path: Path) -> None:
    assert parse("--config=absent.toml", "--config", write(tmp_path, "max_seq_length = 5")).max_seq_length == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate = 1.0", "unknown key lerning_rate; did you mean learning_rate?"),
        ("xyzzy = 1", "unknown key xyzzy; --help lists all flags"),
        ("use_tpu = true", "unknown key use_tpu; --help lists all flags"),
        ('config = "other.toml"', "unknown key config; --help lists all flags"),
        ("[training]\ndo_train = true", "[training]: tables are not supported; put all flags at the top level"),
        ('max_seq_length = "384"', 'max_seq_length must be an integer, got "384"'),
        ("max_seq_length = 384.0", "max_seq_length must be an integer, got 384.0"),
        ("max_seq_length = true", "max_seq_length must be an integer, got true"),
        ("num_train_steps = []", "num_train_steps must be an integer, got []"),
        ('learning_rate = "5e-5"', 'learning_rate must be a number, got "5e-5"'),
        ("learning_rate = true", "learning_rate must be a number, got true"),
        ("learning_rate = nan", "learning_rate must be a number, got NaN"),
        (f"learning_rate = 1{'0' * 400}", f"learning_rate must be a number, got 1{'0' * 79}…"),
        ("do_train = 1", "do_train must be true or false, got 1"),
        ('do_train = "true"', 'do_train must be true or false, got "true"'),
        ("layers = -1", "layers must be text, got -1"),
        ("model = 2020-01-01", 'model must be text, got "2020-01-01"'),
        ('precision = "fp8"', 'precision must be fp32, bf16 or fp16, got "fp8"'),
        ('model = "x"\nmodel_name_or_path = "y"', "model_name_or_path sets model a second time"),
    ],
)
def test_refusals_of_a_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, text)
    assert refusal(capsys, f"--config={path}") == f"--config {path}: {message}"


def test_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent"
    assert refusal(capsys, f"--config={absent}") == f"--config {absent}: no such file"
    assert refusal(capsys, f"--flagfile={absent}") == f"{absent}: No such file or directory"
    assert "not a TOML file" in refusal(capsys, "--config", write(tmp_path, "do_train: true"))
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refusal(capsys, f"--config={tmp_path / 'run.toml'}")


def test_absl_flag_files(tmp_path: Path) -> None:
    """Google's scripts read them, as all programs on absl."""
    path = write(tmp_path, "# a recipe\n--max-seq-length=256\n--nodo_lower_case\n--do_train=false\n")
    expected = Small(output_dir="out", max_seq_length=256, do_lower_case=False, do_train=True)
    assert parse(f"--flagfile={path}", "--do_train") == expected
    assert parse("--do_train", "false", "--flagfile", path, "--do_train", "true") == expected
