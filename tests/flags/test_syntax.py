"""The command line and TOML files: absl's syntax as in Google's scripts, other spellings, refusals."""

import pytest
from harness.parsing import LEAST, parsed, refusal


def error(capsys, command: str, *argv: str) -> str:
    return refusal(capsys, command, *LEAST[command], *argv)


# -- values -------------------------------------------------------------------------------------------------------

SAME = [  # a program, a setting, its value, and command lines that give it this value
    ("squad", "max_seq_length", 384, ["", "--max_seq_length=100 --max-seq-length=384"]),
    ("squad", "max_seq_length", 128, ["--max_seq_length=128", "--max_seq_length 128", "-max_seq_length=128",
                                      "--max-seq-length=128", "-max-seq_length 128"]),
    ("squad", "learning_rate", 1.0, ["--learning_rate=1", "-learning-rate 1e-0"]),
    ("squad", "null_score_diff_threshold", -2.5, ["--null_score_diff_threshold -2.5"]),
    ("squad", "num_train_steps", None, ["", "--num_train_steps=7 --num_train_steps=null"]),
    ("squad", "model", "true", ["--model=true", "--model true"]),
    ("squad", "model", "", ["--model="]),
    ("squad", "model", "a=b:[c]#d", ["--model=a=b:[c]#d", "-model a=b:[c]#d"]),
    ("squad", "model", "-my-model", ["--model -my-model"]),
    ("squad", "model", "--strange", ["--model=--strange"]),
    ("squad", "model", "y", ["--model_name_or_path=y", "--model-name-or-path x --model=y"]),
    ("squad", "do_predict", True, ["--do_predict --predict_file=x", "-do-predict --predict_file=x"]),
    ("squad", "do_lower_case", None, ["", "--do_lower_case=null"]),
    ("squad", "do_lower_case", True, ["--do_lower_case", "--nodo_lower_case --do_lower_case --log_steps=1"]),
    ("squad", "do_lower_case", False, ["--nodo_lower_case", "--no_do_lower_case", "--no-do-lower-case",
                                       "-nodo-lower-case", "--do_lower_case --do_lower_case=false"]),
    ("classifier", "eval_steps", 12, ["--eval_steps=12"]),
    ("classifier", "eval_steps", "auto", ["--eval_steps=auto", "--eval-steps auto"]),
    ("squad", "precision", "fp16", ["--fp16", "--bf16 --fp16 --bf16=false", "--precision=bf16 --fp16"]),
    ("squad", "precision", "bf16", ["--bf16=true", "-bf16 1", "--nofp16 --bf16", "--fp16 --precision=bf16"]),
    ("squad", "precision", "fp32", ["--fp16=false", "--fp16 --fp16=false", "--precision=fp16 --nofp16"]),
    ("features", "layers", "-1,-2", ["--layers=-1,-2", "--layers -1,-2", "-layers -1,-2"]),
]  # fmt: skip


@pytest.mark.parametrize(("program", "name", "value", "lines"), SAME)
def test_values(program, name, value, lines):
    for line in lines:
        found = parsed(f"bert-{program}", *LEAST[f"bert-{program}"], *line.split())[name]
        assert (found, type(found)) == (value, type(value)), line


@pytest.mark.parametrize("words", ["1 0", "true false", "True FALSE", "t f", "yes no", "y n"])
def test_words_of_booleans(words):
    for word, expected in zip(words.split(), (True, False), strict=True):
        for argv in ([f"--do_lower_case={word}"], ["--do_lower_case", word], ["-do-lower-case", word]):
            for before in ("--do_lower_case", "--nodo_lower_case"):
                assert parsed("bert-squad", *LEAST["bert-squad"], before, *argv)["do_lower_case"] is expected


def test_words_set_positional_fields():
    expected = {"folder": "here", "question": "who?", "context": "-", "top_k": 2, "json": True}
    by_flag = "--json --top_k=2 here - --question=who? --context=-"
    for line in ("here who? - --top_k=2 --json", "--json here --top_k 2 who? -", by_flag):
        assert expected.items() <= parsed("bert-ask", *line.split()).items()


# -- refusals -----------------------------------------------------------------------------------------------------

BAD = {  # what the message names, and command lines that are refused so
    "--learning_rate": ["--lerning_rate=1", "--lerning-rate 1", "--learn=1", "--learning_rate=nan",
                        "--learning_rate=inf", "--learning_rate=1e999", "--learning_rate=fast"],
    "--model_name_or_path": ["--model_name=x"],
    "--do_train": ["--nodo_trian", "--do_train=maybe"],
    "--nodo_train": ["--nodo_train=1"],
    "--help": ["--xyzzy", "--l=1"],
    "--use_gpu": ["--use_gpu"],
    "--init_checkpoint": ["--bert_hub_module_handle=x"],
    "--model": ["--nomodel", "--model", "--model --do_train", "--model -nodo_train"],
    "'train.json'": ["train.json"],
    "'maybe'": ["--do_train maybe"],
    "unexpected": ["-1", "--"],
    "aaaaaaaa": [f"--{'a' * 5000}=1", "a" * 5000],
    "--max_seq_length": ["--max_seq_length=12a", "--max_seq_length=384.0", "--max_seq_length=true",
                         "--max_seq_length=", "--max_seq_length=null"],
    "--seed": [f"--seed={'9' * 5000}", f"--seed={1 << 64}"],
    "fp32, bf16 or fp16": ["--precision=fp8"],
    "--train_file": ["--train_file=a\udcffb", "--train_file=a\0b"],
    "absent": ["--flagfile=absent", "--config=absent"],
    "--config /": ["--config=/", "--config=/dev/zero"],
}  # fmt: skip


@pytest.mark.parametrize("named", BAD)
def test_a_bad_flag_is_one_line_that_names_it_or_the_nearest(named, capsys):
    for line in BAD[named]:
        assert named in error(capsys, "bert-squad", *line.split())


def test_words_that_are_missing_or_too_many(capsys):
    message = refusal(capsys, "bert-ask", "here")
    assert "QUESTION" in message
    assert "FOLDER" not in message
    assert "'d'" in refusal(capsys, "bert-ask", *"abcd")


TRAINS = "squad --output_dir=x --do_train --train_file=t"
PREDICTS = "squad --output_dir=x --do_predict"
GLUE = "classifier --output_dir=x --do_eval --task_name=MRPC"
OWN = "classifier --output_dir=x --do_eval --dev_file=f"
SHARDS = "pretraining --output_dir=x --input_file=x"
FEATURES = "features --input_file=i --output_file=o"
CORPUS = "corpus build --output_dir=o --input_file=i"
TOGETHER = {  # flags that are missing or do not fit each other -> what the message names
    "squad --output_dir=x": "--do_train --do_predict",
    PREDICTS: "--do_predict --predict_file",
    f"{PREDICTS} --predict_file=p --metric=squad_v2": "--metric --version_2_with_negative",
    f"{TRAINS} --global_batch_size=8 --train_batch_size=8": "--global_batch_size --train_batch_size",
    f"{TRAINS} --model_revision=main": "--model_revision --model",
    "classifier --output_dir=x": "--do_train",
    "classifier --output_dir=x --do_train": "--do_train --train_file",
    "classifier --output_dir=x --do_train --train_file=t --eval_steps=5": "--dev_file",
    "classifier --output_dir=x --do_predict": "--do_predict --predict_file",
    GLUE: "--task_name --data_dir",
    f"{GLUE} --data_dir=d --dev_file=f": "--task_name",
    f"{GLUE} --data_dir=d --regression": "--regression",
    f"{OWN} --from_hub": "--from_hub --task_name",
    f"{OWN} --seeds=1,2,01": "--seeds 1,2,01",
    SHARDS: "--do_train",
    f"{SHARDS} --do_train --num_train_steps=5 --num_train_epochs=1": "--num_train_steps --num_train_epochs",
    f"{SHARDS} --do_train --init_moments": "--init_moments --init_checkpoint",
    FEATURES: "--init_checkpoint --model",
    f"{FEATURES} --model=m --layers=last": "--layers last",
    f"{CORPUS} --dataset_name=x": "--input_file --dataset_name",
    f"{CORPUS} --format=tfrecord --masking=dynamic": "--format --masking",
    f"{CORPUS} --format=tfrecord --masking=static --nonext_sentence": "--format --next_sentence",
    f"{CORPUS} --fp16": "--fp16",  # it has no precision
}


@pytest.mark.parametrize("line", TOGETHER)
def test_flags_that_do_not_go_together_are_named(line, capsys):
    command, *flags = line.split(" --")
    message = refusal(capsys, f"bert-{command}", *(f"--{flag}" for flag in flags))
    assert [name for name in TOGETHER[line].split() if name not in message] == []
    assert len(message) < 300


# -- files --------------------------------------------------------------------------------------------------------


def test_a_file_sets_flags_and_the_command_line_wins(tmp_path):
    config = f"--config={tmp_path}/run.toml"
    (tmp_path / "run.toml").write_text(
        'output_dir = "o" # a recipe\nmax-seq-length = 256\nlearning_rate = 1\nmodel_name_or_path = "모델"\n'
        'num_train_steps = 10\ndo_train = true\ndo_lower_case = false\ntrain_file = "t"\nprecision = "bf16"\n'
    )
    expected = {"output_dir": "o", "max_seq_length": 256, "learning_rate": 1.0, "model": "모델", "do_train": True,
                "num_train_steps": 10, "do_lower_case": False, "precision": "bf16"}  # fmt: skip
    assert expected.items() <= parsed("bert-squad", *config.split("=")).items()
    # --config may stand anywhere; a flag wins even with its default value; null unsets; the last file counts.
    more = ("--max_seq_length=384", "--config=absent.toml", config, "--num_train_steps=null", "--fp16")
    expected |= {"max_seq_length": 384, "num_train_steps": None, "precision": "fp16"}
    assert expected.items() <= parsed("bert-squad", *more).items()


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("training", "[training]\ndo_train = true"), ("seed", "seed = [[1], {a = 2}]"),
        ("--max_seq_length", "max_seq_length = 384.0"), ("--learning_rate", f"learning_rate = 1{'0' * 400}"),
        ("--do_train", "do_train = 2"), ("TOML", "do_train: true"), ("TOML", "a = " + "[" * 5000),
        ("TOML", "seed = " + "9" * 5000), ("UTF-8", "\xff\xfe"), ("xxxxxxxx", "x" * 5000 + " = 1"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_that_names_it(named, text, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(text, "latin-1")
    message = error(capsys, "bert-squad", f"--config={tmp_path}/run.toml")
    assert message.startswith(f"--config {tmp_path}/run.toml: ")
    assert named in message


def test_absl_flag_files(tmp_path, capsys):
    path = tmp_path / "flags"
    path.write_text("# a recipe\n--max-seq-length=256\n--nodo_lower_case\n--do_train=false\n")
    for argv in ([f"--flagfile={path}", "--do_train"], ["--do_train=0", "--flagfile", str(path), "--do_train=1"]):
        found = parsed("bert-squad", *LEAST["bert-squad"], *argv)
        assert (found["max_seq_length"], found["do_lower_case"], found["do_train"]) == (256, False, True)
    path.write_text(f"--flagfile={path}\n")
    assert str(path) in error(capsys, "bert-squad", f"--flagfile={path}")


def test_undefok_names_flags_that_may_be_unknown(capsys):
    least = LEAST["bert-squad"]
    assert parsed("bert-squad", *least, "--new=1", "--undefok=old,new") == parsed("bert-squad", *least)
    assert "--newer" in error(capsys, "bert-squad", "--newer=1", "--undefok=old,new")
