"""A run that is started again: what is complete stays as it is, and what is asked for besides is
added; runs of seeds are runs like others. On a tiny classifier."""

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from harness import classifier_runs as own
from harness.classifier_runs import classify, table_in, write_rows
from harness.jobs import run
from harness.program_runs import (
    files_in,
    metrics_in,
    refusal,
    weights_in,
    without_newest_checkpoint,
)
from harness.texts import KINDS
from safetensors.numpy import load_file

from distributed.run import Run
from distributed.world import World
from ringbase import manifest
from ringbase.files import read_json

refused = partial(refusal, prog="bert-classifier")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Of a training on wrong labels: the first dev score is the best one."""
    data = own.write_data(tmp_path_factory.mktemp("data"))
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    rows = [(each.first, each.second, wrong[each.kind]) for each in own.TRAIN]
    write_rows(data / "wrong.csv", own.COLUMNS, rows, ",")
    files = [*own.own_files(data), f"--train_file={data}/wrong.csv"]
    return (*own.model_flags(data), *files, *own.LEARN, "--num_train_steps=24")


@pytest.fixture(scope="module")
def stopped(flags, tmp_path_factory):
    """A run that stopped early and has kept its best model."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    classify(out, *flags, "--do_eval", "--eval_steps=4", "--early_stopping_patience=2")
    return out


@pytest.fixture
def copy(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "out")


def test_other_flags_of_evaluation_leave_a_complete_training_as_it_is(flags, stopped, copy):
    """Neither trained on, nor is its best model replaced by the last, nor are its scores lost."""
    assert max(line["step"] for line in metrics_in(stopped)) < 24
    (copy / "model/notes.txt").write_text("mine")
    before = files_in(copy / "model")
    scores = read_json(copy / "result.json")["scores"]
    classify(copy, *flags)  # nothing besides the training
    assert files_in(copy) == files_in(stopped) | {"model/notes.txt": b"mine"}
    returned = classify(copy, *flags, "--do_predict")
    after = files_in(copy / "model", "README.md")
    assert after.items() <= before.items()
    assert {"README.md"} == before.keys() - after.keys()
    result = read_json(copy / "result.json")
    assert result["scores"] == returned == scores | result["scores"]
    assert metrics_in(copy) == metrics_in(stopped)
    predicted = table_in(copy / "predictions.tsv")
    classify(copy, "--do_predict", *flags, "--do_train=false")
    assert table_in(copy / "predictions.tsv") == predicted
    assert files_in(copy / "model", "README.md") == after


def test_each_file_of_a_folder_is_read_once(flags, copy):
    """Whoever reads a second time may find, or decide, something else."""
    read = []

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str) and arguments[1] in ("r", "rb"):
            path = Path(arguments[0])
            if copy in path.parents and path.suffix in (".json", ".jsonl"):
                read.append(str(path.relative_to(copy)))

    sys.addaudithook(note)
    classify(copy, *flags, "--do_train=false", "--do_predict")
    found = sorted(read)
    copy_of_names = [name for name in found if not name.startswith("checkpoints/")]
    assert copy_of_names == sorted(set(copy_of_names))
    assert {"run.json", "result.json", "history.json", "model/task.json"} <= set(found)


def test_an_edited_card_stays(flags, copy, capsys):
    """Its licence is the user's to write."""
    card = copy / "model/README.md"
    card.write_text(card.read_text().replace("# license: yours", "license: mit # yours"))
    edited = card.read_text()
    classify(copy, *flags, "--do_predict")
    assert card.read_text() == edited
    assert f"{card} was edited" in capsys.readouterr().err


def test_what_an_old_model_has_left_is_set_aside_by_a_new_one(flags, copy, capsys):
    old = files_in(copy)
    classify(copy, *flags, "--resume=never", "--num_train_steps=2")
    assert "eval_results.txt" not in files_in(copy)
    (aside,) = copy.glob("before-*")
    assert f"kept in {aside}" in capsys.readouterr().err
    assert files_in(aside) == old
    assert [entry["step"] for entry in read_json(copy / "history.json")] == [0]


def test_scores_of_another_dev_set_do_not_choose_the_best_model(flags, copy, tmp_path, capsys):
    """They would compare what cannot be compared: the old set's are all higher here."""
    checkpoints = sorted((copy / "checkpoints").iterdir())
    for path in (checkpoints[-1], copy / "model"):
        shutil.rmtree(path)
    (copy / "result.json").unlink()
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    rows = [(each.first, each.second, wrong[each.kind]) for each in own.DEV]
    write_rows(tmp_path / "other.tsv", own.COLUMNS, rows)
    other = f"--dev_file={tmp_path}/other.tsv"
    classify(copy, *flags, other, "--do_eval", "--eval_steps=4", "--load_best_model_at_end")
    assert "the dev set or the metric is not that of before" in capsys.readouterr().err
    resumed_at = int(checkpoints[-2].name.removeprefix("rows-")) // 32
    again = [line for line in metrics_in(copy) if "eval_accuracy" in line]
    of_new = {line["step"]: line["eval_accuracy"] for line in again if line["step"] >= resumed_at}
    best = max(of_new, key=lambda step: (of_new[step], -step))
    assert read_json(copy / "result.json")["steps"] == best
    state = read_json(sorted((copy / "checkpoints").iterdir())[-1] / "state.json")
    assert {position // 32 for position, _ in state["evaluations"]} <= of_new.keys()


def test_thresholds_stay_with_a_complete_model(flags, tmp_path):
    rows = [(each.first, each.second, each.kind) for each in own.TRAIN[:96]]
    write_rows(tmp_path / "rows.csv", own.COLUMNS, rows, ",")
    names = ("train", "dev", "predict")
    files = [f"--{name}_file={tmp_path}/rows.csv" for name in names]
    flags = (*flags, *files, "--multi_label", "--num_train_steps=6", "--save_checkpoints_steps=4")
    out = tmp_path / "out"
    classify(out, *flags, "--do_eval")
    saved = read_json(out / "model/task.json")
    assert saved["thresholds"].keys() == set(KINDS)
    classify(out, *flags, "--do_predict")
    assert read_json(out / "model/task.json") == saved
    write_rows(tmp_path / "other.csv", own.COLUMNS, rows[:20], ",")
    classify(out, *flags, f"--dev_file={tmp_path}/other.csv", "--do_eval")
    assert read_json(out / "model/task.json") == saved


@pytest.fixture(scope="module")
def seeds(flags, tmp_path_factory):
    out = tmp_path_factory.mktemp("seeds") / "out"
    classify(out, *flags, "--num_train_steps=2", "--seeds=1,2", "--do_eval")
    return out


def test_a_single_run_and_runs_of_seeds_share_no_folder(flags, stopped, seeds, capsys):
    before = files_in(stopped), files_in(seeds)
    many = partial(classify, stopped, *flags, "--seeds=1,2")
    assert "run.json" in refused(capsys=capsys, call=many)
    assert "seed-1, seed-2" in refused(capsys=capsys, call=partial(classify, seeds, *flags))
    assert (files_in(stopped), files_in(seeds)) == before
    assert not [*stopped.glob("seed-*")]


def test_predictions_of_seeds_leave_their_scores(flags, seeds, tmp_path):
    scores = (seeds / "eval_results.txt").read_text()
    unlabelled = own.write_data(tmp_path / "data") / "test.jsonl"
    only_predicts = [flag for flag in flags if flag != "--do_train"]
    files = f"--predict_file={unlabelled}", "--seeds=1,2", "--do_predict"
    classify(seeds, *only_predicts, *files)
    assert (seeds / "eval_results.txt").read_text() == scores
    assert (seeds / "seed-2/predictions.tsv").is_file()


def test_a_seeds_folder_is_locked_while_it_is_trained(flags, tmp_path, capsys):
    """Another job would mix its run with it."""
    out = tmp_path / "out"
    of_seed = Run(out / "seed-2", World())
    of_seed.lock()
    call = partial(classify, out, *flags, "--num_train_steps=2", "--seeds=1,2")
    line = refused(capsys=capsys, call=call)
    assert f"{out}/seed-2 belongs to a run that has not ended" in line
    of_seed.close()
    assert not (out / "seed-1").exists()  # nothing was begun


def test_a_seeds_folder_is_uploaded_with_the_whole(tmp_path):
    uploaded = []
    folder = tmp_path / "run"
    run = Run(folder, World(), lambda whole: uploaded.append((whole, files_in(whole))))
    part = run.part("seed-1")
    part.write("result.json", "{}")
    part.publish()
    assert uploaded == [(folder, {"seed-1/result.json": b"{}"})]


RECIPE = (
    "--lr_scheduler_type=wsd",
    "--num_decay_steps=4",
    "--min_lr_ratio=0.1",
    "--weight_decay=0.1",
    "--adam_beta2=0.98",
    "--adam_bias_correction",
    "--max_grad_norm=0.5",
    "--layer_lr_decay=0.8",
    "--head_learning_rate=2e-3",
    "--freeze=embeddings",
    "--hidden_dropout_prob=0.2",
    "--attention_probs_dropout_prob=0",
    "--classifier_dropout=0.3",
    "--label_smoothing_factor=0.1",
)


def test_a_recipe_is_said_resumed_to_the_bit_and_refused_when_it_changes(flags, tmp_path, capsys):
    trains = *flags, "--num_train_steps=12", "--save_checkpoints_steps=6", *RECIPE
    classify(tmp_path / "whole", *trains)
    said = capsys.readouterr().err
    assert "recipe: --decay_proportion" not in said
    for flag in ("--lr_scheduler_type wsd", "--num_decay_steps 4", "--adam_bias_correction True"):
        assert flag in said.partition("recipe: ")[2].splitlines()[0]
    lines = [line for line in metrics_in(tmp_path / "whole") if "learning_rate" in line]
    rates = {line["step"]: line["learning_rate"] for line in lines}
    assert rates[12] < rates[10] < rates[5]
    without_newest_checkpoint(tmp_path / "whole", tmp_path / "broken")
    classify(tmp_path / "broken", *trains)
    assert weights_in(tmp_path / "broken/model") == weights_in(tmp_path / "whole/model")
    config = read_json(tmp_path / "whole/model/config.json")
    dropouts = "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"
    assert [config[name] for name in dropouts] == [0.2, 0, 0.3]
    for changed in (
        "--weight_decay=0.01",
        "--lr_scheduler_type=linear",
        "--max_grad_norm=1",
        "--layer_lr_decay=0.9",
        "--freeze=1",
        "--hidden_dropout_prob=0.1",
        "--label_smoothing_factor=0",
        "--reinit_layers=1",
    ):
        call = partial(classify, tmp_path / "broken", *trains, changed)
        name = changed.partition("=")[0]
        assert name in refused(capsys=capsys, call=call)


def test_a_gradient_that_is_not_clipped_moves_further(flags, tmp_path):
    """LAMB and Adam without weight decay hardly see the size of a gradient; its moments do."""
    norms = []
    for limit in (0, 1e-4):
        out = tmp_path / str(limit)
        classify(
            out, *flags, "--num_train_steps=2", "--num_warmup_steps=0", f"--max_grad_norm={limit}"
        )
        moments = load_file(next((out / "checkpoints").glob("rows-*")) / "optimizer.safetensors")
        norms.append(sum(float(abs(value).sum()) for value in moments.values() if value.size > 1))
    assert norms[0] > 100 * norms[1]


def test_a_training_of_an_earlier_version_goes_on(flags, tmp_path):
    """Whose settings lack the flags that came later, which all have their defaults."""
    trains = *flags, "--num_train_steps=4", "--save_checkpoints_steps=2"
    classify(tmp_path / "whole", *trains)
    without_newest_checkpoint(tmp_path / "whole", tmp_path / "broken")
    (state_file,) = (tmp_path / "broken/checkpoints").glob("*/state.json")
    state = read_json(state_file)
    for name in ("--weight_decay", "--lr_scheduler_type", "--freeze", "--label_smoothing_factor"):
        assert name in state["settings"]
        del state["settings"][name]
    state_file.write_text(json.dumps(state))
    (state_file.parent / manifest.NAME).unlink()
    manifest.seal(state_file.parent, state["position"])
    classify(tmp_path / "broken", *trains)
    assert weights_in(tmp_path / "broken/model") == weights_in(tmp_path / "whole/model")


def tensors_in(folder):
    return load_file(folder / "model/model.safetensors")


@pytest.fixture(scope="module")
def pretrained(flags, tmp_path_factory):
    """A model to start from, of two layers."""
    folder = tmp_path_factory.mktemp("pretrained")
    (config,) = (flag for flag in flags if flag.startswith("--bert_config_file="))
    values = read_json(Path(config.partition("=")[2])) | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(values))
    own = [flag for flag in flags if flag != config]
    own += [f"--bert_config_file={folder}/config.json", "--num_train_steps=2", "--seed=5"]
    classify(folder / "out", *own)
    return folder / "out", (*own, f"--init_checkpoint={folder}/out/model")


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [("embeddings", ("embeddings",)), ("1", ("embeddings", "layer.0")), ("encoder", ("bert.e",))],
)
def test_what_is_frozen_keeps_its_bits_and_has_no_moments(pretrained, tmp_path, freeze, frozen):
    folder, own = pretrained
    out = tmp_path / "out"
    classify(out, *own, "--num_train_steps=3", f"--freeze={freeze}")
    before, after = tensors_in(folder), tensors_in(out)
    trained = {name for name in before if not any(part in name for part in frozen)}
    assert trained == {name for name in before if (before[name] != after[name]).any()}
    moments = load_file(next((out / "checkpoints").glob("rows-*")) / "optimizer.safetensors")
    assert sum(value.ndim > 0 for value in moments.values()) == 2 * len(trained)


def test_top_layers_get_initial_values(pretrained, tmp_path):
    folder, own = pretrained
    out = tmp_path / "out"
    more = "--num_train_steps=2", "--learning_rate=0", "--reinit_layers=1"
    classify(out, *own, *more)
    before, after = tensors_in(folder), tensors_in(out)
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert all(re.search(r"layer\.1\.|pooler", name) for name in changed)
    assert sum("layer.1." in name for name in changed) == 16
    kernel = after["bert.encoder.layer.1.output.dense.weight"]
    assert abs(kernel).max() <= 2.01 * 0.12 < 3 * kernel.std()  # cut at two deviations


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("--freeze=3", "--freeze 3: the model has 2 layers"),
        ("--reinit_layers=3", "--reinit_layers 3: the model has 2 layers"),
        ("--freeze=2 --reinit_layers=1", "--freeze 2 would keep initial values"),
    ],
)
def test_parts_that_a_model_has_not(pretrained, tmp_path, capsys, wrong, named):
    call = partial(classify, tmp_path / "out", *pretrained[1], *wrong.split())
    assert named in refused(capsys=capsys, call=call)


STABLE = (
    "--lr_scheduler_type=wsd",
    "--num_warmup_steps=2",
    "--save_checkpoints_steps=3",
    "--keep_checkpoints=1",
)


@pytest.mark.slow
def test_a_stable_rate_goes_on_or_falls_from_its_checkpoint(flags, tmp_path, capsys):
    """As one training of that length has it, to the bit; what has fallen does not go on."""
    stable, out = (*flags, *STABLE), tmp_path / "out"
    classify(out, *stable, "--num_train_steps=10", "--num_decay_steps=3")
    kept = sorted(path.name for path in (out / "checkpoints").glob("rows-*"))
    assert [int(name.partition("-")[2]) // 32 for name in kept] == [7, 10]
    before_decay = out / "checkpoints" / kept[0]
    for number, length in enumerate(
        (
            ["--num_train_steps=14", "--num_decay_steps=4"],
            ["--num_train_steps=9", "--num_decay_steps=2", "--lr_decay_type=cosine"],
            ["--num_train_steps=9", "--lr_scheduler_type=constant"],
        )
    ):
        ends = []
        for name, more in (("whole", []), ("part", [f"--resume={before_decay}"])):
            own = tmp_path / f"{name}-{number}"
            capsys.readouterr()
            classify(own, *stable, *length, *more)
            ends.append(weights_in(own / "model"))
        assert ends[0] == ends[1], length
        assert "the steps so far had the same rates" in capsys.readouterr().err
    call = partial(classify, tmp_path / "late", *stable, "--num_train_steps=14")
    late = f"--resume={out / 'checkpoints' / kept[1]}"
    message = refused(capsys=capsys, call=partial(call, late, "--num_decay_steps=3"))
    assert "--num_train_steps = 10, this command has 14" in message


@pytest.mark.slow
def test_a_constant_rate_goes_on_after_its_end(flags, tmp_path):
    own = *flags, "--lr_scheduler_type=constant", "--num_warmup_steps=2"
    classify(tmp_path / "short", *own, "--num_train_steps=4")
    classify(tmp_path / "whole", *own, "--num_train_steps=7")
    more = "--num_train_steps=7", f"--resume={tmp_path / 'short'}"
    classify(tmp_path / "longer", *own, *more)
    assert weights_in(tmp_path / "longer/model") == weights_in(tmp_path / "whole/model")


# Starts one after the other, each in a process of its own, with one import of TensorFlow.
# Arguments: the run's folder, and for each start SLURM_RESTART_COUNT, or "-" for one outside of
# Slurm.
EARLY = """
import gc, os, sys
from harness import lean
from ringbase.errors import Stopped
from ringbase.settings import made
from tasks.bench.settings import LoadSettings
from tasks.runs.execute.job import run_on_ranks

def work(config, job):
    raise Stopped("while it read the data")

def start(count):
    if count != "-":
        os.environ |= {"SLURM_RESTART_COUNT": count, "RINGBERT_JOB_ID": "slurm-17"}
    run_on_ranks("prog", made(LoadSettings, {}), sys.argv[1], work)

gc.freeze()  # so that the processes do not take TensorFlow down at their end
for count in sys.argv[2:]:
    if os.fork() == 0:
        start(count)
        sys.exit()
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
    print(f"end of {count}", file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_job_that_is_requeued_without_a_step_ends(tmp_path):
    """After two starts in a row that were stopped before they trained; a preemption now and then
    is none of these, nor is the user's own Ctrl-C."""
    done = run([sys.executable, "-c", EARLY, tmp_path, "0", "3", "4", "6", "-"])
    assert done.status == 0, done
    assert done.stdout.split() == ["75", "75", "1", "75", "75"], done
    assert done.stderr.count("two starts of this job in a row") == 1, done
    of_4 = done.stderr.partition("end of 3")[2].partition("end of 4")[0]
    assert "two starts of this job in a row" in of_4, done
