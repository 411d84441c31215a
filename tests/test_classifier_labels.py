"""Which labels a classifier has, and in which order."""

from types import SimpleNamespace

import pytest

from ringbert.errors import InputError
from tasks.classifier.labels import decide_labels, stated_labels, with_classifier, with_labels
from tasks.classifier.sets import task_of
from tasks.classifier.settings import TextSettings
from tasks.origin import Origin


def labels_by(bert_config, task: str | None, trains: bool, lines: list[str] | None = None, **settings):
    """The labels of a model with this configuration; what is said goes to `lines`."""
    settings |= {"task_name": task, "data_dir": "d"} if task else {"predict_file": "f"}
    text_settings, run = TextSettings(**settings), SimpleNamespace(say=([] if lines is None else lines).append)
    return decide_labels(text_settings, trains, task_of(text_settings), Origin(bert_config), run)


def bert_config(*labels: str):
    from transformers import BertConfig

    config = BertConfig(hidden_size=8, num_attention_heads=2)
    return with_labels(config, labels) if labels else config


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
def test_named_tasks_have_google_s_order(task, labels):
    assert labels_by(bert_config(), task, trains=False) == labels


def test_a_checkpoints_own_order_wins():
    stated, lines = ("entailment", "neutral", "contradiction"), []
    for trains in (True, False):
        assert labels_by(bert_config(*stated), "mnli", trains, lines) == stated
    message = "labels: the model's own order entailment, neutral, contradiction (id2label)"
    assert [line.startswith(message) for line in lines] == [True, True]


def test_other_labels_start_the_head_anew_or_are_refused():
    lines = []
    assert labels_by(bert_config("bad", "good"), "mrpc", True, lines) == ("0", "1")
    assert lines == ["the model's labels bad, good are not this task's: a new classifier is trained"]
    with pytest.raises(InputError, match=r"the model's labels \(id2label\) are bad, good, the data's 0, 1"):
        labels_by(bert_config("bad", "good"), "mrpc", trains=False)


def test_without_training_the_labels_are_the_models():
    assert labels_by(bert_config("x", "b", "a"), None, trains=False) == ("x", "b", "a")
    with pytest.raises(InputError, match="no id2label, and --do_train is off"):
        labels_by(bert_config(), None, trains=False)
    assert labels_by(bert_config("x", "y"), None, trains=False, regression=True) is None
    names = ("LABEL_0", "LABEL_1", "LABEL_2")  # of a trained classifier
    assert labels_by(bert_config(*names), None, trains=False) == names


def test_stated_labels_are_those_of_config_json(tmp_path):
    from transformers import BertConfig

    assert stated_labels(BertConfig()) is None
    assert stated_labels(BertConfig(num_labels=3)) is None  # LABEL_0, LABEL_1, LABEL_2
    names = tuple(f"label {number}" for number in range(12))  # 10 stands behind 9, though its text does not
    with_labels(BertConfig(), names).save_pretrained(tmp_path)
    again = BertConfig.from_pretrained(tmp_path)
    assert stated_labels(again) == names
    assert again.num_labels == 12
    assert again.label2id["label 10"] == 10


def test_with_labels_keeps_the_rest_of_the_configuration():
    from transformers import BertConfig

    before = BertConfig(hidden_size=12, num_attention_heads=3, vocab_size=77, hidden_act="gelu_new")
    for labels, problem in ((("a", "b", "c"), "single_label_classification"), (None, "regression")):
        after = with_labels(before, labels)
        assert (after.num_labels, after.problem_type) == (1 if labels is None else 3, problem)
        changed = {"id2label", "label2id", "problem_type", "num_labels", "transformers_version"}
        assert {name: value for name, value in after.to_dict().items() if name not in changed} == {
            name: value for name, value in before.to_dict().items() if name not in changed
        }


def test_a_head_of_other_labels_starts_anew(tmp_path):
    bert_config("bad", "good").save_pretrained(tmp_path)
    origin = Origin(bert_config("bad", "good"), weights=tmp_path)
    for labels, fresh in (
        (("bad", "good"), ()),
        (("good", "bad"), ()),
        (("0", "1"), ("output_weights", "output_bias")),
        (None, ("output_weights", "output_bias")),
    ):
        new_origin = with_classifier(origin, labels)
        assert new_origin.fresh_tensors == fresh
        assert stated_labels(new_origin.bert_config) == labels


def test_a_training_file_of_one_label_is_refused(tmp_path):
    """BertConfig would raise a ValueError, which ends in a traceback."""
    path = tmp_path / "train.csv"
    path.write_text("text,label\na,x\nb,x\n")
    with pytest.raises(
        InputError, match=r"^--train_file .*train\.csv: every example has the label 'x', 2 labels or"
    ):
        labels_by(bert_config(), None, trains=True, train_file=str(path))
