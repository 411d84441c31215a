"""The code of a trained model's card, run as it stands with transformers, sentence-transformers and
PyTorch: it loads every weight, and what it loads answers."""

import sys

import pytest
from harness import classifier_runs, tagger_files, texts
from harness.jobs import shell
from harness.mpi import ENVIRONMENT
from harness.program_runs import bert
from harness.squad_files import make_entries, write_squad

from distributed.world import World
from ringbase.settings import made
from tasks.corpus.program import build
from tasks.corpus.settings import BuildConfig
from tasks.runs.card import CARD, PLACE

TEXT = texts.ALL_WORDS[0]
# of each program: what is asked of what the card's code has made, and what it answers
ASKED = {
    "classifier": ("print(model('TEXT')[0]['label'])", {"animal", "colour", "tool"}),
    "classifier one score": ("print(0 <= model('TEXT')[0]['score'] <= 1)", {"True"}),
    "tagger": ("print(isinstance(model('TEXT'), list))", {"True"}),
    "squad": (
        "found = model(**tokenizer('TEXT', 'TEXT TEXT', return_tensors='pt'))\n"
        "print(found.start_logits.shape == found.end_logits.shape)",
        {"True"},
    ),
    "embedder": ("print(model.encode(['TEXT', 'TEXT']).shape[0])", {"2"}),
    "pretraining": ("print(len(model('TEXT [MASK]')))", {"5"}),
}


def flags_of(kind, data):
    least = ["--do_train", "--num_train_steps=2", "--max_seq_length=40"]
    if kind == "classifier":
        return [*classifier_runs.model_flags(data), *classifier_runs.own_files(data), *least]
    if kind == "classifier one score":
        rows = [
            [row.first, number % 5 / 4] for number, row in enumerate(classifier_runs.TRAIN[:64])
        ]
        classifier_runs.write_rows(data / "scores.csv", ["body", "score"], rows, ",")
        own = [f"--train_file={data}/scores.csv", "--text_column=body", "--label_column=score"]
        return [*classifier_runs.model_flags(data), *own, "--regression", *least]
    if kind == "tagger":
        (data / "tagger").mkdir()
        tagger_files.write_data(data / "tagger")
        return [*tagger_files.flags(data / "tagger"), *least]
    if kind == "squad":
        write_squad(data / "squad.json", make_entries(40, 1))
        own = [f"--train_file={data}/squad.json", "--max_query_length=16", "--doc_stride=12"]
        return [*classifier_runs.model_flags(data), *own, *least]
    if kind == "embedder":
        own = ["--anchor_column=body", "--positive_column=more", f"--train_file={data}/train.csv"]
        return [*classifier_runs.model_flags(data), *own, *least]
    lines = [" ".join(texts.ALL_WORDS[place : place + 9]) for place in range(20)]
    (data / "text.txt").write_text("\n\n".join("\n".join(lines[:8]) for _ in range(12)))
    settings = {
        "input_file": f"{data}/text.txt",
        "vocab_file": f"{data}/vocab.txt",
        "output_dir": f"{data}/corpus",
        "num_workers": 1,
        "max_seq_length": 32,
    }
    build(made(BuildConfig, settings), World())
    config = f"--bert_config_file={data}/bert_config.json"
    return [config, f"--input_file={data}/corpus/*.arrow", *least, "--max_seq_length=32"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ASKED)
def test_the_code_of_a_card_answers(kind, torch, tmp_path):
    data, out = classifier_runs.write_data(tmp_path / "data"), tmp_path / "out"
    bert(kind.partition(" ")[0], out, *flags_of(kind, data))
    card = (out / CARD).read_text()
    code = [line.strip() for line in card.partition("## Use")[2].splitlines() if line.strip()]
    assert any(PLACE in line for line in code)
    asked, answers = ASKED[kind]
    script = "\n".join([*code, asked]).replace(PLACE, str(out / "model")).replace("TEXT", TEXT)
    done = shell(sys.executable, "-c", script, PYTHONPATH=f"{torch}:{ENVIRONMENT['PYTHONPATH']}")
    assert done.stdout.strip() in answers, done
    for word in ("newly initialized", "MISSING", "UNEXPECTED", "not used when"):
        assert word not in done.stderr, done
