"""The card of a model, model/README.md: its header, and the code that loads the model."""

import pytest
import transformers
from transformers.pipelines import PIPELINE_REGISTRY

from bert.heads import EMBEDDINGS, HEADS
from ringbase.files import write_json
from tasks.runs.card import card_of


def card(folder, head, **run):
    """The card of a run with a model of this head."""
    facts = {
        "config": {"model": "google-bert/bert-base-uncased", "seed": 42, "precision": "fp32"},
        "plan": {"steps": 1, "global_batch_size": 32, "learning_rate": 5e-5},
        "environment": {"command": ["/usr/bin/bert-squad"]},
        "start": "initial values",
        "head": head.name,
        "hub_commits": {"model": None, "data_set": None},
    }
    (folder / "model").mkdir()
    write_json(folder / "run.json", facts | run)
    write_json(folder / "result.json", {"scores": {"f1": 88.0}, "seconds": 1.0, "world_size": 1})
    architecture = f"Bert{head.transformers}"
    write_json(folder / "model/config.json", {"architectures": [architecture]})
    return card_of(folder)


def header_of(text):
    lines = text.split("---")[1].splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line and line[0] != "#")


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_the_code_of_a_card_is_what_transformers_has(head, tmp_path):
    text = card(tmp_path, head)
    header = header_of(text)
    assert header["pipeline_tag"] == head.pipeline
    code = [line.strip() for line in text.partition("## Use")[2].splitlines() if line.strip()]
    if head in EMBEDDINGS.values():
        # tests/soak/rivals has sentence-transformers
        assert header["library_name"] == "sentence-transformers"
        assert code[0] == "from sentence_transformers import SentenceTransformer"
        return
    assert header["library_name"] == "transformers"
    names = {}
    exec(code[0], names)  # the import
    if "pipeline" in names:
        called = []
        exec(code[1], {"pipeline": lambda task, model: called.append(task)})
        assert set(called) <= {*PIPELINE_REGISTRY.get_supported_tasks()}
    else:
        (loader,) = [name for name in names if name.startswith("AutoModelFor")]
        assert hasattr(transformers, loader)
        assert len(code) == 3


def test_a_base_model_is_one_of_the_hub(tmp_path):
    """And no path, store or password."""
    (head,) = [each for each in HEADS.values() if each.name == "span"]
    for number, (model, commit, base) in enumerate(
        (
            ("google-bert/bert-base-uncased", "abc", "google-bert/bert-base-uncased"),
            ("uncased/bert_model.ckpt", None, None),
            ("s3://bucket/bert", None, None),
        )
    ):
        config = {"model": model, "seed": 42, "precision": "fp32"}
        (tmp_path / str(number)).mkdir()
        commits = {"model": commit, "data_set": None}
        text = card(tmp_path / str(number), head, config=config, hub_commits=commits)
        assert header_of(text).get("base_model") == base


def test_the_card_of_a_job_from_python_says_what_was_run(tmp_path):
    """As Python wrote it, with a description of data in memory instead of a file in the cache."""
    (head,) = [each for each in HEADS.values() if each.name == "span"]
    path, words = "/cache/0123/rows_in_memory.parquet", "3 rows in memory (columns a; SHA-256 0123)"
    call = f"ringbert.launch(ringbert.Squad(train_file={path!r}), ranks=2)"
    command = ["/venv/tasks/squad/__main__.py", f"--train_file={path}"]
    text = card(
        tmp_path,
        head,
        environment={"command": command, "launched_by": call},
        describes={"data": {"train_file": path}},
        in_memory={path: words},
    )
    assert "trained with bert-squad of RingBERT" in text
    assert f"- data: --train_file {words}" in text
    assert f"- run by: `ringbert.launch(ringbert.Squad(train_file='{words}'), ranks=2)`" in text
    assert "/cache" not in text
