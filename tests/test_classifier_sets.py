"""Which labels a classifier has, and in which order."""

from types import SimpleNamespace

import pytest

from ringbert.errors import InputError
from tasks.classifier import program as classifier
from tasks.classifier import sets as classifier_sets


def labels_by(bert_config, task: str | None, config: dict, said: list[str] | None = None):
    values = {"output_dir": "x"} | ({"task_name": task, "data_dir": "d"} if task else {})
    made = classifier.Config(**values, **config)
    say = [].append if said is None else said.append
    return classifier_sets.decide_labels(
        made, classifier_sets.task_of(made), bert_config, SimpleNamespace(say=say)
    )


def bert_config(*labels: str):
    from transformers import BertConfig

    config = BertConfig(hidden_size=8, num_attention_heads=2)
    return classifier_sets.with_labels(config, labels) if labels else config


@pytest.mark.parametrize(
    ("task", "labels"),
    [  # get_labels() of run_classifier.py's processors
        ("mnli", ("contradiction", "entailment", "neutral")),
        ("xnli", ("contradiction", "entailment", "neutral")),
        ("cola", ("0", "1")),
        ("mrpc", ("0", "1")),
        ("sts-b", None),
    ],
)
def test_named_tasks_have_googles_order(task, labels):
    assert labels_by(bert_config(), task, {"do_eval": True}) == labels


def test_a_checkpoints_own_order_wins():
    stated, said = ("entailment", "neutral", "contradiction"), []
    for flag in ("do_train", "do_eval"):
        assert labels_by(bert_config(*stated), "mnli", {flag: True}, said) == stated
    told = "labels: the model's own order entailment, neutral, contradiction (id2label)"
    assert [line.startswith(told) for line in said] == [True, True]


def test_other_labels_start_the_head_anew_or_are_refused():
    said = []
    assert labels_by(bert_config("bad", "good"), "mrpc", {"do_train": True}, said) == ("0", "1")
    assert said == ["the model's labels bad, good are not this task's: its classifier starts anew"]
    with pytest.raises(InputError, match=r"the model's labels \(id2label\) are bad, good, the data's 0, 1"):
        labels_by(bert_config("bad", "good"), "mrpc", {"do_predict": True})


def test_without_training_the_labels_are_the_models():
    own = {"do_predict": True, "predict_file": "f"}
    assert labels_by(bert_config("x", "b", "a"), None, own) == ("x", "b", "a")
    with pytest.raises(InputError, match="no id2label, and --do_train is off"):
        labels_by(bert_config(), None, own)
    assert labels_by(bert_config("x", "y"), None, own | {"regression": True}) is None
    own_names = (
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    )  # of a trained classifier
    assert labels_by(bert_config(*own_names), None, own) == own_names


def test_stated_labels_are_those_of_config_json(tmp_path):
    from transformers import BertConfig

    assert classifier_sets.stated_labels(BertConfig()) is None
    assert classifier_sets.stated_labels(BertConfig(num_labels=3)) is None  # LABEL_0, LABEL_1, LABEL_2
    names = tuple(f"label {number}" for number in range(12))  # 10 stands behind 9, though its text does not
    classifier_sets.with_labels(BertConfig(), names).save_pretrained(tmp_path)
    again = BertConfig.from_pretrained(tmp_path)
    assert classifier_sets.stated_labels(again) == names
    assert again.num_labels == 12
    assert again.label2id["label 10"] == 10


def test_with_labels_keeps_the_rest_of_the_configuration():
    from transformers import BertConfig

    before = BertConfig(hidden_size=12, num_attention_heads=3, vocab_size=77, hidden_act="gelu_new")
    for labels, problem in ((("a", "b", "c"), "single_label_classification"), (None, "regression")):
        after = classifier_sets.with_labels(before, labels)
        assert (after.num_labels, after.problem_type) == (1 if labels is None else 3, problem)
        changed = {"id2label", "label2id", "problem_type", "num_labels", "transformers_version"}
        assert {name: value for name, value in after.to_dict().items() if name not in changed} == {
            name: value for name, value in before.to_dict().items() if name not in changed
        }
