"""bert-bench start: the phases that the programs record, the made-up inputs, the figures."""

import json
from pathlib import Path

import pytest
from program_runs import command, shell
from squad_files import read_file

from bert.text import tokenizer
from distributed import phases
from ringbert.errors import InputError
from tasks.bench import program as bench
from tasks.bench import start_inputs
from tasks.bench.load import VOCABULARY
from tasks.bench.start import CACHES, StartConfig, seconds_of_phases, start_once, table
from tasks.bench.start_inputs import InputSettings

SMALL = InputSettings(model_size="tiny", num_examples=24, seq_length=32)


class Unread:
    """Stands for a tensor on a GPU; counts how often it is waited for."""

    reads = 0

    def __getitem__(self, index: slice) -> "Unread":
        return self

    def numpy(self) -> None:
        self.reads += 1


def test_phases_are_recorded_only_on_request(tmp_path, monkeypatch):
    result, path = Unread(), tmp_path / "phases.jsonl"
    monkeypatch.delenv(phases.VARIABLE, raising=False)
    phases.ended("first_step", result)
    assert (result.reads, list(tmp_path.iterdir())) == (0, [])
    monkeypatch.setenv(phases.VARIABLE, str(path))
    phases.ended("model")
    phases.ended("first_step", result)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["phase"], second["phase"], result.reads) == ("model", "first_step", 1)
    assert first["time"] <= second["time"]


def record_of(*ends_of_ranks: list[float]) -> str:
    lines = [
        {"phase": phase, "time": end, "process": rank}
        for rank, ends in enumerate(ends_of_ranks)
        for phase, end in zip(phases.PHASES, ends, strict=True)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def test_a_phase_ends_on_its_slowest_rank():
    seconds = seconds_of_phases(100.0, record_of([101, 104, 105, 106, 107, 108, 111, 112],
                                                 [102, 103, 105, 106, 109, 110, 111, 113]), 2)  # fmt: skip
    assert seconds == {
        "launch_s": 2, "imports_s": 2, "ranks_s": 1, "backend_s": 1, "data_s": 3, "model_s": 1, "first_step_s": 1,
        "second_step_s": 2, "to_first_step_s": 11, "to_second_step_s": 13,
    }  # fmt: skip
    with pytest.raises(AssertionError):
        seconds_of_phases(100.0, record_of([101, 104, 105, 106, 107, 108, 111, 112]), 2)


def test_the_table():
    seconds = seconds_of_phases(0.0, record_of([1, 2, 3, 4, 5, 6, 10.25, 12]), 1)
    lines = table({"1": {"cold": seconds, "warm": seconds}, "2": {"cold": seconds, "warm": seconds}})
    assert lines[0].split() == ["1", "rank", "2", "ranks"]
    assert lines[1].split() == ["cold", "warm"] * 2
    assert [line[:20].strip() for line in lines[2:]] == [
        "launch", "imports", "ranks", "backend", "data", "model", "first step", "to first step", "second step",
        "to second step",
    ]  # fmt: skip
    assert lines[8] == f"{'first step':20s}" + "     4.25" * 4
    assert len({len(line) for line in lines}) == 1


# -- inputs -------------------------------------------------------------------------------------------------------


def flags_for(program: str, folder: Path, settings: InputSettings = SMALL) -> dict[str, str]:
    flags = start_inputs.write_inputs(settings, program, folder)
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags)


def test_made_up_questions_have_answers_of_known_words(tmp_path):
    flags = flags_for("squad", tmp_path)
    examples = read_file(Path(flags["train_file"]))
    assert (len(examples.questions), len(examples.paragraphs), list(examples.misplaced)) == (24, 5, [])
    words = tokenizer.load(flags["vocab_file"], None)
    assert words.vocab_size == VOCABULARY == json.loads(Path(flags["bert_config_file"]).read_text())["vocab_size"]
    assert all(words.unk_id not in ids for ids in words.encode_ids(examples.paragraphs))
    assert (flags["max_seq_length"], flags["max_query_length"]) == ("32", "28")


def test_made_up_texts_have_two_labels(tmp_path):
    lines = Path(flags_for("classifier", tmp_path)["train_file"]).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["text"] for row in rows}) == 24
    assert {row["label"] for row in rows} == {"no", "yes"}


def test_a_corpus_is_built_for_pretraining(tmp_path):
    flags = flags_for("pretraining", tmp_path)
    assert Path(flags["input_file"]).name == "*.arrow"
    manifest = json.loads((tmp_path / "shards/manifest.json").read_text())
    assert manifest["counts"]["sentences"] == 24
    assert manifest["settings"]["max_seq_length"] == 32
    assert manifest["counts"]["unknown_share"] == 0


def test_own_model_and_files_take_the_place_of_made_up_ones(tmp_path):
    own = InputSettings(model="m", train_file="t", data_dir="d", task_name="mrpc")
    squad = {"model": "m", "max_seq_length": "384", "train_file": "t", "max_query_length": "64"}
    assert flags_for("squad", tmp_path, own) == squad
    classifier = {"model": "m", "max_seq_length": "128", "data_dir": "d", "task_name": "mrpc"}
    assert flags_for("classifier", tmp_path, own) == classifier
    assert list(tmp_path.iterdir()) == []
    message = "the corpus for bert-pretraining cannot be built: bert-corpus build: error: "
    with pytest.raises(InputError, match=message):
        start_inputs.write_inputs(InputSettings(model=str(tmp_path / "none")), "pretraining", tmp_path)


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--programs=squad,glue",
            "--programs must be different names out of squad, classifier, pretraining, separated by commas, got "
            "'squad,glue'",
        ),
        ("--programs=squad,squad", "--programs must be different names"),
        ("--ranks=0,1", "--ranks must be different numbers from 1 to 4,096, separated by commas, got '0,1'"),
        ("--ranks=2,2", "--ranks must be different numbers"),
        ("--ranks=", "--ranks must be different numbers"),
        ("--ranks=1,two", "--ranks must be different numbers"),
        ("--train_file=t", "--train_file needs --model, which has a vocabulary for its texts"),
        ("--data_dir=d", "--data_dir needs --model"),
        ("--task_name=mrpc", "--data_dir and --task_name need each other: give both"),
        ("--seq_length=7", "--seq_length must be at least 8, got 7"),
        ("--batch_size=0", "--batch_size must be at least 1, got 0"),
        ("--num_examples=19", "--num_examples must be at least 20, got 19"),
    ],
)
def test_bad_flags_are_one_line(flag, message, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(["start", flag])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"bert-bench start: error: {message}")
    assert printed.count("\n") == 1


def test_files_need_their_program():
    with pytest.raises(ValueError, match="--train_file is for squad, which is missing in --programs pretraining"):
        StartConfig(model="m", train_file="t", programs="pretraining")


def test_a_program_that_fails_shows_its_error(tmp_path):
    message = "the cold start of bert-squad on 1 rank failed: bert-squad: error: unknown flag --do_trian; did you"
    with pytest.raises(InputError, match=message):
        start_once("squad", ["--do_trian"], 1, tmp_path, "cold")


# -- everything ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_starts_on_one_and_two_ranks(tmp_path):
    flags = (
        "--programs=classifier",
        "--model_size=tiny",
        "--num_examples=64",
        "--seq_length=32",
        "--batch_size=2",
    )
    printed = shell(command("tasks.bench", "start", *flags, "--repeat=1", f"--output_file={tmp_path}/figures"))
    figures = json.loads((tmp_path / "figures").read_text())["classifier"]
    assert list(figures) == ["1", "2"]
    for line in table(figures):
        assert line in printed
    for of_caches in figures.values():
        assert list(of_caches) == list(CACHES)
        for seconds in of_caches.values():
            of_phases = [seconds[f"{phase}_s"] for phase in phases.PHASES]
            assert min(of_phases) > 0  # so each phase ended after the one before
            assert seconds["to_second_step_s"] == pytest.approx(sum(of_phases))
            assert seconds["to_first_step_s"] == pytest.approx(sum(of_phases[:-1]))
        assert of_caches["warm"]["data_s"] < of_caches["cold"]["data_s"] + 60
