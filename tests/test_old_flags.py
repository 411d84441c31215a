"""The flags of Google's, lambdal's and NVIDIA's scripts: known, with their defaults, or ignored with a line.

The commands are those of google-research/bert's and lambdal/bert's READMEs.
"""

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from mpi import ROOT
from parsing import Plain, Small, parse, refusal

from ringbert.settings import fields_of
from tasks import corpus, features
from tasks.classifier import program as classifier
from tasks.old_flags import IGNORED
from tasks.pretraining import program as pretraining
from tasks.squad import program as squad

# -- flags that are ignored ---------------------------------------------------------------------------------------


def test_ignored_flags_say_so_in_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "--use_tpu=False --tpu_name=tpu-1 --tpu_zone us-east1-d --gcp_project= --master local --horovod "
        "--num_tpu_cores 8 --iterations_per_loop=1000 --use_one_hot_embeddings --noverbose_logging --amp "
        "--use_xla true --horovod=true --do_train"
    )
    assert parse(*line.split()) == Small(output_dir="out", do_train=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    reasons = dict(line.split(" is ignored: ") for line in printed.err.splitlines())
    assert list(reasons) == [
        *("--use_tpu", "--tpu_name", "--tpu_zone", "--gcp_project", "--num_tpu_cores", "--master"),
        *("--iterations_per_loop", "--use_one_hot_embeddings", "--verbose_logging", "--horovod", "--amp"),
        "--use_xla",
    ]
    assert reasons["--horovod"] == "bert-squad is always distributed under mpirun"
    assert reasons["--amp"] == "use --precision fp16 or bf16"


def test_without_ignored_flags_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    parse()
    assert capsys.readouterr() == ("", "")


def test_amp_gives_no_advice_where_there_is_no_precision(capsys: pytest.CaptureFixture[str]) -> None:
    parse("--amp", config_class=Plain)
    assert capsys.readouterr().err == "--amp is ignored: it has no effect here\n"


@pytest.mark.parametrize("argv", [["--use_tpu"], ["--use_tpu=True"], ["--use_tpu", "true"], ["-use-tpu=1"]])
def test_tpus_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *argv).startswith("--use_tpu=True: TPUs are not supported")
    parse(*argv, "--use_tpu=False")


def test_an_ignored_flag_with_a_wrong_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--horovod=maybe") == '--horovod must be true or false, got "maybe"'
    assert refusal(capsys, "--tpu_name") == "--tpu_name needs a value: --tpu_name=VALUE"


def test_a_field_takes_the_place_of_an_ignored_flag(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class WithAmp:
        amp: bool = False
        fp16: bool = False
        precision: Literal["fp32", "bf16"] = "fp32"

    assert parse("--amp", "--fp16", config_class=WithAmp) == WithAmp(amp=True, fp16=True)
    assert capsys.readouterr().err == ""


# -- --fp16 and --bf16 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("--fp16", "fp16"),
        ("--bf16=true", "bf16"),
        ("-bf16 1", "bf16"),
        ("--fp16 --precision=fp16", "fp16"),
        ("--fp16 --bf16=false", "fp16"),
        ("--fp16=false", "fp32"),
        ("--nofp16 --precision=bf16", "bf16"),
        ("--fp16 --fp16=false", "fp32"),
    ],
)
def test_fp16_and_bf16_set_precision(line: str, precision: str) -> None:
    assert parse(*line.split()).precision == precision


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--fp16 --bf16", "--fp16 and --bf16 cannot both be given"),
        ("--fp16 --precision=bf16", "--fp16 contradicts --precision bf16; give one of them"),
        ("--precision=fp32 --bf16", "--bf16 contradicts --precision fp32; give one of them"),
        ("--nofp16 --precision=fp16", "--fp16=false contradicts precision fp16; set --precision"),
        ("--fp16=half", '--fp16 must be true or false, got "half"'),
    ],
)
def test_contradicting_precisions(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *line.split()) == message


def test_fp16_wins_over_the_precision_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('precision = "bf16"')
    config = f"--config={tmp_path / 'run.toml'}"
    assert parse(config, "--fp16").precision == "fp16"
    assert refusal(capsys, config, "--nobf16") == "--bf16=false contradicts precision bf16; set --precision"


def test_fp16_is_unknown_without_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--fp16", config_class=Plain).startswith("unknown flag --fp16;")


def test_fp16_is_refused_where_precision_lacks_it(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class WithoutFp16:
        precision: Literal["fp32", "bf16"] = "fp32"

    assert parse("--bf16", "--fp16=false", "--amp", config_class=WithoutFp16).precision == "bf16"
    assert capsys.readouterr().err == "--amp is ignored: use --precision bf16\n"
    assert refusal(capsys, "--fp16", config_class=WithoutFp16) == "--fp16 is not supported; use --bf16"
    assert refusal(capsys, "--nobf16", "--precision=bf16", config_class=WithoutFp16).startswith(
        "--bf16=false contra"
    )


# -- every flag and default of the scripts ------------------------------------------------------------------------

MODEL = "bert_config_file vocab_file init_checkpoint do_lower_case"
TRAINING = "train_batch_size learning_rate save_checkpoints_steps output_dir"
# The flags of each script, except those of TPUs, and google-research/bert's defaults (`flags.DEFINE_…`).
SCRIPTS: dict[str, tuple[type, str, dict[str, Any]]] = {
    "bert-squad": (
        squad.Config,
        f"""{MODEL} {TRAINING} do_train do_predict train_file predict_file max_seq_length doc_stride
        max_query_length predict_batch_size num_train_epochs warmup_proportion n_best_size max_answer_length
        version_2_with_negative null_score_diff_threshold""",
        {
            "max_seq_length": 384, "doc_stride": 128, "max_query_length": 64, "predict_batch_size": 8,
            "n_best_size": 20, "max_answer_length": 30, "null_score_diff_threshold": 0.0,
            "version_2_with_negative": False, "do_train": False, "do_predict": False, "learning_rate": 5e-5,
            "warmup_proportion": 0.1, "num_train_epochs": 3.0, "save_checkpoints_steps": 1000,
        },
    ),
    "bert-classifier": (
        classifier.Config,
        f"""{MODEL} {TRAINING} do_train do_eval do_predict data_dir task_name max_seq_length eval_batch_size
        predict_batch_size num_train_epochs warmup_proportion""",
        {
            "max_seq_length": 128, "eval_batch_size": 8, "predict_batch_size": 8, "do_train": False,
            "do_eval": False, "do_predict": False, "learning_rate": 5e-5, "warmup_proportion": 0.1,
            "num_train_epochs": 3.0, "save_checkpoints_steps": 1000,
        },
    ),
    "bert-pretraining": (
        pretraining.Config,
        f"""{TRAINING} bert_config_file init_checkpoint do_train do_eval input_file max_seq_length eval_batch_size
        max_eval_steps max_predictions_per_seq num_train_steps num_warmup_steps""",
        {
            "max_seq_length": 128, "eval_batch_size": 8, "learning_rate": 5e-5, "save_checkpoints_steps": 1000,
            "max_eval_steps": 100, "do_train": False, "do_eval": False,
        },
    ),
    "bert-corpus build": (
        corpus.BuildConfig,
        """vocab_file do_lower_case do_whole_word_mask dupe_factor input_file output_file masked_lm_prob
        max_predictions_per_seq max_seq_length random_seed short_seq_prob""",
        {
            "max_seq_length": 128, "max_predictions_per_seq": 20, "random_seed": 12345, "masked_lm_prob": 0.15,
            "short_seq_prob": 0.1, "do_whole_word_mask": False,
        },
    ),
    "bert-features": (
        features.Config,
        f"{MODEL} input_file output_file layers max_seq_length batch_size",
        {"layers": "-1,-2,-3,-4", "max_seq_length": 128, "batch_size": 32},
    ),
}  # fmt: skip


def flags_in_page() -> dict[str, set[str]]:
    """The flags that docs/flags.md lists under each heading."""
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")[1:]
    rows = {part.partition("\n")[0]: re.findall(r"^\| (`--.*?) \|", part, re.MULTILINE) for part in sections}
    return {heading: set(re.findall(r"`--(\w+)`", " ".join(cells))) for heading, cells in rows.items()}


@pytest.mark.parametrize("program", SCRIPTS)
def test_every_flag_of_the_scripts_is_known_and_listed(program: str) -> None:
    """docs/flags.md lists each flag of the script, and the program knows each flag that it lists."""
    config_class, script, _ = SCRIPTS[program]
    listed = flags_in_page()[program]
    known = {name for field in fields_of(config_class) for name in field.names}
    assert set(script.split()) <= listed <= known


def test_every_ignored_flag_is_listed() -> None:
    assert set(IGNORED) <= flags_in_page()["All programs"]


@pytest.mark.parametrize("program", SCRIPTS)
def test_flags_keep_google_s_defaults(program: str) -> None:
    config_class, _, googles = SCRIPTS[program]
    ours = {field.name: field.default for field in dataclasses.fields(config_class)}
    assert {name: ours[name] for name in googles} == googles


# -- the commands of the READMEs ----------------------------------------------------------------------------------

FILES = {
    "vocab_file": "/bert/vocab.txt",
    "bert_config_file": "/bert/bert_config.json",
    "init_checkpoint": "/bert/bert_model.ckpt",
}
BASE = " ".join(f"--{name}={value}" for name, value in FILES.items())
SQUAD = f"{BASE} --learning_rate=3e-5 --num_train_epochs=2.0 --doc_stride=128"
SQUAD_1 = f"{SQUAD} --train_file=/squad/train-v1.1.json --do_predict=True --predict_file=/squad/dev-v1.1.json"
SQUAD_2 = f"{SQUAD} --train_file=/squad/train-v2.0.json --do_predict=True --predict_file=/squad/dev-v2.0.json"
LARGE = "--train_batch_size=24 --max_seq_length=384 --output_dir=gs://some_bucket/squad_large/"
NO_TPU = "--use_tpu=False --tpu_name=tpu-1"
IN_SQUAD = {**FILES, "learning_rate": 3e-5, "num_train_epochs": 2.0, "doc_stride": 128, "do_predict": True}
IN_SQUAD_1 = {**IN_SQUAD, "train_file": "/squad/train-v1.1.json", "predict_file": "/squad/dev-v1.1.json"}
IN_SQUAD_2 = {**IN_SQUAD, "train_file": "/squad/train-v2.0.json", "predict_file": "/squad/dev-v2.0.json"}

# name: (settings, command line, some of its values, flags that are ignored)
COMMANDS: dict[str, tuple[type, str, dict[str, Any], list[str]]] = {
    "google, SQuAD 1.1, base": (
        squad.Config,
        f"{SQUAD_1} --do_train=True --train_batch_size=12 --max_seq_length=384 --output_dir=/tmp/squad_base/",
        {**IN_SQUAD_1, "do_train": True, "train_batch_size": 12, "output_dir": "/tmp/squad_base/"},
        [],
    ),
    "google, SQuAD 1.1, large, without its TPU": (
        squad.Config,
        f"{SQUAD_1} {LARGE} --do_train=True {NO_TPU}",
        {**IN_SQUAD_1, "do_train": True, "train_batch_size": 24},
        ["--use_tpu", "--tpu_name"],
    ),
    "google, SQuAD 2.0, large, without its TPU": (
        squad.Config,
        f"{SQUAD_2} {LARGE} --do_train=True {NO_TPU} --version_2_with_negative=True",
        {**IN_SQUAD_2, "do_train": True, "version_2_with_negative": True},
        ["--use_tpu", "--tpu_name"],
    ),
    "google, SQuAD 2.0, large, prediction with a threshold": (
        squad.Config,
        f"{SQUAD_2} {LARGE} --do_train=False {NO_TPU} --version_2_with_negative=True "
        "--null_score_diff_threshold=-2.5",
        {**IN_SQUAD_2, "do_train": False, "null_score_diff_threshold": -2.5},
        ["--use_tpu", "--tpu_name"],
    ),
    "lambdal, SQuAD 1.1 over Horovod": (
        squad.Config,
        f"{SQUAD_1} --do_train=True --train_batch_size=12 --max_seq_length=256 --output_dir=/tmp/squad_base/",
        {**IN_SQUAD_1, "do_train": True, "max_seq_length": 256, "output_dir": "/tmp/squad_base/"},
        [],
    ),
    "lambdal, SQuAD 2.0, cased, values as words of their own": (
        squad.Config,
        f"{SQUAD_2} --do_train True --train_batch_size 24 --max_seq_length 256 --output_dir ./squad2.0/ "
        "--version_2_with_negative True --do_lower_case False",
        {**IN_SQUAD_2, "do_train": True, "do_lower_case": False, "output_dir": "./squad2.0/"},
        [],
    ),
    "NVIDIA, SQuAD 1.1 with horovod, amp and XLA": (
        squad.Config,
        f"{SQUAD_1} --do_train=True --train_batch_size=8 --max_seq_length=384 --output_dir=/results "
        "--horovod --amp --use_xla",
        {**IN_SQUAD_1, "do_train": True, "train_batch_size": 8, "output_dir": "/results"},
        ["--horovod", "--amp", "--use_xla"],
    ),
    "google, MRPC": (
        classifier.Config,
        f"--task_name=MRPC --do_train=true --do_eval=true --data_dir=/glue/MRPC {BASE} --max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=/tmp/mrpc_output/",
        {**FILES, "task_name": "MRPC", "do_eval": True, "learning_rate": 2e-5, "train_batch_size": 32},
        [],
    ),
    "google, MRPC, prediction": (
        classifier.Config,
        f"--task_name=MRPC --do_predict=true --data_dir=/glue/MRPC {BASE} --max_seq_length=128 "
        "--output_dir=/tmp/mrpc_output/",
        {"do_train": False, "do_predict": True},
        [],
    ),
    "google, XNLI": (
        classifier.Config,
        f"--task_name=XNLI --do_train=true --do_eval=true --data_dir=/xnli {BASE} --max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=2.0 --output_dir=/tmp/xnli_output/",
        {"task_name": "XNLI", "num_train_epochs": 2.0},
        [],
    ),
    "google, pretraining data": (
        corpus.BuildConfig,
        "--input_file=./sample_text.txt --output_file=/tmp/tf_examples.tfrecord --vocab_file=/bert/vocab.txt "
        "--do_lower_case=True --max_seq_length=128 --max_predictions_per_seq=20 --masked_lm_prob=0.15 "
        "--random_seed=12345 --dupe_factor=5",
        {"output_dir": "/tmp/tf_examples.tfrecord", "random_seed": 12345, "dupe_factor": 5, "do_lower_case": True},
        [],
    ),
    "google, pretraining": (
        pretraining.Config,
        "--input_file=/tmp/tf_examples.tfrecord --output_dir=/tmp/pretraining_output --do_train=True "
        "--do_eval=True --bert_config_file=/bert/bert_config.json --init_checkpoint=/bert/bert_model.ckpt "
        "--train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20 "
        "--num_warmup_steps=10 --learning_rate=2e-5",
        {"num_train_steps": 20, "num_warmup_steps": 10, "max_predictions_per_seq": 20},
        [],
    ),
    "google, features": (
        features.Config,
        f"--input_file=/tmp/input.txt --output_file=/tmp/output.jsonl {BASE} --layers=-1,-2,-3,-4 "
        "--max_seq_length=128 --batch_size=8",
        {"layers": "-1,-2,-3,-4", "batch_size": 8, "output_file": "/tmp/output.jsonl"},
        [],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_old_command_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    config_class, line, expected, ignored = COMMANDS[name]
    config = parse(*shlex.split(line), config_class=config_class)
    assert {name: getattr(config, name) for name in expected} == expected
    assert [note.partition(" is ignored")[0] for note in capsys.readouterr().err.splitlines()] == ignored


@pytest.mark.parametrize(
    "line",
    [
        f"{SQUAD_1} {LARGE} --do_train=True --use_tpu=True --tpu_name=tpu-1",
        f"{SQUAD_2} {LARGE} --do_train=True --use_tpu=True --tpu_name=tpu-1 --version_2_with_negative=True "
        "--null_score_diff_threshold=-2.5",
    ],
)
def test_old_command_lines_for_a_tpu_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, *line.split(), config_class=squad.Config)
    assert message.startswith("--use_tpu=True: TPUs are not supported")


@pytest.mark.parametrize("flag", ["--do_lower_case=False", "--nodo_lower_case", "--do_lower_case false"])
def test_squad_takes_absl_booleans_where_null_is_allowed(flag: str) -> None:
    argv = ["--output_dir=x", "--do_predict", "--predict_file=dev.json", *flag.split()]
    assert parse(*argv, config_class=squad.Config).do_lower_case is False
