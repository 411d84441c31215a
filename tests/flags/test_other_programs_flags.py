"""Flags of other programs get an answer: what to write here, or why nothing."""

import re
from dataclasses import fields

import pytest
from harness.parsing import SETTINGS, named
from transformers.training_args import TrainingArguments

from ringbase.settings import fields_of
from tasks.programs import COMMANDS
from tasks.runs import flags
from tasks.runs.old_flags import IGNORED, INSTEAD


def names_of(config):
    return {name for field in fields_of(config) for name in field.names}


KNOWN = {command.name: names_of(command.config) for command in COMMANDS}
ALL = set().union(*KNOWN.values(), IGNORED, flags.REDUCED_PRECISIONS)


def hint(capsys, program, flag):
    with pytest.raises(SystemExit):
        flags.parse(named(SETTINGS[program]), [f"--{flag}=1"], prog=program)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program}: error: unknown flag --{flag}; "), line
    return line.split("; ", 1)[1]


@pytest.mark.parametrize("program", KNOWN)
def test_each_argument_of_transformers_has_an_answer(capsys, program):
    """No flag that only looks alike, and none that this program lacks."""
    unanswered = []
    for field in fields(TrainingArguments):
        if field.name in ALL:
            continue
        answer = hint(capsys, program, field.name)
        named_flags = set(re.findall(r"--(\w+)", answer))
        assert named_flags <= KNOWN[program], answer
        if answer.startswith("did you mean") or answer == "--help lists all flags":
            unanswered.append(field.name)
    assert not unanswered


def test_flags_that_are_written_instead_exist():
    for texts in INSTEAD.values():
        for flag in re.findall(r"--(\w+)", " ".join(texts)):
            assert flag in ALL | names_of(named(SETTINGS["bert-corpus build"])), texts


@pytest.mark.parametrize(
    ("program", "flag", "answer"),
    [
        ("bert-classifier", "per_device_train_batch_size", "--train_batch_size"),
        ("bert-classifier", "per_device_eval_batch_size", "--eval_batch_size"),
        ("bert-squad", "per_device_eval_batch_size", "--predict_batch_size"),
        ("bert-squad", "warmup_ratio", "--warmup_proportion"),
        ("bert-squad", "save_total_limit", "--keep_checkpoints"),
        ("bert-embedder", "scale", "--temperature is 1 / scale"),
        ("bert-pretraining", "num_accumulation_steps", "--gradient_accumulation_steps"),
        ("bert-tagger", "gradient_checkpointing", "--recompute"),
        ("bert-tagger", "lerning_rate", "did you mean --learning_rate?"),
    ],
)
def test_a_flag_of_another_program_is_answered_with_ours(capsys, program, flag, answer):
    assert answer in hint(capsys, program, flag)
