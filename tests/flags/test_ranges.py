"""Numbers that no run can have are refused with their flag, before they fill the memory or the
time."""

import contextlib

import pytest
from harness.parsing import LEAST, flags_of, parsed, refusal

MAY_BE_0 = """range_min absolute_margin relative_margin max_score min_score
    learning_rate num_train_epochs num_warmup_steps num_warmup warmup_proportion seed
    save_checkpoints_minutes check_steps random_seed short_seq_prob min_frequency stall_warning
    stall_timeout null_score_diff_threshold num_decay_steps decay_proportion min_lr_ratio
    weight_decay adam_beta1 adam_beta2 max_grad_norm head_learning_rate reinit_layers
    hidden_dropout_prob attention_probs_dropout_prob classifier_dropout label_smoothing_factor
    restarts guide_margin"""
MAY_BE_NEGATIVE = "null_score_diff_threshold", "guide_margin"
ALIASES = {
    "random_seed": "seed",
    "max_seq_length": "seq_length",
    "ranks_per_run": "ranks_per_trial",
}
ALIASES |= {"np": "num_proc", "n": "num_proc", "p": "ssh_port"}
SHARES = {
    "warmup_proportion",
    "decay_proportion",
    "min_lr_ratio",
    "layer_lr_decay",
    "label_smoothing_factor",
    "adam_beta1",
    "adam_beta2",
    "short_seq_prob",
    "masked_lm_prob",
    "character_coverage",
}
MOST = {
    "learning_rate": 10,
    "seed": (1 << 32) - 1,
    "train_batch_size": 1 << 20,
    "num_train_steps": 10**9,
    "num_train_epochs": 1e9,
    "n_best_size": 1000,
    "top_k": 1000,
}


@pytest.mark.parametrize("command", LEAST)
def test_every_number_has_a_range(command, capsys):
    may_be_0 = MAY_BE_0.split()
    numbers = {
        name: value for name, value in flags_of(command).items() if value.startswith(("N", "X"))
    }
    assert numbers or command in ("bert-corpus verify", "bert-export", "bert-report")
    for name, kind in numbers.items():
        wrong = (
            [1 << 64, "nan", "inf"] + ["1.5"] * kind.startswith("N") + [1.001] * (name in SHARES)
        )
        if name not in MAY_BE_NEGATIVE:
            wrong.append(-1 if name in may_be_0 else 0)
        if name in MOST:
            assert MOST[name] in parsed(command, *LEAST[command], f"--{name}={MOST[name]}").values()
            wrong.append(MOST[name] + 1)
        for value in wrong:
            message = None
            with contextlib.suppress(pytest.fail.Exception):  # it was not refused
                message = refusal(capsys, command, *LEAST[command], f"--{name}={value}")
            lacking = f"{command} takes --{name}={value}: {what_to_add(name, value)}"
            assert message is not None, lacking
            named = ALIASES.get(name, f"--{name}")
            assert f"{named} " in message, (
                f"{command} refuses --{name}={value} and does not name {named}: {message!r}; of"
                " another name for a flag say in ALIASES of this file which it is for"
            )
        if name in may_be_0:
            assert 0 in parsed(command, *LEAST[command], f"--{name}=0").values()


def what_to_add(name, value):
    """What a new flag lacks that is not refused with this value."""
    if value == 0:
        return (
            f"if 0 makes sense, add {name} to MAY_BE_0 of this file, else give its setting at_least"
            " above 0 (ringbase/settings.py)"
        )
    bound = "at_least" if value == -1 else "at_most"
    return f"give its setting {bound}, the bound that this value is beyond (ringbase/settings.py)"


def test_a_row_has_room_for_its_special_tokens(capsys):
    for command, least in {"bert-squad": 68, "bert-ask": 5, "bert-corpus build": 5}.items():
        parsed(command, *LEAST[command], f"--max_seq_length={least}")
        assert "--max_seq_length" in refusal(
            capsys, command, *LEAST[command], f"--max_seq_length={least - 1}"
        )
