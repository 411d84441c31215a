"""The exact sentences of common errors, in one table: users look for them on the web."""

import json
import re

import pytest
from harness.classifier_runs import write_data
from harness.program_runs import bert
from harness.squad_files import make_entries, write_squad
from harness.texts import write_lines

from ringbase.files import read_json

SQUAD = (
    "squad --max_seq_length=60 --max_query_length=16 --vocab_file={vocab.txt}"
    " --train_file={squad.json}"
)
OWN = (
    "classifier --max_seq_length=60 --vocab_file={vocab.txt} --train_file={train.csv}"
    " --text_column=body --label_column=kind"
)
FLAGS = {  # status 2
    "squad --lerning_rate=1": "unknown flag --lerning_rate; did you mean --learning_rate?",
    "squad --do_predict": "--do_train needs --train_file, or --dataset_name",
    "squad --config={bad.toml}": (
        "--config {bad.toml}: unknown flag --lerning_rate; did you mean --learning_rate?"
    ),
    f"{SQUAD} --max_seq_length=12a": "--max_seq_length must be an integer, got '12a'",
    f"{SQUAD} --learning_rate=11": "--learning_rate must be at most 10, got 11.0",
}
INPUT = {  # status 1; "…" is what a library says
    f"{SQUAD} --train_file={{none}}": "--train_file {none}: No such file or directory",
    f"{SQUAD} --train_file={{cut.json}}": "--train_file {cut.json}: not valid JSON (…)",
    f"{SQUAD} --train_file={{far.json}}": (
        "--train_file {far.json}: question q0: its answer 'nope' at answer_start 5000 is not inside"
        " its 3-character context"
    ),
    f"{SQUAD} --vocab_file={{more.txt}}": (
        "{more.txt} has 115 entries, the model's configuration 114: --vocab_file does not belong to"
        " this model"
    ),
    f"{SQUAD} --bert_config_file={{roberta.json}}": (
        "{vocab.txt} has padding as id 0, the model's configuration as 1, after which roberta"
        " counts positions: they do not belong together"
    ),
    f"{SQUAD} --init_checkpoint={{none}}": (
        "{none}: no such folder or checkpoint (--model, --init_checkpoint)"
    ),
    f"{SQUAD} --max_seq_length=500": (
        "--max_seq_length must be at most the model's 128 positions, got 500"
    ),
    f"{SQUAD} --train_batch_size=100": (
        "no training step is left: 20 rows in batches of 100 make 0 steps of one rank, divided by 1"
        " rank; lower --train_batch_size or raise --num_train_epochs"
    ),
    f"{SQUAD} --num_train_steps=10 --num_warmup_steps=50": (
        "--num_warmup_steps 50 is more than the 10 steps of --num_train_steps: lower it, to 1 for"
        " example, a tenth of the steps"
    ),
    f"{OWN} --text_column=text": (
        "--train_file {train.csv}: no column 'text' (--text_column), only body, more, kind"
    ),
    f"{OWN} --text_column=boddy": (
        "--train_file {train.csv}: no column 'boddy' (--text_column), only body, more, kind;"
        " did you mean 'body'?"
    ),
    f"{OWN} --train_file={{semicolons.csv}}": (
        "--train_file {semicolons.csv}: no column 'body' (--text_column), only 'body;kind'; ';'"
        " separates no columns here: save it with commas, or as .tsv with tabs"
    ),
    f"{OWN} --train_file={{tabs.csv}}": (
        "--train_file {tabs.csv}: no column 'body' (--text_column), only 'body\\tkind';"
        " '\\t' separates no columns here: save it with commas, or as .tsv with tabs"
    ),
    f"{SQUAD} --bert_config_file=null --model={{runs}}": (
        "no model configuration in {runs}, but models are in {runs/seed-1/model}: give"
        " --bert_config_file, or --model with a folder or hub name that has one, or --model_size"
        " for a new model"
    ),
    f"{SQUAD} --nodo_train --do_predict --predict_file={{squad.json}}": (
        "no trained run in --output_dir …: give the folder of one, or --model, or --init_checkpoint"
    ),
    "pretraining --input_file={none}": "--input_file {none}: no file matches",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"))
    write_squad(folder / "squad.json", make_entries(20, 1))
    write_squad(folder / "far.json", [("abc", "d", "nope", 5000)])
    write_lines(folder / "bad.toml", "lerning_rate = 1.0")
    for name, mark in (("semicolons", ";"), ("tabs", "\t")):
        write_lines(folder / f"{name}.csv", f"body{mark}kind", f"a text{mark}good")
    (folder / "runs/seed-1/model").mkdir(parents=True)
    (folder / "runs/seed-1/model/config.json").touch()
    write_lines(folder / "cut.json", '{"data": [')
    config = read_json(folder / "bert_config.json")
    of_roberta = {"model_type": "roberta", "pad_token_id": 1}
    write_lines(folder / "roberta.json", json.dumps(config | of_roberta))
    write_lines(folder / "more.txt", *(folder / "vocab.txt").read_text().splitlines(), "more")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(folder / "cache"))
        yield folder


@pytest.mark.parametrize("line", [*FLAGS, *INPUT])
def test_messages(line, data, tmp_path, capsys):
    def filled(text):
        return text.replace("{", f"{data}/").replace("}", "")

    program, *argv = filled(line).split()
    model = f"--bert_config_file={data}/bert_config.json"
    with pytest.raises(SystemExit) as stop:
        bert(program, tmp_path / "out", "--do_train", model, *argv)
    assert stop.value.code == (2 if line in FLAGS else 1)
    expected = filled(f"bert-{program}: error: {(FLAGS | INPUT)[line]}")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(re.escape(expected).replace("…", ".+"), err.splitlines()[-1])
