"""The referee of the SQuAD recipe: the same windows, batch, rate and epochs in PyTorch and transformers.

    python scripts/pytorch_squad.py --model DIR --train_file train.json --predict_file dev.json --seeds 1 2 3 …

needs torch beside ringbert's own packages. It reads the windows that bert-squad caches, visits them in the same
order, trains `BertForQuestionAnswering` under bfloat16 autocast with BERT's optimizer written out in torch, and
prints one JSON line per seed with EM and F1 from bert-squad's own answer search.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertForQuestionAnswering

from bert import tokenizer
from distributed.plan import make_plan
from distributed.rows import Order, Rows, fixed_batches
from distributed.run import Run
from tasks import squad_answers, squad_data, squad_metrics
from tasks.squad import collate
from tasks.start import cache_folder


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "train_file", "predict_file"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("max_train_examples", 2000), ("max_predict_examples", 1000), ("train_batch_size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--num_train_epochs", type=float, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    flags = parser.parse_args()

    run = Run(Path("/tmp"), is_writer=False)
    words = tokenizer.load(None, Path(flags.model))
    data = {}
    for training, path, most in (
        (True, flags.train_file, flags.max_train_examples),
        (False, flags.predict_file, flags.max_predict_examples),
    ):
        examples = squad_data.read(path, "--train_file", training=training, allow_impossible=False, most=most)
        key = squad_data.windows(
            examples, words, cache_folder(), max_seq_length=flags.max_seq_length, doc_stride=128,
            max_query_length=64, allow_unknown=False, run=run,
        )  # fmt: skip
        folder = cache_folder() / key
        data[training] = (examples, Rows.open(folder / "windows.arrow"), Rows.open(folder / "paragraphs.arrow"))
    for seed in flags.seeds:
        started = time.time()
        model = train(flags, data[True][1], seed)
        trained = time.time()
        scores = predict(model, *data[False])
        print(json.dumps({"seed": seed, **scores, "train_s": round(trained - started, 1)}), flush=True)


def train(flags, windows: Rows, seed: int):
    torch.manual_seed(seed)
    model = BertForQuestionAnswering.from_pretrained(flags.model)
    torch.nn.init.trunc_normal_(model.qa_outputs.weight, std=0.02, a=-0.04, b=0.04)
    torch.nn.init.zeros_(model.qa_outputs.bias)
    model.train()
    plan = make_plan(
        len(windows), 1, learning_rate=flags.learning_rate, epochs=flags.num_train_epochs,
        train_batch_size=flags.train_batch_size,
    )  # fmt: skip
    plain = [p for name, p in model.named_parameters() if "LayerNorm" in name or "bias" in name]
    decayed = [p for name, p in model.named_parameters() if "LayerNorm" not in name and "bias" not in name]
    groups = [{"params": decayed, "decay": 0.01, "lr": 0.0}, {"params": plain, "decay": 0.0, "lr": 0.0}]
    optimizer, order = AdamWeightDecay(groups, {}), Order(len(windows), seed)
    for step in range(plan.steps):
        share = step / plan.warmup_steps if step < plan.warmup_steps else 1 - step / plan.steps
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * share
        position = step * plan.global_batch_size
        batch = collate(windows.take(order.rows_at(position, position + plan.global_batch_size)))
        with torch.autocast("cpu", torch.bfloat16):
            start, end = scores_of(model, batch)
        targets = [torch.from_numpy(batch[name].astype(np.int64)) for name in ("start_position", "end_position")]
        entropy = torch.nn.functional.cross_entropy
        loss = (entropy(start, targets[0]) + entropy(end, targets[1])) / 2
        model.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}/{plan.steps} loss {loss.item():.4f}", flush=True)
    return model


def scores_of(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end scores, float32 [B, T], padding at minus infinity."""
    mask = torch.from_numpy(batch["example_ids"].astype(np.int64))
    output = model(
        input_ids=torch.from_numpy(batch["input_ids"].astype(np.int64)),
        token_type_ids=torch.from_numpy(batch["token_type_ids"].astype(np.int64)),
        attention_mask=mask,
    )
    masked = (1 - mask) * -1e30
    return output.start_logits.float() + masked, output.end_logits.float() + masked


@torch.no_grad()
def predict(model, examples, windows: Rows, paragraphs: Rows) -> dict[str, float]:
    model.eval()
    lengths = np.diff(windows.column("input_ids")[1])
    scores: list = [None] * len(windows)
    for batch in fixed_batches(lengths, 16):
        with torch.autocast("cpu", torch.bfloat16):
            start, end = scores_of(model, collate(windows.take(batch)))
        both = torch.stack([start, end], -1).numpy()
        for row, window in enumerate(batch):
            scores[window] = both[row, : lengths[window]]
    answers = squad_answers.find_answers(
        examples, windows, paragraphs, scores, n_best_size=20, max_answer_length=30, version_2=False,
        null_score_diff_threshold=0.0,
    )  # fmt: skip
    return squad_metrics.squad_v1(examples.references, answers.predictions)


if __name__ == "__main__":
    main()
