"""Writes tests/goldens/recipes.json: learning rates by transformers' schedules, steps of PyTorch's
AdamW, and its cross-entropy with smoothed labels. PYTHON has torch and transformers.

    PYTHON scripts/torch_recipes.py
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

FILE = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "recipes.json"
STEPS, WARMUP, DECAY, MIN_RATIO = 40, 8, 10, 0.1
POWER, SMOOTHING = 0.5, 0.1
ADAMW = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.05}


def schedules(optimizer: torch.optim.Optimizer) -> dict:
    """By our names, and what differs from our defaults."""
    make = transformers.optimization
    steps = {"num_warmup_steps": WARMUP, "num_training_steps": STEPS}
    stable = {"num_stable_steps": STEPS - WARMUP - DECAY, "num_decay_steps": DECAY}
    wsd = {"num_warmup_steps": WARMUP, **stable, "decay_type": "1-sqrt"}
    polynomial = make.get_polynomial_decay_schedule_with_warmup
    cosine = make.get_cosine_with_min_lr_schedule_with_warmup
    return {
        "linear_from_peak": make.get_linear_schedule_with_warmup(optimizer, **steps),
        "cosine": make.get_cosine_schedule_with_warmup(optimizer, **steps),
        "constant": make.get_constant_schedule_with_warmup(optimizer, WARMUP),
        "inverse_sqrt": make.get_inverse_sqrt_schedule(optimizer, WARMUP),
        "polynomial": polynomial(optimizer, **steps, power=2.0, lr_end=0.0),
        "wsd": make.get_wsd_schedule(optimizer, **wsd),
        "polynomial power": polynomial(optimizer, **steps, power=POWER, lr_end=0.0),
        "wsd linear": make.get_wsd_schedule(optimizer, **wsd | {"decay_type": "linear"}),
        "wsd cosine": make.get_wsd_schedule(optimizer, **wsd | {"decay_type": "cosine"}),
        "cosine lowest": cosine(optimizer, **steps, min_lr_rate=MIN_RATIO),
        "wsd lowest": make.get_wsd_schedule(optimizer, **wsd, min_lr_ratio=MIN_RATIO),
    }


def rates() -> dict[str, list[float]]:
    found = {}
    for name in schedules(torch.optim.SGD([torch.zeros(1)], lr=1.0)):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        schedule = schedules(optimizer)[name]
        # each constructor has set the rate: only this one's counts
        multiplier = schedule.lr_lambdas[0]
        found[name] = [float(multiplier(step)) for step in range(STEPS + 3)]
    return found


def smoothed_losses() -> dict:
    """The loss of each row, with and without weights of the labels."""
    generator = np.random.default_rng(4)
    scores = generator.normal(size=(6, 3)).astype(np.float32)
    labels, weights = [0, 1, 2, 2, 1, 0], [0.5, 1.0, 3.0]
    found = {}
    for name, weight in (("losses", None), ("weighted", torch.tensor(weights))):
        function = torch.nn.CrossEntropyLoss(weight, reduction="none", label_smoothing=SMOOTHING)
        found[name] = function(torch.tensor(scores), torch.tensor(labels)).tolist()
    facts = {"scores": scores.tolist(), "labels": labels, "weights": weights}
    return facts | found | {"factor": SMOOTHING}


def steps_of_adamw() -> dict:
    generator = np.random.default_rng(3)
    start = generator.normal(size=(3, 4)).astype(np.float32)
    gradients = generator.normal(size=(10, 3, 4)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.AdamW([parameter], **ADAMW)
    values = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        values.append(parameter.detach().numpy().tolist())
    return {"start": start.tolist(), "gradients": gradients.tolist(), "values": values, **ADAMW}


if __name__ == "__main__":
    facts = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "steps": STEPS,
        "warmup": WARMUP,
        "decay": DECAY,
        "min_ratio": MIN_RATIO,
        "rates": rates(),
        "power": POWER,
        "adamw": steps_of_adamw(),
        "smoothing": smoothed_losses(),
    }
    FILE.write_text(json.dumps(facts, indent=1) + "\n")
