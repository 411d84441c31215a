"""The flags of Google's, lambdal's and NVIDIA's scripts: known, with their defaults, or ignored
with a line."""

import json
import re

import pytest
from harness.parsing import LEAST, ROOT, flags_of, parsed, refusal

# -- every flag and default of the scripts ---------------------------------------------------------

MODEL = "bert_config_file vocab_file init_checkpoint do_lower_case"
TRAINING = (
    "train_batch_size learning_rate=5e-5 save_checkpoints_steps=1000 output_dir do_train=False"
)
# The flags of each script except those of TPUs, and the defaults of google-research/bert that are
# ours too.
SCRIPTS = {
    "bert-squad": f"""{MODEL} {TRAINING} train_file predict_file do_predict=False max_seq_length=384
            doc_stride=128
        max_query_length=64 predict_batch_size=8 num_train_epochs=3.0 warmup_proportion=0.1
        n_best_size=20
        max_answer_length=30 version_2_with_negative=False null_score_diff_threshold=0.0""",
    "bert-classifier": f"""{MODEL} {TRAINING} do_eval=False do_predict=False data_dir task_name
        max_seq_length=128 eval_batch_size=8 predict_batch_size=8 num_train_epochs=3.0
        warmup_proportion=0.1""",
    "bert-pretraining": f"""{TRAINING} bert_config_file init_checkpoint do_eval=False input_file
        max_seq_length=128 eval_batch_size=8 max_eval_steps=100 max_predictions_per_seq
        num_train_steps num_warmup_steps""",
    "bert-corpus build": """vocab_file do_lower_case do_whole_word_mask=False dupe_factor input_file
        output_file masked_lm_prob max_predictions_per_seq max_seq_length=128 random_seed=12345
        short_seq_prob=0.1""",
    "bert-features": (
        f"{MODEL} input_file output_file layers=-1,-2,-3,-4 max_seq_length=128 batch_size=32"
    ),
}


def rows_of_page():
    """The flags that docs/flags.md lists under each heading."""
    sections = (ROOT / "docs" / "flags.md").read_text().split("\n## ")[1:]
    rows = {
        part.partition("\n")[0]: re.findall(r"^\| (`--.*?) \|", part, re.MULTILINE)
        for part in sections
    }
    return {
        heading: set(re.findall(r"`--(\w+)`", " ".join(cells))) for heading, cells in rows.items()
    }


@pytest.mark.parametrize("command", SCRIPTS)
def test_every_flag_of_the_scripts_is_known_and_listed_and_has_its_default(command):
    defaults = dict(entry.partition("=")[::2] for entry in SCRIPTS[command].split())
    known, listed = set(flags_of(command)), rows_of_page()[command]
    assert set(defaults) <= listed <= known
    found = parsed(command, *LEAST[command])
    found["do_train"] = False  # which had to be given
    for name, value in defaults.items():
        assert not value or str(found[name]) == str(read(value)), name


def read(text):
    """A number, truth or text as absl reads it."""
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


# -- the commands of the READMEs -------------------------------------------------------------------

BERT = (
    "--vocab_file=/b/vocab.txt --bert_config_file=/b/bert_config.json"
    " --init_checkpoint=/b/bert_model.ckpt"
)
SQUAD = (
    f"bert-squad {BERT} --learning_rate=3e-5 --num_train_epochs=2.0 --doc_stride=128"
    " --do_predict=True"
)
SQUAD_1 = f"{SQUAD} --train_file=/squad/train-v1.1.json --predict_file=/squad/dev-v1.1.json"
SQUAD_2 = f"{SQUAD} --train_file=/squad/train-v2.0.json --predict_file=/squad/dev-v2.0.json"
LARGE = "--train_batch_size=24 --max_seq_length=384 --output_dir=gs://some_bucket/squad_large/"
NO_TPU = "--use_tpu=False --tpu_name=tpu-1"
GLUE = f"bert-classifier {BERT} --max_seq_length=128"
CORPUS = "--max_seq_length=128 --max_predictions_per_seq=20"
READMES = [  # of google-research/bert, lambdal/bert and NVIDIA
    (
        f"{SQUAD_1} --do_train=True --train_batch_size=12 --max_seq_length=384"
        " --output_dir=/tmp/squad_base/"
    ),
    f"{SQUAD_2} {LARGE} --do_train=True {NO_TPU} --version_2_with_negative=True",
    f"""{SQUAD_2} {LARGE} --do_train=False {NO_TPU} --version_2_with_negative=True
        --null_score_diff_threshold=-2.5""",
    f"""{GLUE} --do_train=true --do_eval=true --train_batch_size=32 --task_name=MRPC
        --data_dir=/glue/MRPC
        --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=/tmp/mrpc_output/""",
    (
        f"{GLUE} --task_name=MRPC --do_predict=true --data_dir=/glue/MRPC"
        " --output_dir=/tmp/mrpc_output/"
    ),
    f"""bert-corpus build {CORPUS} --input_file=./sample_text.txt
        --output_file=/tmp/tf_examples.tfrecord
        --vocab_file=/vocab.txt --do_lower_case=True --masked_lm_prob=0.15 --random_seed=12345
        --dupe_factor=5""",
    f"""bert-pretraining {CORPUS} --input_file=/tmp/tf_examples.tfrecord
        --output_dir=/tmp/pretraining_output
        --do_train=True --do_eval=True --bert_config_file=/b/bert_config.json
        --init_checkpoint=/b/bert_model.ckpt
        --train_batch_size=32 --num_train_steps=20 --num_warmup_steps=10 --learning_rate=2e-5""",
    f"""bert-features {BERT} --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl
        --layers=-1,-2,-3,-4
        --max_seq_length=128 --batch_size=8""",
    f"""{SQUAD_2} --do_train True --train_batch_size 24 --max_seq_length 256 --output_dir
        ./squad2.0/
        --version_2_with_negative True --do_lower_case False""",
    f"""{SQUAD_1} --do_train=True --train_batch_size=8 --max_seq_length=384 --output_dir=/results
        --horovod
        --amp --use_xla""",
]


@pytest.mark.parametrize("line", READMES)
def test_the_commands_of_the_old_readmes_say_the_same_here(line, capsys):
    program, *argv = line.split()
    command = f"{program} {argv.pop(0)}" if not argv[0].startswith("-") else program
    given = dict(re.findall(r"--(\w+)[= ]?((?!--)\S*)", " ".join(argv)))
    found = parsed(command, *argv)
    found["output_file"] = found.get("output_file", found.get("output_dir"))
    ignored = [flag for flag in given if flag in rows_of_page()["All programs"]]
    for flag in given.keys() - set(ignored):
        assert found[flag] == read(given[flag]), flag
    notes = [line.partition(" is ignored: ")[0] for line in capsys.readouterr().err.splitlines()]
    assert notes == [f"--{flag}" for flag in ignored]


# -- flags that are ignored ------------------------------------------------------------------------


def test_each_ignored_flag_says_so_in_one_line_and_is_listed(capsys):
    line = """--use_tpu=False --tpu_name=tpu-1 --tpu_zone us-east1-d --gcp_project= --master local
        --amp
        --num_tpu_cores 8 --iterations_per_loop=9 --use_one_hot_embeddings --noverbose_logging
        --horovod
        --horovod=1 --use_xla 1"""
    least = LEAST["bert-squad"]
    assert parsed("bert-squad", *line.split(), *least) == parsed("bert-squad", *least)
    out, err = capsys.readouterr()
    assert out == ""
    noted = {note.split(" is ignored: ")[0].lstrip("-") for note in err.splitlines()}
    assert noted == {
        word.split("=")[0].lstrip("-").removeprefix("no") for word in line.split() if word[0] == "-"
    }
    assert noted <= rows_of_page()["All programs"]
    for flag in ("--horovod=maybe", "--tpu_name", "--use_tpu=1"):
        assert flag.split("=")[0] in refusal(capsys, "bert-squad", *least, flag)
