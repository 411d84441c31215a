"""Flags of every program, on the command line and in TOML files."""

import contextlib
import io
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ringbert.errors import InputError


def programs() -> dict[str, Any]:
    from tasks import corpus, features
    from tasks.bench.step import StepConfig
    from tasks.classifier.program import Config as Classifier
    from tasks.pretraining.program import Config as Pretraining
    from tasks.squad.program import Config as Squad

    return {
        "bert-squad": Squad,
        "bert-classifier": Classifier,
        "bert-pretraining": Pretraining,
        "bert-corpus build": corpus.BuildConfig,
        "bert-corpus vocab": corpus.VocabConfig,
        "bert-features": features.Config,
        "bert-bench step": StepConfig,
    }


REQUIRED = {
    "bert-squad": "--output_dir=o --do_train --train_file=t",
    "bert-classifier": "--output_dir=o --do_train --train_file=t --dev_file=d",
    "bert-pretraining": "--output_dir=o --input_file=i --do_train",
    "bert-corpus build": "--output_dir=o --input_file=i",
    "bert-corpus vocab": "--output_dir=o --input_file=i",
    "bert-features": "--input_file=i --output_file=o --model=m",
    "bert-bench step": "",
}


def parsed(prog: str, *argv: str) -> None:
    """Reads flags as a program does. A refusal must be one line on standard error, with status 2."""
    from distributed.plan import PlanSettings, make_plan
    from tasks import flags

    printed, status = io.StringIO(), None
    try:
        with contextlib.redirect_stderr(printed):
            config = flags.parse(programs()[prog], [*REQUIRED[prog].split(), *argv], prog=prog, description="")
    except SystemExit as stop:
        status = stop.code
    if status == 0:  # --help
        return
    if status:
        lines = printed.getvalue().splitlines()
        assert (status, len(lines)) == (2, 1), lines
        assert lines[0].startswith(f"{prog}: error: "), lines
        raise InputError(lines[0])
    for entry in fields(config):
        value = getattr(config, entry.name)
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value
        elif isinstance(value, int | float):
            assert math.isfinite(value)
            assert -(1 << 63) <= value < 1 << 63
    if isinstance(config, PlanSettings):
        for size in (1, 3):
            with contextlib.suppress(InputError):
                plan = make_plan(config, 1000, size)
                assert 0 < plan.steps * plan.global_batch_size < 1 << 62
                assert math.isfinite(plan.learning_rate)
                assert plan.share(0).stop <= plan.global_batch_size


def read_toml(folder: Path, name: str) -> None:
    parsed(Path(name).stem.replace("_", " "), f"--config={folder / name}")


TOML = {
    "bert-squad.toml": b"learning_rate = 3e-5\nnum_train_epochs = 2\nmax_seq_length = 384\nprecision = 'bf16'\n"
    b"seed = 7\ndoc_stride = 128\nversion_2_with_negative = true\nglobal_batch_size = 32\n",
    "bert-classifier.toml": b"max_seq_length = 128\nlearning_rate = 2e-5\neval_steps = 'auto'\nseeds = '1,2,3'\n"
    b"text_column = 'body'\nwarmup_proportion = 0.1\ntrain_batch_size = 16\n",
    "bert-pretraining.toml": b"num_train_steps = 1000\nnum_warmup_steps = 100\noptimizer = 'lamb'\n"
    b"learning_rate = 1e-3\n",
    "bert-corpus_build.toml": b"max_seq_length = 128\ndupe_factor = 2\nshort_seq_prob = 0.1\nnum_shards = 4\n"
    b"random_seed = 1\n",
}


def read_command_line(folder: Path, name: str) -> None:
    """The file holds a program's name and its flags, each on a line."""
    text = (folder / name).read_bytes().decode("utf-8", "surrogateescape")
    prog, *argv = text.replace("\0", "").split("\n")
    skipped = ("-h", "-help", "--help", "--version", "-version", "--flagfile", "-flagfile", "--config", "-config")
    if prog not in REQUIRED or any(word.split("=")[0] in skipped for word in argv):
        raise InputError(f"{name}: not a case")
    parsed(prog, *[word for word in argv if word])


EXCLUDED = ("train_batch_size", "num_train_epochs")  # beside --global_batch_size and --num_train_steps


def command_lines() -> dict[str, tuple[bytes, str]]:
    """Every flag of every program that is not text, with its default or some value."""
    from ringbert.settings import alternatives, fields_of

    files = {}
    for prog, config in programs().items():
        lines = [prog]
        for entry in fields_of(config):
            kinds = alternatives(entry.type)
            if (int in kinds or float in kinds) and entry.name not in EXCLUDED:
                default = entry.default if isinstance(entry.default, int | float) else 3 if int in kinds else 0.5
                lines.append(f"--{entry.name}={default}")
        files[f"{prog.replace(' ', '_')}.flags"] = ("\n".join(lines).encode(), "text")
    return files
