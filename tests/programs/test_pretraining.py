"""bert-pretraining from its flags to its files, on a tiny model and text, from Arrow and TFRecord
shards."""

import contextlib
import functools
import json
import logging
import shutil

import numpy as np
import pytest
from harness import corpora
from harness.program_runs import (
    bert,
    files_in,
    metrics_in,
    refusal,
    weights_in,
    without_newest_checkpoint,
    written_scores,
)
from harness.texts import ALL_WORDS, write_model
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer

from ringbase.files import read_json
from tasks.corpus.__main__ import main as bert_corpus
from tasks.pretraining.settings import PretrainingPlan
from tasks.runs.report.files import read_evaluation

LENGTH, PREDICTIONS, STEPS, BATCH = 32, 5, 24, 16
SIZES = (f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}")
TRAIN = (
    "--do_train",
    "--do_eval",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=3",
    "--learning_rate=1e-2",
    f"--global_batch_size={BATCH}",
    "--save_checkpoints_steps=6",
    "--log_steps=1",
    "--eval_steps=12",
    *SIZES,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a vocabulary, a configuration, and shards: dynamic, static, tf, held."""
    folder, chance = tmp_path_factory.mktemp("corpus"), np.random.default_rng(1)
    write_model(folder, num_layers=1)
    words = ALL_WORDS * 2

    def document():
        # words follow each other, so that they can be guessed
        first = chance.integers(len(words) // 2)
        return "\n".join(
            " ".join(words[first:][: chance.integers(4, 14)]) for _ in range(chance.integers(4, 12))
        )

    for name, num_documents in (("text", 60), ("held", 12)):
        (folder / f"{name}.txt").write_text("\n\n".join(document() for _ in range(num_documents)))
    (folder / "tf").mkdir()
    static = ("--masking=static", "--dupe_factor=2")
    with contextlib.chdir(folder):
        for name, source, *more in (
            ("dynamic", "text"),
            ("held", "held"),
            ("static", "text", *static),
        ):
            files = "--vocab_file=vocab.txt", f"--input_file={source}.txt", f"--output_dir={name}"
            bert_corpus(["build", *files, "--num_shards=2", "--num_workers=1", *SIZES, *more])
        rows = corpora.open_table("static")[0].to_pylist()
        corpora.write_records(
            folder / "tf/a.tfrecord", [corpora.padded(row, LENGTH, PREDICTIONS) for row in rows]
        )
    return folder


def pretrain(corpus, output_dir, shards, *flags):
    files = (
        f"--input_file={corpus}/{shards}",
        f"--eval_input_file={corpus}/held",
        "--do_lower_case",
        f"--bert_config_file={corpus}/bert_config.json",
    )
    return bert("pretraining", output_dir, *files, *flags)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run with masks drawn again in every epoch."""
    folder = tmp_path_factory.mktemp("trained")
    pretrain(corpus, folder, "dynamic/*.arrow", *TRAIN)
    return folder


def losses(folder):
    return np.array([[line["mlm"], line["nsp"]] for line in metrics_in(folder) if "mlm" in line])


def test_a_run_learns_and_leaves_its_files(trained, corpus):
    mlm, _ = losses(trained).T
    assert len(mlm) == STEPS
    assert mlm[-4:].mean() < mlm[:4].mean() - 0.3
    result = read_json(trained / "result.json")
    scores = result["scores"]
    assert set(scores) == {
        "masked_lm_accuracy",
        "masked_lm_loss",
        "next_sentence_accuracy",
        "next_sentence_loss",
    }
    loss = scores["masked_lm_loss"] + scores["next_sentence_loss"]
    assert written_scores(trained) == scores | {"global_step": STEPS, "loss": loss}
    measured = [line for line in metrics_in(trained) if "masked_lm_loss" in line]
    assert [line["step"] for line in measured] == [12, 24]
    # the last step's evaluation is the final one
    assert {name: measured[-1][name] for name in scores} == scores
    filled, mistakes = result["report"]
    words = set((corpus / "held.txt").read_text().split())
    marks = []
    for (text,) in filled["rows"]:
        marks += [(text["text"][start:stop], name) for start, stop, name in text["marks"]]
    assert {word for word, _ in marks} <= words  # the tokens that were masked, not [MASK]
    wrong = [word for word, name in marks if name == "predicted"]
    assert mistakes["note"] == f"{len(wrong)} of the {len(marks)} masked tokens"
    assert len(mistakes["rows"]) == min(len(wrong), 12)
    for before, true, *candidates, probability in mistakes["rows"]:
        filled_in = before["text"].replace("___", true.removeprefix("##"))
        assert any(filled_in in text["text"] for (text,) in filled["rows"])
        assert len({*candidates}) == 3
        assert true != candidates[0]
        assert 0 < probability < 1
    probabilities = [row[-1] for row in mistakes["rows"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert (trained / "model/vocab.txt").read_bytes() == (corpus / "vocab.txt").read_bytes()


def test_evaluation_alone_changes_nothing_that_the_training_wrote(corpus, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    found = pretrain(corpus, folder, "dynamic/*.arrow", "--do_eval", *SIZES)
    for path in (folder / "predict_result.json", trained / "result.json"):
        assert read_json(path)["scores"] == found
    assert files_in(folder, "predict_result.json", "history.json") == files_in(
        trained, "history.json"
    )
    alone = read_evaluation(folder, "as bert-report reads it")
    assert alone.measured == found
    assert alone.config["eval_batch_size"]


def rows_in(shards):
    return read_json(shards / "manifest.json")["counts"]["examples"]


@pytest.mark.slow
def test_stopped_in_mid_epoch_and_continued_gives_the_same_bits(trained, corpus, tmp_path):
    broken = without_newest_checkpoint(trained, tmp_path / "broken")
    assert BATCH * (STEPS - 6) % rows_in(corpus / "dynamic") != 0
    pretrain(corpus, broken, "dynamic/*.arrow", *TRAIN)
    assert weights_in(broken / "model") == weights_in(trained / "model")
    np.testing.assert_array_equal(losses(broken), losses(trained))


@pytest.mark.slow
def test_tfrecord_shards_train_as_the_same_examples_in_arrow_shards(corpus, tmp_path):
    """TFRecord files without a vocabulary, as Google's program reads them; the model then has none
    either."""
    flags = (*TRAIN, "--num_train_steps=6", f"--eval_input_file={corpus}/tf/*", "--eval_steps=null")
    for shards in ("tf/*.tfrecord", "static/*.arrow"):
        pretrain(corpus, tmp_path / shards[:2], shards, *flags)
    np.testing.assert_array_equal(losses(tmp_path / "tf"), losses(tmp_path / "st"))
    assert not (tmp_path / "tf/model/vocab.txt").exists()
    assert (tmp_path / "st/model/vocab.txt").exists()


@pytest.mark.slow
def test_masks_are_drawn_again_in_each_epoch_or_read_from_the_shards(corpus, tmp_path, capsys):
    """At a rate of 0 and without dropout a loss changes only with the masks. A step is an epoch."""
    note = "--masked_lm_prob changes nothing: the shards have masks"
    for shards in ("dynamic", "static"):
        epoch = f"--global_batch_size={rows_in(corpus / shards)}"
        flags = ("--do_train", epoch, "--num_train_epochs=2", "--learning_rate=0", "--log_steps=1")
        pretrain(corpus, tmp_path / shards, shards, *flags, *SIZES, "--masked_lm_prob=0.15")
        assert (note in capsys.readouterr().err) == (shards == "static")
        one, again = losses(tmp_path / shards)
        assert (one == pytest.approx(again, rel=1e-4)) == (shards == "static")


@pytest.mark.slow
def test_a_second_phase_starts_from_the_first_ones_model_and_moments(corpus, trained, tmp_path):
    first = trained / f"checkpoints/rows-{BATCH * STEPS:012d}"
    flags = (
        "--do_train",
        "--num_train_steps=1",
        "--num_warmup_steps=0",
        "--learning_rate=1e-4",
        "--optimizer=lamb",
        "--global_batch_size=8",
        f"--max_seq_length={LENGTH}",
        f"--init_checkpoint={first}",
    )
    second = {}
    for name, more in (("with", ["--init_moments"]), ("without", [])):
        pretrain(corpus, tmp_path / name, "dynamic/*.arrow", *flags, *more)
        written = tmp_path / name / "checkpoints/rows-000000000008"
        second[name] = load_file(written / "optimizer.safetensors")
    settings = read_json(written / "state.json")["settings"]
    assert settings["--max_predictions_per_seq"] == PREDICTIONS
    moments = load_file(first / "optimizer.safetensors")
    assert moments["0000"] == STEPS
    assert second["with"]["0000"] == second["without"]["0000"] == 1  # the schedule is the new run's
    # v = 0.999 v + 0.001 g²: the same gradient in both, so the difference is what came along.
    for name in list(moments)[-3:]:
        came = second["with"][name] - second["without"][name]
        np.testing.assert_allclose(came, 0.999 * moments[name], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "built", "given", "expected"),
    [
        ("bert", [], [], (0.15, 20)),
        ("modernbert", [], [], (0.3, 10)),  # 30 % of 32 tokens
        ("modernbert", ["--masked_lm_prob=0.2"], [], (0.2, 7)),
        ("modernbert", ["--masked_lm_prob=0.2"], ["--masked_lm_prob=0.5"], (0.5, 16)),
    ],
)
def test_masks_are_those_of_flags_of_shards_or_of_the_model(
    corpus, tmp_path, kind, built, given, expected
):
    config = read_json(corpus / "bert_config.json")
    if kind == "modernbert":
        config |= {"model_type": kind, "hidden_activation": "gelu", "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = f"--max_seq_length={LENGTH}", "--num_workers=1", "--nonext_sentence"
    files = f"--vocab_file={corpus}/vocab.txt", f"--input_file={corpus}/text.txt"
    bert_corpus(["build", *files, f"--output_dir={tmp_path}/shards", *sizes, *built])
    flags = [flag for flag in TRAIN if not flag.startswith(("--max_pred", "--do_eval", "--eval_"))]
    model = f"--bert_config_file={tmp_path}/config.json"
    shards = f"--input_file={tmp_path}/shards"
    assert not bert(
        "pretraining", tmp_path / "run", "--do_lower_case", model, shards, *flags, *given
    )
    losses = [line["mlm"] for line in metrics_in(tmp_path / "run") if "mlm" in line]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.2
    (state,) = sorted(tmp_path.glob("run/checkpoints/*/state.json"))[-1:]
    settings = read_json(state)["settings"]
    assert (settings["--masked_lm_prob"], settings["--max_predictions_per_seq"]) == expected


@pytest.mark.parametrize(
    ("shards", "flags", "named"),
    [
        ("dynamic/*.arrow", ["--max_seq_length=16"], ["--max_seq_length", "32"]),
        ("dynamic/*.arrow", ["--vocab_file={tmp}/other.txt"], ["vocabulary"]),
        ("dynamic/*.arrow", ["--eval_input_file=absent/*.arrow"], ["--eval_input_file", "absent/"]),
        ("tf/*.tfrecord", ["--max_predictions_per_seq=4"], ["--max_predictions_per_seq=4"]),
        ("tf/*.tfrecord", [], ["--eval_input_file", "--vocab_file"]),
        (
            "dynamic",
            ["--init_moments", "--init_checkpoint={trained}/model"],
            ["optimizer.safetensors"],
        ),
    ],
)
def test_bad_shards_are_one_line(corpus, trained, tmp_path, capsys, shards, flags, named):
    (tmp_path / "other.txt").write_text(
        (corpus / "vocab.txt").read_text().replace("cat\n", "cats\n")
    )
    given = [flag.format(tmp=tmp_path, trained=trained) for flag in flags]
    call = functools.partial(pretrain, corpus, tmp_path / "out", shards, *TRAIN, *given)
    refusal(capsys, "bert-pretraining", call, *named)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def modern(corpus):
    """A folder with a byte-level vocabulary, shards of it, and a new ModernBERT trained on them."""
    folder = corpus / "modern"
    text = f"--input_file={corpus}/text.txt"
    kind = "--kind=byte_bpe", "--vocab_size=300"
    bert_corpus(["vocab", text, *kind, f"--output_dir={folder}/vocab"])
    words = f"--vocab_file={folder}/vocab/tokenizer.json"
    sizes = f"--max_seq_length={LENGTH}", "--num_workers=1", "--nonext_sentence"
    bert_corpus(["build", text, words, *sizes, f"--output_dir={folder}/shards"])
    new_model(folder, folder / "run", "--model_size=ettin-17m", "--num_train_steps=2")
    return folder


def new_model(folder, output_dir, *flags):
    sizes = f"--max_seq_length={LENGTH}", "--global_batch_size=4"
    shards = f"--input_file={folder}/shards"
    return bert("pretraining", output_dir, shards, "--do_train", *sizes, *flags)


def test_a_new_modernbert_needs_no_json_and_has_the_special_ids_of_its_vocabulary(modern, caplog):
    logging.getLogger("transformers").addHandler(caplog.handler)
    written = AutoConfig.from_pretrained(modern / "run/model")
    assert (written.vocab_size, written.hidden_size, written.num_hidden_layers) == (300, 256, 7)
    words = AutoTokenizer.from_pretrained(modern / "run/model")
    for name in ("pad_token_id", "cls_token_id", "sep_token_id"):
        assert getattr(written, name) == getattr(words, name)
    assert (written.bos_token_id, written.eos_token_id) == (words.cls_token_id, words.sep_token_id)
    assert "token_type_ids" not in words("a")
    assert caplog.messages == []


def test_a_configuration_by_hand_needs_no_ids_of_special_tokens(modern, tmp_path):
    """transformers' ModernBERT has padding as id 50283, which a small vocabulary lacks."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    values = {"model_type": "modernbert", "vocab_size": 300, "intermediate_size": 48} | sizes
    (tmp_path / "config.json").write_text(json.dumps(values))
    model = f"--bert_config_file={tmp_path}/config.json"
    new_model(modern, tmp_path / "run", model, "--num_train_steps=1")
    written = read_json(tmp_path / "run/model/config.json")
    assert (written["pad_token_id"], written["sep_token_id"]) == (0, 3)


def test_a_size_that_cannot_be_is_one_line(modern, corpus, tmp_path, capsys):
    call = functools.partial(new_model, modern)
    refused = functools.partial(refusal, capsys, "bert-pretraining")
    small, large = "--model_size=ettin-17m", "--model_size=ettin-32m"
    steps = "--num_train_steps=4"
    refused(lambda: call(modern / "run", large, steps), "ettin-32m", "hidden_size 256, not 384")
    both = functools.partial(call, tmp_path / "run", small, "--model=x", steps)
    refusal(capsys, "bert-pretraining", both, "--model_size", "--model", status=2)
    records = f"--input_file={corpus}/tf/*.tfrecord"
    refused(lambda: call(tmp_path / "run", small, records, steps), small[2:11], "--vocab_file")
    assert not (tmp_path / "run").exists()


def test_whole_words_that_never_fit_are_one_line(tmp_path, capsys):
    """Each word is two pieces, and one token of a text may be masked."""
    write_model(tmp_path, num_layers=1)
    (tmp_path / "text.txt").write_text("\n\n".join(["zq zr zs\nzt zu zv\nzw zx zy"] * 9))
    files = f"--vocab_file={tmp_path}/vocab.txt", f"--input_file={tmp_path}/text.txt"
    sizes = "--max_seq_length=32", "--max_predictions_per_seq=1"
    output = f"--output_dir={tmp_path}/shards"
    bert_corpus(["build", *files, output, "--num_workers=1", "--num_shards=1", *sizes])
    model = f"--bert_config_file={tmp_path}/bert_config.json"
    flags = (f"--input_file={tmp_path}/shards", model, *sizes, "--global_batch_size=4")
    run = functools.partial(bert, "pretraining", tmp_path / "run", *flags, "--num_train_steps=5")
    whole_words = functools.partial(run, "--do_whole_word_mask")
    refused = functools.partial(refusal, capsys, "bert-pretraining")
    refused(lambda: whole_words("--do_train"), "no row has a target for mlm")
    run("--do_train", "--resume=never")
    refused(lambda: whole_words("--do_eval"), "masked", "--max_predictions_per_seq")


def test_google_trains_100000_steps_by_default():
    plan = PretrainingPlan().resolved()
    assert (plan.num_train_steps, plan.num_warmup_steps, plan.batch_size) == (100_000, 10_000, 32)
    assert PretrainingPlan(num_train_epochs=2).resolved().num_warmup_steps is None


def test_a_short_training_warms_up_for_a_share_unless_the_user_says_how_long():
    """Google's 10,000 steps are a tenth of Google's 100,000."""
    warmups = {
        steps: PretrainingPlan(num_train_steps=steps).resolved().num_warmup_steps
        for steps in (5, 1000, 99_990, 1_000_000)
    }
    assert warmups == {5: 0, 1000: 100, 99_990: 9_999, 1_000_000: 10_000}
    plan = PretrainingPlan(num_train_steps=1000, warmup_proportion=0.02)
    assert plan.resolved().num_warmup_steps == 20
    given = PretrainingPlan(num_train_steps=20_000, num_warmup_steps=10_000)
    assert given.resolved().num_warmup_steps == 10_000


def test_other_settings_are_refused_with_the_ways_to_train_on(corpus, trained, tmp_path, capsys):
    """A finished run made longer: the line's own advice, followed."""

    def longer(folder, *flags):
        pretrain(corpus, folder, "dynamic/*.arrow", *TRAIN, "--num_train_steps=30", *flags)

    first = trained / f"checkpoints/rows-{BATCH * STEPS:012d}"
    refusal(
        capsys,
        "bert-pretraining",
        lambda: longer(trained),
        f"{first} holds a run with --num_train_steps = {STEPS}, this command has 30",
        "--output_dir",
        "this checkpoint as --init_checkpoint",
        "--init_moments",
    )
    more = f"--init_checkpoint={first}", "--init_moments", "--num_warmup_steps=null"
    longer(tmp_path / "longer", *more)
    assert "3 of them warmup" in capsys.readouterr().err
    mlm, _ = losses(tmp_path / "longer").T
    assert len(mlm) == 30
    assert mlm[0] < losses(trained)[0, 0] - 0.3
