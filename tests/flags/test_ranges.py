"""Numbers that no run can have are refused with their flag, before they fill the memory or the time."""

import pytest
from harness.parsing import LEAST, flags_of, parsed, refusal

from distributed.plan import PlanSettings, make_plan
from ringbase.errors import InputError

LONGEST, MOST_ROWS, MOST_STEPS, MOST_SEED = 1 << 16, 1 << 20, 10**9, (1 << 32) - 1
COMMANDS = ["bert-squad", "bert-classifier", "bert-pretraining", "bert-features", "bert-ask",
            "bert-corpus build", "bert-corpus vocab", "bert-bench step"]  # fmt: skip

# The least and the largest value of each flag; None where nothing is too large.
STEPS = ["save_checkpoints_steps", "keep_checkpoints", "log_steps", "num_train_steps", "max_eval_steps",
         "num_steps", "eval_steps", "early_stopping_patience"]  # fmt: skip
ROWS = ["train_batch_size", "global_batch_size", "gradient_accumulation_steps", "eval_batch_size", "batch_size",
        "predict_batch_size"]  # fmt: skip
WHOLE = {
    **dict.fromkeys(STEPS, (1, MOST_STEPS)),
    **dict.fromkeys(ROWS, (1, MOST_ROWS)),
    **dict.fromkeys(["num_warmup_steps", "num_warmup"], (0, MOST_STEPS)),
    **dict.fromkeys(["seed", "random_seed"], (0, MOST_SEED)),
    **dict.fromkeys(["doc_stride", "max_answer_length", "max_predictions_per_seq"], (1, LONGEST)),
    **dict.fromkeys(["max_train_examples", "max_predict_examples", "max_bytes"], (1, None)),
    "max_query_length": (1, None),  # --max_seq_length limits it
    "n_best_size": (1, 1000),
    "num_shards": (1, 100_000),
    "dupe_factor": (1, 10_000),
    "num_workers": (1, 1024),
    "vocab_size": (6, 1 << 24),
    "min_frequency": (0, 1 << 32),
    "top_k": (1, 1000),
    "repeat": (1, 10_000),
    "seq_length": (8, LONGEST),
    "max_seq_length": (4, LONGEST),
    "bert-squad max_seq_length": (68, LONGEST),  # --max_query_length and four more
    "bert-ask max_seq_length": (5, LONGEST),
    "bert-pretraining max_seq_length": (1, LONGEST),
    "bert-corpus build max_seq_length": (5, LONGEST),
}
# The same for real numbers; in brackets what is just outside.
REAL = {
    "learning_rate": ([-1e-9], 0, 10, [10.001]),
    "num_train_epochs": ([-0.1], 0, 1e9, [1.1e9]),
    "save_checkpoints_minutes": ([-0.1], 0, 1e9, [1.1e9, 1e300]),
    "warmup_proportion": ([-1e-9], 0, 1, [1.001, 1.5]),
    "short_seq_prob": ([-1e-9], 0, 1, [1.001]),
    "masked_lm_prob": ([0, -0.1], 1e-9, 0.999, [1.001]),
    "character_coverage": ([0, -0.1], 1e-9, 1, [1.001]),
    "stall_warning": ([-1], 0, 1e9, []),
    "stall_timeout": ([-1], 0, 1e9, []),
    "null_score_diff_threshold": ([], -1e9, 1e9, []),
}


def values_of(command: str, flag: str) -> tuple[list, list]:
    """Values at the ends of the range of a flag, and just outside."""
    if flag in REAL:
        below, least, largest, above = REAL[flag]
        return [least, largest], [*below, *above, "nan", "inf"]
    least, largest = WHOLE.get(f"{command} {flag}") or WHOLE[flag]
    ends, outside = [least], [least - 1, -(10**12), 1 << 64, "1.5"]
    return (ends, outside) if largest is None else ([*ends, largest], [*outside, largest + 1, 10**15])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_has_a_range(command, capsys):
    numbers = [name for name, value in flags_of(command).items() if value.startswith(("N", "X"))]
    assert len(numbers) > 2
    for name in numbers:
        ends, outside = values_of(command, name)
        for value in ends:
            found = parsed(command, *LEAST[command], f"--{name}={value}")
            assert value in found.values(), name
        for value in outside:
            message = refusal(capsys, command, *LEAST[command], f"--{name}={value}")
            assert ("seed" if name == "random_seed" else f"--{name} ") in message, (name, value)


def test_a_plan_of_too_many_steps_names_the_flag():
    with pytest.raises(InputError, match="--num_train_epochs"):
        make_plan(PlanSettings(num_train_epochs=1e9), 1000, 1)
