"""bert-classifier on files of the user's and on GLUE's, from its flags to its files, on a tiny
model."""

import io
import json
import math
import os
import re
import shutil
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from harness import classifier_runs as own
from harness import program_runs as programs
from harness.classifier_runs import (
    DEV,
    TEST,
    TRAIN,
    classify,
    glue_flags,
    scores_in,
    table_in,
    write_rows,
)
from harness.models import save_model
from harness.program_runs import files_in, metrics_in, objects_in, text_of, weights_in
from harness.texts import ALL_WORDS, KINDS, write_lines
from safetensors.numpy import load_file
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, ndcg_score
from transformers import AutoConfig

import ringbert
from ringbase.files import read_json
from ringbase.settings import unheeded
from tasks.classifier.settings import ClassifierConfig
from tasks.runs.flags import parse

STEPS = 40
TEXTS = ["cat,good", "saw,bad"] * 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def flags(data):
    """Those of a training, without its length."""
    return (*own.model_flags(data), *own.own_files(data), *own.LEARN)


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """A run; scores that it returned."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, classify(
        folder, *flags, f"--num_train_steps={STEPS}", "--do_eval", "--do_predict"
    )


def test_a_run_learns_and_leaves_its_files(trained):
    folder, returned = trained
    scores = scores_in(folder)
    assert scores == returned == read_json(folder / "result.json")["scores"]
    assert set(scores) == {"eval_accuracy", "eval_mcc", "eval_macro_f1", "eval_loss"}
    assert scores["eval_accuracy"] > 0.8  # chance: 0.33; measured 0.93
    probabilities = np.loadtxt(folder / "test_results.tsv", delimiter="\t")
    assert probabilities.shape == (len(TEST), len(KINDS))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)  # a softmax in float64
    header, *rows = table_in(folder / "predictions.tsv")
    assert header == ["index", "prediction", "probability", "text", "second text"]
    predicted = [sorted(KINDS)[best] for best in probabilities.argmax(1)]
    shares = [f"{share:.4f}" for share in probabilities.max(1)]
    inputs = [(example.first, example.second) for example in TEST]
    columns = [map(str, range(len(TEST))), predicted, shares, *zip(*inputs, strict=True)]
    assert rows == [list(row) for row in zip(*columns, strict=True)]
    kinds = [example.kind for example in TEST]
    assert np.mean([label == kind for label, kind in zip(predicted, kinds, strict=True)]) > 0.8
    lines = objects_in(folder / "predictions.jsonl")
    assert [(line["text"], line["text_pair"], line["prediction"]) for line in lines] == [
        (*texts, label) for texts, label in zip(inputs, predicted, strict=True)
    ]
    found = [[line["probabilities"][kind] for kind in sorted(KINDS)] for line in lines]
    np.testing.assert_array_equal(found, probabilities)


def test_mistakes_are_those_of_the_dev_set_the_surest_first(trained):
    folder, scores = trained
    mistakes = objects_in(folder / "mistakes.jsonl")
    assert len(mistakes) == round((1 - scores["eval_accuracy"]) * len(DEV)) > 0
    kind_of = {(example.first, example.second): example.kind for example in DEV}
    sureness = []
    for line in mistakes:
        assert line["label"] == kind_of[line["text"], line["text_pair"]] != line["prediction"]
        assert line["prediction"] == max(line["probabilities"], key=line["probabilities"].get)
        sureness.append(line["probabilities"][line["prediction"]])
    assert sureness == sorted(sureness, reverse=True)
    page = (folder / "report.html").read_text()
    assert f"{len(mistakes)} of {len(DEV)}; all of them are in mistakes.jsonl" in page


def test_the_texts_that_it_is_least_sure_of_are_on_the_page(trained):
    """Right or wrong: those whose best label leads by least."""
    folder, _ = trained
    report = read_json(folder / "result.json")["report"]
    sections = {section["title"]: section for section in report}
    assert [*sections] == ["Labels", "Confusion", "Least sure", "Mistakes"]
    classifier = ringbert.Classifier(folder)
    leads = {}
    for example in DEV:
        inputs = example.first, example.second
        *_, second, best = sorted(classifier(inputs).probabilities.values())
        leads[inputs] = best - second
    table = sections["Least sure"]
    assert table["columns"] == ["id", "text", "text_pair", "label", "prediction", "sureness"]
    shown = [leads[text_of(row[1]), text_of(row[2])] for row in table["rows"]]
    np.testing.assert_allclose(shown, sorted(leads.values())[:12], atol=1e-5)
    assert len({row[3] == row[4] for row in table["rows"]}) == 2
    assert {row[3] for row in table["rows"]} <= {*KINDS}  # plain: only texts get room


def test_a_model_is_saved_for_transformers(trained):
    folder, _ = trained
    losses = [line["loss"] for line in metrics_in(folder)]
    assert np.mean(losses[-2:]) < 0.5 * losses[0]
    config, kinds = AutoConfig.from_pretrained(folder / "model"), sorted(KINDS)
    assert config.id2label == dict(enumerate(kinds))
    assert config.label2id == {kind: number for number, kind in enumerate(kinds)}
    assert config.problem_type == "single_label_classification"


@pytest.mark.slow
def test_a_head_for_other_labels_starts_anew_and_class_weights_reach_the_training(
    trained, data, tmp_path
):
    """With a rate of 0 the saved head is the one that training started from. With nearly all weight
    on one label that label alone is learnt: everything is called so."""
    rows = [
        (e.first, e.second, "abc"[KINDS.index(e.kind)] if n % 40 else "d")
        for n, e in enumerate(TRAIN)
    ]
    write_rows(tmp_path / "train.csv", own.COLUMNS, rows, ",")
    flags = (f"--model={trained[0]}/model", "--max_seq_length=32", *own.own_files(data), *own.LEARN)
    flags = (*flags, f"--train_file={tmp_path}/train.csv")
    classify(tmp_path / "new", *flags, "--learning_rate=0", "--num_train_steps=1")
    old = load_file(trained[0] / "model/model.safetensors")
    new = load_file(tmp_path / "new/model/model.safetensors")
    np.testing.assert_array_equal(old["bert.pooler.dense.weight"], new["bert.pooler.dense.weight"])
    assert new["classifier.weight"].shape == (4, 64)
    assert not new["classifier.bias"].any()
    heavy = "--class_weights=a=0.0001,b=1000,c=0.0001,d=0.0001"
    classify(tmp_path / "heavy", *flags, "--num_train_steps=20", "--do_predict", heavy)
    assert {row[1] for row in table_in(tmp_path / "heavy/predictions.tsv")[1:]} == {"b"}


def serve_once(pipe, text):
    """Whoever opens the pipe a second time does not find it."""
    pipe.write_text(text)
    pipe.unlink()


@pytest.mark.parametrize("program", ["classifier", "tagger"])
def test_a_file_is_read_once_for_labels_rows_scores_and_all_seeds(program, data, tmp_path):
    """So it may be a named pipe, which can be read once."""
    csv = ".csv", ["text,label", *TEXTS]
    conll = ".conll", ["cat B-x", "", "saw O", ""]
    ending, rows = {"classifier": csv, "tagger": conll}[program]
    train, dev = (tmp_path / f"{name}{ending}" for name in ("train", "dev"))
    for pipe in (train, dev):
        os.mkfifo(pipe)
        # a daemon: nobody may come
        Thread(target=serve_once, args=(pipe, "\n".join(rows)), daemon=True).start()
    files = f"--train_file={train}", f"--dev_file={dev}"
    parts = "--do_train", "--do_eval", "--seeds=1,2", "--num_train_steps=2"
    flags = [*own.model_flags(data), *files, *parts]
    scores = programs.bert(program, tmp_path / "out", *flags)
    assert 0 <= scores["eval_accuracy"] <= 1


def test_flags_that_change_nothing_are_said(flags, tmp_path, capsys):
    void = "--language=de", "--num_train_epochs=2", "--warmup_proportion=0.5"
    steps = "--num_train_steps=1", "--num_warmup_steps=0"
    classify(tmp_path / "out", *flags, *steps, *void)
    said = re.findall("note: --(.*) changes nothing: (.*)", capsys.readouterr().err)
    named = ["dev_file", "predict_file", "num_train_epochs", "warmup_proportion", "lr_scaling"]
    assert {name for name, _ in said} == {*named, "language"}
    assert dict(said)["predict_file"] == "--do_predict does not ask for it"
    trains = *own.model_flags(tmp_path), "--do_eval", "--dev_file=d", "--early_stopping_patience=1"
    config = parse(
        ClassifierConfig, ["--output_dir=o", "--seed=1", *trains], prog="bert-classifier"
    )
    (note,) = unheeded(config, config.given)
    assert (
        note
        == "note: --seed, --early_stopping_patience change nothing: --do_train does not ask for a"
        " training"
    )


def test_secrets_are_not_written_down_or_printed(data, tmp_path, monkeypatch, capsys):
    """Here the "host" of a URL is a folder."""
    folder = tmp_path / "ada:SECRET@host"
    shutil.copytree(data, folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RINGBERT_COMMAND", "bert-launch -np 2 --mpi-args '-x HF_TOKEN=SECRET'")
    files = "--train_file=file://ada:SECRET@host/train.csv", "--text_column=body"
    columns = "--text_pair_column=more", "--label_column=kind"
    for more in ((), ("--num_train_steps=2", "--resume=never")):
        again = *own.model_flags(data), *files, *columns, *own.LEARN, "--num_train_steps=1", *more
        classify("out", *again)
    assert "SECRET" not in capsys.readouterr().err
    leaks = [path for path in Path("out").rglob("*") if path.is_file()]
    assert len(leaks) > 10
    assert [path for path in leaks if b"SECRET" in path.read_bytes()] == []
    assert "ada:***@host" in Path("out/run.json").read_text()


def test_seeds_start_from_one_model(data, tmp_path, capsys):
    """A folder of another model's run is not mixed with runs of this one, whose data it shares."""
    small = save_model(tmp_path / "small", "features", intermediate_size=64)
    large = save_model(tmp_path / "large", "features", intermediate_size=96)
    flags = [*own.own_files(data), "--do_train", "--num_train_steps=2", "--max_seq_length=32"]
    out = tmp_path / "out"
    classify(out, *flags, f"--model={small}", "--seeds=1")
    again = [*flags, f"--model={large}", "--seeds=1,2"]
    programs.refusal(
        capsys, "bert-classifier", lambda: classify(out, *again), out / "seed-2", "--resume"
    )


@pytest.mark.slow
def test_seeds_give_mean_and_deviation(flags, tmp_path):
    flags = (*flags, "--num_train_steps=10", "--do_eval")
    means = classify(tmp_path / "both", *flags, "--seeds=1,2")
    runs = [scores_in(tmp_path / f"both/seed-{seed}") for seed in (1, 2)]
    result = read_json(tmp_path / "both/result.json")
    assert (result["seeds"], result["scores"]) == ({"1": runs[0], "2": runs[1]}, means)
    written = dict(
        line.split(" = ") for line in (tmp_path / "both/eval_results.txt").read_text().splitlines()
    )
    assert set(written) == set(runs[0]) == set(means)
    for name, mean in means.items():
        one, two = (run[name] for run in runs)
        deviation = abs(one - two) / math.sqrt(2)
        assert written[name] == f"{mean:.4f} ± {deviation:.4f} (2 seeds)"
        assert (mean, result["standard_deviations"][name]) == pytest.approx(
            ((one + two) / 2, deviation)
        )
    assert runs[0] != runs[1] == classify(tmp_path / "alone", *flags, "--seed=2")
    assert weights_in(tmp_path / "alone/model") == weights_in(tmp_path / "both/seed-2/model")


# what a finished run that is started again writes anew
NEW = ("result.json", "predict_result.json", "report.html", "history.json", "model/README.md")


@pytest.mark.slow
def test_the_best_model_is_kept_and_training_stops_also_in_two_parts(data, flags, tmp_path):
    """Trained on wrong labels the dev score falls: the best evaluation is an early one. A run that
    is broken off has its history of evaluations from the checkpoint."""
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    rows = [(e.first, e.second, wrong[e.kind]) for e in TRAIN]
    write_rows(tmp_path / "train.csv", own.COLUMNS, rows, ",")
    out = tmp_path / "out"
    flags = (*flags, f"--train_file={tmp_path}/train.csv", "--num_train_steps=60", "--do_eval")
    flags += ("--eval_steps=4", "--early_stopping_patience=3", "--keep_checkpoints=2")
    flags += ("--log_steps=25",)
    scores = classify(out, *flags)
    measured = {
        line["step"]: line["eval_accuracy"] for line in metrics_in(out) if "eval_accuracy" in line
    }
    best, last = max(measured, key=lambda step: (measured[step], -step)), max(measured)
    assert best + 3 * 4 == last == max(line["step"] for line in metrics_in(out)) < 60
    assert list(measured) == list(range(4, last + 1, 4))
    # of the steps also the last one is logged
    assert last == max(line["step"] for line in metrics_in(out) if "loss" in line)
    kept = {
        int(path.name.removeprefix("rows-")) // 32: path for path in (out / "checkpoints").iterdir()
    }
    assert sorted(kept) == [best, last - 4, last]  # two are kept, and the best
    assert weights_in(out / "model") == weights_in(kept[best]) != weights_in(kept[last])
    assert scores["eval_accuracy"] == measured[best] > measured[last]
    state = read_json(kept[last] / "state.json")
    assert state["evaluations"] == [[32 * step, value] for step, value in measured.items()]

    broken = programs.without_newest_checkpoint(out, tmp_path / "broken")
    assert classify(broken, *flags) == scores
    assert weights_in(broken / "model") == weights_in(out / "model")
    assert read_json(broken / "checkpoints" / kept[last].name / "state.json") == state
    before = files_in(out)
    # Evaluation alone takes the best model: the last one's scores are others. The same command does
    # not train on.
    assert classify(out, *own.model_flags(data), *own.own_files(data), "--do_eval") == scores
    assert read_json(out / "predict_result.json")["scores"] == scores
    classify(out, *flags)
    assert files_in(out, *NEW).items() <= before.items()


@pytest.mark.slow
def test_a_model_with_as_many_words_as_positions_is_resumed_to_the_bit(data, flags, tmp_path):
    """Its positions and its layers have tensors of the shape that all words together would have."""
    config = read_json(data / "bert_config.json")
    size = config["max_position_embeddings"]
    assert config["intermediate_size"] == size
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    flags = (*flags, "--num_train_steps=4", "--save_checkpoints_steps=2")
    flags += (f"--bert_config_file={tmp_path}/config.json",)
    classify(tmp_path / "whole", *flags)
    broken = programs.without_newest_checkpoint(tmp_path / "whole", tmp_path / "broken")
    classify(broken, *flags)
    assert weights_in(broken / "model") == weights_in(tmp_path / "whole" / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "steps"), [("--eval_steps=auto", [12]), ("--load_best_model_at_end", [5, 10, 12])]
)
def test_evaluations_are_as_often_as_asked(flags, tmp_path, asked, steps, capsys):
    """`auto`: once, because more would take too long. Without --eval_steps after each epoch, here
    of 5 steps."""
    classify(tmp_path, *flags, "--max_train_examples=160", "--num_train_steps=12", asked)
    assert [line["step"] for line in metrics_in(tmp_path) if "eval_accuracy" in line] == steps
    assert f"{len(steps)} in all" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("has_pairs", [False, True])
def test_standard_input_is_labelled_as_texts_of_a_file(
    trained, tmp_path, has_pairs, monkeypatch, capsys
):
    """Only predictions are on standard output. A model trained on pairs takes pairs, with a tab;
    length and columns are those of its training."""
    model = shutil.copytree(trained[0] / "model", tmp_path / "model")
    flags = [f"--model={model}", "--do_predict", *["--max_seq_length=32"] * (not has_pairs)]
    lines = [f"{e.first}\t{e.second}" for e in TEST]
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO("\r\n".join([*lines, ""]).encode()))
    )
    if has_pairs:
        rows = [{"body": e.first, "more": e.second} for e in TEST]
    else:
        rows = [{"text": line} for line in lines]
        (model / "task.json").unlink()
    write_lines(tmp_path / "file.jsonl", *map(json.dumps, rows))
    classify(tmp_path / "file", *flags, f"--predict_file={tmp_path}/file.jsonl")
    assert capsys.readouterr().out == ""
    classify(tmp_path / "lines", *flags, "--predict_file=-")
    assert not [*(tmp_path / "lines").glob("*.tsv"), *(tmp_path / "lines").glob("*.jsonl")]
    labels = [row[1] for row in table_in(tmp_path / "file/predictions.tsv")[1:]]
    highest = np.loadtxt(tmp_path / "file/test_results.tsv").max(1)
    printed = [f"{label}\t{value:.4f}" for label, value in zip(labels, highest, strict=True)]
    assert capsys.readouterr().out.splitlines() == printed


def test_documents_of_a_question_are_ranked(data, tmp_path):
    """A reranker: the score of a pair is the share of words that both have."""
    chance, rows = np.random.default_rng(4), []
    for _ in range(60):
        question = chance.choice(ALL_WORDS, 3, replace=False)
        for right in (3, 1, 0, 0):
            others = chance.choice(ALL_WORDS, 3)
            document = [*question[:right], *others[right:]]
            rows.append({"q": " ".join(question), "d": " ".join(document), "n": right // 3})
    for name, part in (("train", rows[:200]), ("dev", rows[200:])):
        write_lines(tmp_path / f"{name}.jsonl", *map(json.dumps, part))
    columns = ("--text_column=q", "--text_pair_column=d", "--label_column=n", "--regression")
    files = (f"--train_file={tmp_path}/train.jsonl", f"--dev_file={tmp_path}/dev.jsonl")
    flags = (*own.model_flags(data), *columns, *files, "--ranking", "--do_eval", *own.LEARN)
    scores = classify(tmp_path / "run", *flags, "--num_train_steps=10")
    config = read_json(tmp_path / "run/model/config.json")
    # what CrossEncoder of sentence-transformers 4 and of 3 read; else it takes the sigmoid
    identity = "torch.nn.modules.linear.Identity"
    assert config["sentence_transformers"]["activation_fn"] == identity
    assert config["sbert_ce_default_activation_function"] == identity
    predict = ("--do_predict", f"--predict_file={tmp_path}/dev.jsonl", *columns, "--ranking")
    classify(tmp_path / "predicted", f"--model={tmp_path}/run/model", *predict)
    lines = objects_in(tmp_path / "predicted/predictions.jsonl")
    assert len(lines) == 40
    groups = {}
    for line in lines:
        groups.setdefault(line["text"], []).append((line["label"], line["prediction"]))
    pairs = [np.array(group).T for group in groups.values()]
    expected = [ndcg_score(true[None] > 0, predicted[None], k=10) for true, predicted in pairs]
    assert scores["eval_ndcg@10"] == pytest.approx(np.mean(expected))
    ranks = [(predicted > predicted[true.argmax()]).sum() for true, predicted in pairs]
    assert scores["eval_mrr@10"] == pytest.approx(np.mean([1 / (1 + rank) for rank in ranks]))
    precisions = [average_precision_score(true > 0, predicted) for true, predicted in pairs]
    assert scores["eval_map@100"] == pytest.approx(np.mean(precisions))

    # page and card begin with the score that chooses the model; a mistake is a query
    assert next(iter(scores)) == "eval_ndcg@10"
    card = (tmp_path / "run/model/README.md").read_text()
    assert card.split("|---|---|\n")[1].startswith("| eval_ndcg@10 |")
    mistakes = objects_in(tmp_path / "run/mistakes.jsonl")
    assert len(mistakes) == sum(rank > 0 for rank in ranks) > 0
    for mistake in mistakes:
        true, predicted = np.array(groups[mistake["text"]]).T
        assert mistake["rank"] == 1 + (predicted > predicted[true.argmax()]).sum()
        assert mistake["nearest_prediction"] == predicted.max() > mistake["prediction"]
    leads = [line["nearest_prediction"] - line["prediction"] for line in mistakes]
    assert leads == sorted(leads, reverse=True)
    page = (tmp_path / "run/report.html").read_text()
    assert f"{len(mistakes)} of {len(groups)}; all of them are in mistakes.jsonl" in page


# -- GLUE's folders --------------------------------------------------------------------------------

LABELS = ("contradiction", "entailment", "neutral")  # the order of run_classifier.py
SETS = (
    ("", "matched", "MNLI-m.tsv", DEV[:30]),
    ("_mismatched", "mismatched", "MNLI-mm.tsv", DEV[30:70]),
)


@pytest.mark.slow
def test_mnli_scores_and_submits_both_sets(data, tmp_path):
    glue, out = tmp_path / "glue", tmp_path / "out"
    columns = ["index", "sentence1", "sentence2"]
    for name, examples in (
        ("train", TRAIN),
        *((f"dev_{kind}", examples) for _, kind, _, examples in SETS),
    ):
        rows = [[n, e.first, e.second, LABELS[KINDS.index(e.kind)]] for n, e in enumerate(examples)]
        write_rows(glue / f"MNLI/{name}.tsv", [*columns, "gold_label"], rows)
    for _, kind, _, examples in SETS:
        rows = [[n + 100, e.first, e.second] for n, e in enumerate(examples)]
        write_rows(glue / f"MNLI/test_{kind}.tsv", columns, rows)
    scores = classify(out, *glue_flags(data, glue, "mnli", 16), "--do_eval", "--do_predict")
    for suffix, _, submission, examples in SETS:
        probabilities = np.loadtxt(out / f"test_results{suffix}.tsv")
        labels = np.array([KINDS.index(e.kind) for e in examples])
        assert scores[f"eval{suffix}_accuracy"] == np.mean(probabilities.argmax(1) == labels)
        loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
        assert scores[f"eval{suffix}_loss"] == pytest.approx(loss, rel=1e-9)
        rows = [[str(n + 100), LABELS[p]] for n, p in enumerate(probabilities.argmax(1))]
        assert table_in(out / submission) == [["index", "prediction"], *rows]
    assert scores["eval_accuracy"] != scores["eval_mismatched_accuracy"]  # the two are told apart


@pytest.mark.slow
def test_sts_b_is_scored_as_scipy_does_and_its_submission_is_clipped(data, tmp_path):
    # beyond 0…5: what is learnt from them is clipped
    number = {"animal": -9.5, "colour": 2.5, "tool": 14.0}
    for name, examples in (("train", TRAIN), ("dev", DEV), ("test", DEV)):
        rows = [[n, e.first, e.second, number[e.kind]] for n, e in enumerate(examples)]
        columns = ["index", "sentence1", "sentence2", "score"]
        write_rows(tmp_path / f"STS-B/{name}.tsv", columns, rows)
    flags = glue_flags(data, tmp_path / "STS-B", "stsb", 40)  # the task's own folder will do, too
    scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
    predicted = np.loadtxt(tmp_path / "out/test_results.tsv")
    labels = np.array([number[e.kind] for e in DEV])
    expected = {
        "pearson": pearsonr(labels, predicted).statistic,
        "spearmanr": spearmanr(labels, predicted).statistic,
        "loss": np.mean(np.square(predicted - labels)),
    }
    for kind in ("eval", "predict"):
        found = {name: scores[f"{kind}_{name}"] for name in expected}
        assert found == pytest.approx(expected, rel=1e-9)
    assert predicted.min() < 0 < 5 < predicted.max()
    submitted = [float(prediction) for _, prediction in table_in(tmp_path / "out/STS-B.tsv")[1:]]
    # three decimals
    np.testing.assert_allclose(submitted, predicted.clip(0, 5), atol=0.0005 + 1e-9)
