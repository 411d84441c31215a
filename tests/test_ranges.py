"""Settings that no training can have: refused with the flag before they fill the memory or the time."""

import json
from pathlib import Path

import numpy as np
import pytest
from fuzz.flag_files import REQUIRED, programs
from fuzz.model_files import CONFIG

from ringbert.errors import InputError
from ringbert.settings import MOST_SEED
from tasks import flags


def refusal(capsys: pytest.CaptureFixture[str], prog: str, *argv: str) -> str:
    """The message of the one error line."""
    with pytest.raises(SystemExit) as stop:
        flags.parse(programs()[prog], [*REQUIRED[prog].split(), *argv], prog=prog, description="")
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith(f"{prog}: error: ")
    return printed.removeprefix(f"{prog}: error: ").strip()


@pytest.mark.parametrize(
    ("prog", "flag", "message"),
    [
        ("bert-squad", "--learning_rate=1e308", "must be at most 10, got "),
        ("bert-squad", "--learning_rate=inf", 'must be a number, got "inf"'),
        ("bert-squad", "--warmup_proportion=1.5", "must be at most 1, got 1.5"),
        ("bert-squad", "--num_train_epochs=1e308", "must be at most 1,000,000,000, got "),
        ("bert-squad", "--num_train_steps=1000000000000", "must be at most 1,000,000,000, got 1,000,000,000,000"),
        ("bert-squad", "--train_batch_size=1000000000", "must be at most 1,048,576, got 1,000,000,000"),
        ("bert-squad", "--predict_batch_size=1000000000", "must be at most 1,048,576, got 1,000,000,000"),
        ("bert-squad", "--seed=4294967296", "must be at most 4,294,967,295, got 4,294,967,296"),
        (
            "bert-squad",
            "--seed=18446744073709551616",
            "must be an integer of at most 64 bits, got 18446744073709551616",
        ),
        ("bert-squad", f"--seed={'9' * 5000}", f'must be an integer, got "{"9" * 79}…'),
        ("bert-squad", "--max_seq_length=100000000", "must be at most 65,536, got 100,000,000"),
        ("bert-squad", "--n_best_size=1000000", "must be at most 1,000, got 1,000,000"),
        ("bert-squad", "--train_file=a\udcffb", r'must be UTF-8 text without NUL characters, got "a\udcffb"'),
        ("bert-classifier", "--eval_batch_size=-1", "must be at least 1, got -1"),
        (
            "bert-classifier",
            "--seeds=1,99999999999",
            "must be different numbers separated by commas, got 1,99999999999",
        ),
        ("bert-classifier", "--seeds=1,9999999999", "must be at most 4,294,967,295 each, got 1,9999999999"),
        ("bert-pretraining", "--save_checkpoints_minutes=1e300", "must be at most 1,000,000,000, got "),
        ("bert-corpus build", "--num_workers=1000000", "must be at most 1,024, got 1,000,000"),
        ("bert-corpus build", "--dupe_factor=1000000", "must be at most 10,000, got 1,000,000"),
        ("bert-corpus build", "--num_shards=1000000000", "must be at most 100,000, got 1,000,000,000"),
        ("bert-corpus build", "--random_seed=-1", "must be at least 0, got -1"),
        ("bert-corpus vocab", "--vocab_size=-5", "must be at least 6, got -5"),
        ("bert-corpus vocab", "--vocab_size=10000000000", "must be at most 16,777,216, got 10,000,000,000"),
        ("bert-features", f"--layers={'9' * 5000}", "must be integers separated by commas, got 9"),
        ("bert-bench step", "--batch_size=10000000", "must be at most 1,048,576, got 10,000,000"),
    ],
)
def test_out_of_range(capsys: pytest.CaptureFixture[str], prog: str, flag: str, message: str) -> None:
    name = flag.split("=")[0]
    assert refusal(capsys, prog, flag).startswith(f"{name} {message}")


def test_a_long_unknown_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """absl's search for similar names would end in a RecursionError."""
    assert refusal(capsys, "bert-squad", f"--{'a' * 5000}=1").startswith(f"unknown flag --{'a' * 80}; ")
    assert len(refusal(capsys, "bert-squad", "b" * 5000)) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a = " + b"[" * 5000, "not a TOML file: "),
        (b"seed = " + b"9" * 5000, "not a TOML file: "),
        (b"seed = 99999999999999999999", "seed must be an integer of at most 64 bits, got 99999999999999999999"),
        (b'train_file = "a\\u0000b"', r'train_file must be UTF-8 text without NUL characters, got "a\u0000b"'),
        (b"\xff", "line 1 is not UTF-8"),
        (b"x" * 5000 + b" = 1", f"unknown key {'x' * 80}; --help lists all flags"),
        (b"learning_rate = nan", "learning_rate must be a number, got NaN"),
        (b"seed = 1979-05-27", 'seed must be an integer, got "1979-05-27"'),
        (b"seed = [[1], {a = 2}]", "seed must be an integer, got "),
    ],
)
def test_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(text)
    printed = refusal(capsys, "bert-squad", f"--config={path}")
    assert printed.startswith(f"--config {path}: {message}")
    assert len(printed) < 400 + len(str(path))


def test_a_toml_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "bert-squad", f"--config={tmp_path}") == f"--config {tmp_path}: Is a directory"
    expected = "--config /dev/zero: a device, expected a file"
    assert refusal(capsys, "bert-squad", "--config=/dev/zero") == expected


def test_the_largest_seed_works(tmp_path: Path) -> None:
    from bert.configuration import config_from_file
    from bert.model import Bert
    from distributed.gradient import dropout_key
    from distributed.order import BlockOrder, Order

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = config_from_file(tmp_path / "config.json")
    first, other = (Bert(config, seed=seed).trainable_variables[0].numpy() for seed in (MOST_SEED, MOST_SEED - 1))
    assert np.isfinite(first).all()
    assert not np.array_equal(first, other)
    assert dropout_key(MOST_SEED, 1, 0, 0).shape == (2,)
    for order in (Order(100, MOST_SEED), BlockOrder(100, MOST_SEED)):
        assert sorted(order.rows_at(0, 100).tolist()) == list(range(100))


def test_a_plan_of_too_many_steps(tmp_path: Path) -> None:
    from distributed.plan import PlanSettings, make_plan

    with pytest.raises(
        InputError, match="training steps are too many, at most 1,000,000,000: lower --num_train_ep"
    ):
        make_plan(PlanSettings(num_train_epochs=1e9), 1000, 1)
