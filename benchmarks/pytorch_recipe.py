"""BERT's fine-tuning recipe in plain PyTorch (optimizer, schedule, loop), for pytorch_squad and
pytorch_classifier."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from benchmarks.rivals import in_rows
from distributed.order import Order
from distributed.plan import PlanSettings, make_plan
from distributed.rows import Rows


class AdamWeightDecay(torch.optim.Optimizer):
    """google-research/bert `optimization.py`, in torch."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                update = state["m"] / (state["v"].sqrt() + 1e-6) + group["decay"] * p
                p.sub_(update, alpha=group["lr"])


def train(model, head: torch.nn.Linear, flags, rows: Rows, seed: int, collate: Callable, loss_of: Callable):
    """Trains `model` on `rows` in bert-squad's order and batches, under bfloat16 autocast. `head` is initialized.

    `loss_of(model, batch)` gives the mean loss of a batch that `collate` made.
    """
    torch.nn.init.trunc_normal_(head.weight, std=0.02, a=-0.04, b=0.04)
    torch.nn.init.zeros_(head.bias)
    model.train()
    settings = PlanSettings(
        learning_rate=flags.learning_rate,
        num_train_epochs=flags.num_train_epochs,
        train_batch_size=flags.train_batch_size,
    )
    plan = make_plan(settings, len(rows), 1)
    plain = [p for name, p in model.named_parameters() if "LayerNorm" in name or "bias" in name]
    decayed = [p for name, p in model.named_parameters() if "LayerNorm" not in name and "bias" not in name]
    groups = [{"params": decayed, "decay": 0.01, "lr": 0.0}, {"params": plain, "decay": 0.0, "lr": 0.0}]
    optimizer, order = AdamWeightDecay(groups, {}), Order(len(rows), seed)
    for step in range(plan.steps):
        share = step / plan.warmup_steps if step < plan.warmup_steps else 1 - step / plan.steps
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * share
        position = step * plan.global_batch_size
        batch = collate(rows.take(order.rows_at(position, position + plan.global_batch_size)))
        loss = loss_of(model, batch)
        model.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}/{plan.steps} loss {loss.item():.4f}", flush=True)
    return model


def inputs_of(batch) -> dict[str, torch.Tensor]:
    """The inputs of a transformers model, int64 [B, T]."""
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in in_rows(batch).items()}


def add_flags(parser, sizes: Iterable[tuple[str, int]]) -> None:
    """Adds the recipe's flags: the integers `sizes` (name, default), rate, epochs, seeds."""
    for name, default in sizes:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--num_train_epochs", type=float, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
