"""The command line and TOML files: absl's syntax as in Google's scripts, other spellings,
refusals."""

import json
import re

import pytest
from harness import parsing
from harness.parsing import LEAST, SETTINGS, parsed, refusal

import ringbert
from ringbase.settings import unheeded
from tasks.runs.flags import parse


def error(capsys, command, *argv):
    return refusal(capsys, command, *LEAST[command], *argv)


# -- values ----------------------------------------------------------------------------------------

SAME = [  # a program, a setting, its value, and command lines that give it this value
    ("squad", "max_seq_length", 384, ["", "--max_seq_length=100 --max-seq-length=384"]),
    (
        "squad",
        "max_seq_length",
        128,
        [
            "--max_seq_length=128",
            "--max_seq_length 128",
            "-max_seq_length=128",
            "--max-seq-length=128",
            "-max-seq_length 128",
        ],
    ),
    ("squad", "learning_rate", 1.0, ["--learning_rate=1", "-learning-rate 1e-0"]),
    ("squad", "null_score_diff_threshold", -2.5, ["--null_score_diff_threshold -2.5"]),
    ("squad", "num_train_steps", None, ["", "--num_train_steps=7 --num_train_steps=null"]),
    ("squad", "num_train_steps", 7, ["--new=1 --undefok=old,new --num_train_steps=7"]),
    ("squad", "model", "true", ["--model=true", "--model true"]),
    ("squad", "model", "", ["--model="]),
    ("squad", "model", "a=b:[c]#d", ["--model=a=b:[c]#d", "-model a=b:[c]#d"]),
    ("squad", "model", "-my-model", ["--model -my-model"]),
    ("squad", "model", "--strange", ["--model=--strange"]),
    ("squad", "model", "y", ["--model_name_or_path=y", "--model-name-or-path x --model=y"]),
    (
        "squad",
        "do_predict",
        True,
        ["--do_predict --predict_file=x", "-do-predict --predict_file=x"],
    ),
    ("squad", "do_lower_case", None, ["", "--do_lower_case=null"]),
    (
        "squad",
        "do_lower_case",
        True,
        ["--do_lower_case", "--nodo_lower_case --do_lower_case --log_steps=1"],
    ),
    (
        "squad",
        "do_lower_case",
        False,
        [
            "--nodo_lower_case",
            "--no_do_lower_case",
            "--no-do-lower-case",
            "-nodo-lower-case",
            "--do_lower_case --do_lower_case=false",
        ],
    ),
    ("classifier", "eval_steps", 12, ["--eval_steps=12"]),
    ("classifier", "eval_steps", "auto", ["--eval_steps=auto", "--eval-steps auto"]),
    (
        "squad",
        "precision",
        "fp16",
        ["--fp16", "--bf16 --fp16 --bf16=false", "--precision=bf16 --fp16"],
    ),
    (
        "squad",
        "precision",
        "bf16",
        ["--bf16=true", "-bf16 1", "--nofp16 --bf16", "--fp16 --precision=bf16"],
    ),
    (
        "squad",
        "precision",
        "fp32",
        ["--fp16=false", "--fp16 --fp16=false", "--precision=fp16 --nofp16"],
    ),
    ("features", "layers", "-1,-2", ["--layers=-1,-2", "--layers -1,-2", "-layers -1,-2"]),
    *(
        ("squad", "do_lower_case", value, [f"--{no}do_lower_case {flag}{word}"])
        for words, value in (("1 true True t yes y", True), ("0 false FALSE f no n", False))
        for word in words.split()
        for no in ("", "no")
        for flag in ("--do_lower_case=", "--do_lower_case ", "-do-lower-case ")
    ),
]


@pytest.mark.parametrize(("program", "name", "value", "lines"), SAME)
def test_values(program, name, value, lines):
    for line in lines:
        found = parsed(f"bert-{program}", *LEAST[f"bert-{program}"], *line.split())[name]
        assert (found, type(found)) == (value, type(value)), line


def test_words_set_positional_fields():
    expected = {"folder": "here", "question": "who?", "context": "-", "top_k": 2, "json": True}
    by_flag = "--json --top_k=2 here - --question=who? --context=-"
    for line in ("here who? - --top_k=2 --json", "--json here --top_k 2 who? -", by_flag):
        assert expected.items() <= parsed("bert-ask", *line.split()).items()


def test_what_a_folder_holds_is_not_read_with_the_flags(tmp_path):
    """tests/files/test_resolve.py has what it says."""
    (tmp_path / "run.json").write_text('{"config": [1]}')
    for place in (tmp_path, "x" * 300):
        predicts = f"--output_dir={place}", "--do_predict", "--predict_file=x"
        assert parsed("bert-squad", *predicts)["output_dir"] == str(place)
        assert parsed("bert-doctor", predicts[0])["output_dir"] == str(place)


# -- refusals --------------------------------------------------------------------------------------

BAD = {  # what the message names, and command lines that are refused so
    "--learning_rate": [
        "--lerning-rate 1",
        "--learn=1",
        "--learning_rate=1e999",
        "--learning_rate=fast",
    ],
    "--model_name_or_path": ["--model_name=x"],
    "--do_train": ["--nodo_trian", "--do_train=maybe"],
    "--nodo_train": ["--nodo_train=1"],
    "--help": ["--xyzzy", "--l=1"],
    "--use_gpu": ["--use_gpu"],
    "--newer": ["--newer=1 --undefok=old,new"],
    "--init_checkpoint": ["--bert_hub_module_handle=x"],
    "--model": ["--nomodel", "--model", "--model --do_train", "--model -nodo_train"],
    "'train.json'": ["train.json"],
    "'maybe'": ["--do_train maybe"],
    "unexpected": ["-1", "--", "--\udcffxyzzy=1"],
    "aaaaaaaa": [f"--{'a' * 5000}=1", "a" * 5000],
    "--max_seq_length": [
        "--max_seq_length=384.0",
        "--max_seq_length=true",
        "--max_seq_length=",
        "--max_seq_length=null",
    ],
    "--seed": [f"--seed={'9' * 5000}", f"--seed={1 << 64}"],
    "fp32, bf16 or fp16": ["--precision=fp8"],
    "--train_file": ["--train_file=a\udcffb", "--train_file=a\0b"],
    "absent": ["--flagfile=absent", "--config=absent"],
    "--config /": ["--config=/", "--config=/dev/zero"],
}


@pytest.mark.parametrize("named", BAD)
def test_a_bad_flag_is_one_line_that_names_it_or_the_nearest(named, capsys):
    for line in BAD[named]:
        assert named in error(capsys, "bert-squad", *line.split())


def test_words_that_are_missing_or_too_many(capsys):
    assert refusal(capsys, "bert-ask", "here") == "QUESTION and CONTEXT must be given"
    assert "'d'" in refusal(capsys, "bert-ask", *"abcd")


PREDICTS = "squad --output_dir=x --do_predict"
GLUE = "classifier --output_dir=x --do_eval --task_name=MRPC"
# flags that are missing or do not fit each other -> what the message names; + is for LEAST
TOGETHER = {
    "squad --output_dir=x": "--do_train --do_predict",
    PREDICTS: "--do_predict --predict_file",
    "squad+ --metric=squad_v2": "--metric --version_2_with_negative",
    "squad+ --global_batch_size=8 --train_batch_size=8": "--global_batch_size --train_batch_size",
    "squad+ --model_revision=main": "--model_revision --model",
    "classifier --output_dir=x": "--do_train",
    "classifier --output_dir=x --do_train": "--do_train --train_file",
    "classifier --output_dir=x --do_train --train_file=t --eval_steps=5": "--dev_file",
    "classifier --output_dir=x --do_predict": "--do_predict --predict_file",
    GLUE: "--task_name --data_dir",
    f"{GLUE} --data_dir=d --dev_file=f": "--task_name",
    f"{GLUE} --data_dir=d --regression": "--regression",
    "classifier+ --from_hub": "--from_hub --task_name",
    "classifier+ --seeds=1,2,01": "--seeds 1,2,01",
    "pretraining --output_dir=x --input_file=x": "--do_train",
    "pretraining+ --num_train_steps=5 --num_train_epochs=1": "--num_train_steps --num_train_epochs",
    "pretraining+ --init_moments": "--init_moments --init_checkpoint",
    "features --input_file=i --output_file=o": "--init_checkpoint --model",
    "features+ --layers=last": "--layers last",
    "corpus build+ --dataset_name=x": "--input_file --dataset_name",
}


@pytest.mark.parametrize("line", TOGETHER)
def test_flags_that_do_not_go_together_are_named(line, capsys):
    command, *flags = f"bert-{line}".split(" --")
    call = error if command.endswith("+") else refusal
    message = call(capsys, command.rstrip("+"), *(f"--{flag}" for flag in flags))
    assert [name for name in TOGETHER[line].split() if name not in message] == []
    assert len(message) < 300


# -- files -----------------------------------------------------------------------------------------


def test_a_file_sets_flags_and_the_command_line_wins(tmp_path):
    config = f"--config={tmp_path}/run.toml"
    (tmp_path / "run.toml").write_text(
        'output_dir = "o" # a recipe\nmax-seq-length = 256\nlearning_rate = 1\nmodel_name_or_path ='
        ' "모델"\nnum_train_steps = 10\ndo_train = true\ndo_lower_case = false\ntrain_file ='
        ' "t"\nprecision = "bf16"\n'
    )
    expected = {
        "output_dir": "o",
        "max_seq_length": 256,
        "learning_rate": 1.0,
        "model": "모델",
        "do_train": True,
        "num_train_steps": 10,
        "do_lower_case": False,
        "precision": "bf16",
    }
    assert expected.items() <= parsed("bert-squad", *config.split("=")).items()
    # --config may stand anywhere; a flag wins even with its default value; null unsets; the last
    # file counts.
    more = ("--max_seq_length=384", "--config=absent.toml", config, "--num_train_steps=null")
    expected |= {"max_seq_length": 384, "num_train_steps": None, "precision": "fp16"}
    assert expected.items() <= parsed("bert-squad", *more, "--fp16").items()


def test_a_mapping_is_json_a_table_of_a_file_or_a_dict(tmp_path):
    weights = {"a,b": 1.5, "c": 2.0}
    (tmp_path / "run.toml").write_text('[class_weights]\n"a,b" = 1.5\nc = 2.0\n')
    least = ("--output_dir=o", "--do_train", "--train_file=t.csv")
    of_flag = parsed("bert-classifier", *least, f"--class_weights={json.dumps(weights)}")
    of_file = parsed("bert-classifier", *least, f"--config={tmp_path}/run.toml")
    job = ringbert.Classification(
        output_dir="o", do_train=True, train_file="t.csv", class_weights={"a,b": 1.5, "c": 2}
    )
    assert json.loads(of_flag["class_weights"]) == json.loads(of_file["class_weights"]) == weights
    assert json.loads(job.class_weights) == weights


def test_a_list_is_one_value_after_another_by_command_line_file_and_python(tmp_path):
    (tmp_path / "run.toml").write_text('seeds = [1, 2]\nlabel-column = ["a", "b"]\n')
    least = "--output_dir=o", "--do_train", "--train_file=t"
    written = parsed("bert-classifier", *least, "--seeds=1,2", "--label_column=a,b")
    of_file = parsed("bert-classifier", *least, f"--config={tmp_path}/run.toml")
    job = ringbert.Classification(
        output_dir="o", do_train=True, train_file="t", seeds=[1, 2], label_column=["a", "b"]
    )
    assert written == of_file == parsed("bert-classifier", *job.argv)
    assert (written["seeds"], written["label_column"]) == ("1,2", "a,b")


def test_a_bad_file_is_one_line_that_names_it(tmp_path, capsys):
    for text, named in {
        "[training]\ndo_train = true": "training",
        "seed = [[1], {a = 2}]": "seed must be one value",
        "seed = 2026-11-29": "seed must be one value",
        "lerning_rate = [1]": "--learning_rate",
        "do_train = 2": "--do_train",
        "max_seq_length = 384.0": "--max_seq_length",
        f"learning_rate = 1{'0' * 400}": "--learning_rate",
        "do_train: true": "line 1",
        "a = " + "[" * 5000: "recursion",
        "seed = " + "9" * 5000: "digits",
        "\xff\xfe": "UTF-8",
        "x" * 5000 + " = 1": "xxxxxxxx",
    }.items():
        (tmp_path / "run.toml").write_text(text, "latin-1")
        message = error(capsys, "bert-squad", f"--config={tmp_path}/run.toml")
        assert message.startswith(f"--config {tmp_path}/run.toml: ")
        assert named in message


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--text_column=review", "--text_column is for"),
        ("--ranking", "--ranking is for"),
        ("--regression", "--regression is for"),
    ],
)
def test_columns_of_a_named_task_cannot_be_given(flag, named, capsys):
    least = "--output_dir=o", "--do_eval", "--task_name=MRPC", "--data_dir=d"
    assert refusal(capsys, "bert-classifier", *least, flag).startswith(named)


DEV_ONLY = "--nodo_train --do_eval --dev_file=d"


@pytest.mark.parametrize(
    ("command", "flags", "void"),
    [
        ("bert-squad", "--null_score_diff_threshold=1", ["null_score_diff_threshold"]),
        ("bert-squad", "--null_score_diff_threshold=1 --version_2_with_negative", []),
        ("bert-squad", "--predict_file=p", ["predict_file"]),
        ("bert-squad", "--predict_file=p --eval_steps=5", []),  # scored while training
        ("bert-squad", "--dataset_name=d", ["dataset_name"]),
        ("bert-squad", "--dataset_name=d --do_predict", []),  # of which no file is named
        ("bert-embedder", "--corpus_file=c", ["corpus_file"]),
        ("bert-embedder", "--corpus_file=c --do_eval --dev_file=d", []),
        ("bert-tagger", "--seed=1 --seeds=2,3", ["seed"]),
        ("bert-tagger", "--num_decay_steps=9", ["num_decay_steps"]),
        ("bert-tagger", "--num_decay_steps=9 --lr_scheduler_type=wsd", []),
        ("bert-tagger", "--lr_scheduler_type=polynomial --lr_power=3 --min_lr_ratio=0", []),
        ("bert-tagger", "--lr_power=3", ["lr_power"]),
        (
            "bert-tagger",
            "--eval_batch_size=3 --predict_batch_size=3",
            ["eval_batch_size", "predict_batch_size"],
        ),
        ("bert-tagger", f"{DEV_ONLY} --learning_rate=1 --freeze=2", ["learning_rate", "freeze"]),
        ("bert-tagger", f"{DEV_ONLY} --max_seq_length=9 --fp16", []),
        ("bert-classifier", "--do_train=0 --do_eval --dev_file=d --seed=1", ["seed"]),
        ("bert-pretraining", "--eval_batch_size=3", ["eval_batch_size"]),
        ("bert-pretraining", "--eval_batch_size=3 --do_eval", []),
        ("bert-pretraining", "--eval_batch_size=3 --eval_steps=5", []),
        ("bert-corpus vocab", "--kind=bpe --min_frequency=3", ["min_frequency"]),
        ("bert-corpus vocab", "--min_frequency=3", []),
        ("bert-corpus build", "--nonext_sentence --short_seq_prob=0.2", ["short_seq_prob"]),
        ("bert-corpus build", "--dataset_config=c", ["dataset_config"]),
        ("bert-tagger", "--freeze=encoder --layer_lr_decay=0.5", ["layer_lr_decay"]),
        ("bert-embedder", "--head_learning_rate=1", ["head_learning_rate"]),
        ("bert-pretraining", "--num_warmup_steps=1 --warmup_proportion=0.1", ["warmup_proportion"]),
        ("bert-classifier", "--dev_file=d --do_eval --language=de", ["language"]),
    ],
)
def test_flags_that_others_make_void_are_found(command, flags, void):
    argv = [*LEAST[command], *flags.split()]
    config = parse(parsing.named(SETTINGS[command]), argv, prog=command)
    notes = " ".join(unheeded(config, config.given))
    found = re.findall("--([a-z_]+)(?=[^:]* nothing:)", notes)
    assert {name for name in found if f"--{name}" not in " ".join(LEAST[command])} == {*void}


def test_a_rate_of_the_head_is_scaled_by_that_of_the_rest(capsys):
    flags = *LEAST["bert-tagger"], "--learning_rate=0", "--head_learning_rate=1e-3"
    assert "--freeze encoder" in refusal(capsys, "bert-tagger", *flags)


def test_standard_input_is_for_one_model(capsys):
    flags = "--output_dir=o", "--do_predict", "--predict_file=-", "--seeds=1"
    assert "--seeds" in refusal(capsys, "bert-classifier", *flags)


def test_absl_flag_files(tmp_path, capsys):
    path = tmp_path / "flags"
    path.write_text("# a recipe\n--max-seq-length=256\n--nodo_lower_case\n--do_train=false\n")
    for line in (f"--flagfile={path} --do_train", f"--do_train=0 --flagfile {path} --do_train=1"):
        found = parsed("bert-squad", *LEAST["bert-squad"], *line.split())
        assert found["max_seq_length"] == 256
        assert (found["do_lower_case"], found["do_train"]) == (False, True)
    path.write_text(f"--flagfile={path}\n")
    assert str(path) in error(capsys, "bert-squad", f"--flagfile={path}")
