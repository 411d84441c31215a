"""PyTorch's BERT at the same shapes: `python -m benchmarks.gpu_first.torch_steps --size base --batch_size 32`.

transformers' BertForQuestionAnswering with PyTorch's fused attention, compiled, float32 weights under bfloat16
autocast, as RingBERT trains. Without transformers, the same layers from torch.nn. Prints milliseconds of the
gradient, and of the whole step with clipping and AdamW.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_first.findings import PEAK_FLOP_PER_S, say

SIZES = {"tiny": (128, 2, 2, 512), "base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}
VOCABULARY, NUM_WARMUP, NUM_TIMED = 30522, 3, 20
PRODUCT_SIZE = {"cuda": 8192, "cpu": 512}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seq_length", type=int, default=384)
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and attention")
    parser.add_argument("--plain_layers", action="store_true", help="use torch.nn's layers, not transformers'")
    parser.add_argument("--no_compile", action="store_true")
    flags = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = f"PyTorch {flags.size} {flags.batch_size}"
    model, source = model_of(flags)
    model = model.to(device).train()
    run = model if flags.no_compile else torch.compile(model)
    shape = flags.batch_size, flags.seq_length
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, shape, generator=generator).to(device)
    answers = torch.randint(flags.seq_length, (2, flags.batch_size), generator=generator).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")

    def gradient() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = span_loss(run(ids), answers)
        loss.backward()
        return loss

    def step() -> torch.Tensor:
        loss = gradient()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    start_s = time.perf_counter()
    loss = float(gradient())
    compile_s = time.perf_counter() - start_s
    flop = flop_of(flags)
    product = product_flop_per_s(device)
    for what, call in (("gradient", gradient), ("step", step)):
        ms, in_row_ms = times_of(call, device)
        flop_per_s = flop / (in_row_ms / 1e3)
        say(
            f"{name} {what}",
            f"{ms:.2f} ms awaited, {in_row_ms:.2f} ms in a row, {flags.batch_size / in_row_ms * 1e3:.1f} rows/s, "
            f"{flop_per_s / 1e12:.4g} TFLOP/s ({flop_per_s / PEAK_FLOP_PER_S:.1%} of 989, "
            f"{flop_per_s / product:.1%} of one large product now); {source}, loss {loss:.3f}, "
            f"first call {compile_s:.0f} s",
            math.isfinite(loss), ms=ms, in_row_ms=in_row_ms, flop_per_s=flop_per_s, compile_s=compile_s,
            peak_bytes=torch.cuda.max_memory_allocated() if device == "cuda" else 0, torch=torch.__version__,
        )  # fmt: skip


def model_of(flags: argparse.Namespace) -> tuple[torch.nn.Module, str]:
    """A module ids [B, T] -> (start, end), each [B, T], and where it comes from."""
    hidden, layers, heads, inner = SIZES[flags.size]
    if not flags.plain_layers:
        try:
            import transformers
        except ImportError:
            pass
        else:
            config = transformers.BertConfig(
                vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                intermediate_size=inner, max_position_embeddings=max(512, flags.seq_length),
                hidden_dropout_prob=flags.dropout, attention_probs_dropout_prob=flags.dropout,
                attn_implementation="sdpa",
            )  # fmt: skip
            return Scores(
                transformers.BertForQuestionAnswering(config)
            ), f"transformers {transformers.__version__}"
    return PlainBert(hidden, layers, heads, inner, flags), f"torch.nn of PyTorch {torch.__version__}"


class Scores(torch.nn.Module):
    """transformers' model without its dict of results."""

    def __init__(self, inner: Any):
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.inner(input_ids=ids)
        return scores.start_logits, scores.end_logits


class PlainBert(torch.nn.Module):
    """BERT with a span head, from torch.nn's layers."""

    def __init__(self, hidden: int, layers: int, heads: int, inner: int, flags: argparse.Namespace):
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, hidden)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(flags.seq_length, hidden))
        self.norm, self.dropout = torch.nn.LayerNorm(hidden), torch.nn.Dropout(flags.dropout)
        layer = torch.nn.TransformerEncoderLayer(hidden, heads, inner, flags.dropout, "gelu", batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(hidden, 2)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.dropout(self.norm(self.words(ids) + self.positions))
        start, end = self.head(self.encoder(embedded)).unbind(-1)
        return start, end


def span_loss(scores: tuple[torch.Tensor, torch.Tensor], answers: torch.Tensor) -> torch.Tensor:
    losses = [torch.nn.functional.cross_entropy(s.float(), a) for s, a in zip(scores, answers, strict=True)]
    return sum(losses[1:], losses[0]) / 2


def flop_of(flags: argparse.Namespace) -> float:
    """Of a step's matrix products without the heads, counted as `tasks.bench.products.model_flop` does."""
    hidden, layers, _, inner = SIZES[flags.size]
    tokens = flags.batch_size * flags.seq_length
    linear = 2 * tokens * (4 * hidden * hidden + 2 * hidden * inner)
    return 3 * layers * (linear + 4 * tokens * flags.seq_length * hidden)


def times_of(call: Callable[[], torch.Tensor], device: str) -> tuple[float, float]:
    """Milliseconds of a call: the median of awaited calls, and the mean of calls in a row."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    seconds = []
    for number in range(NUM_WARMUP + NUM_TIMED):
        start_s = time.perf_counter()
        call()
        wait()
        if number >= NUM_WARMUP:
            seconds.append(time.perf_counter() - start_s)
    start_s = time.perf_counter()
    for _ in range(NUM_TIMED):
        call()
    wait()
    return 1e3 * statistics.median(seconds), 1e3 * (time.perf_counter() - start_s) / NUM_TIMED


def product_flop_per_s(device: str) -> float:
    size = PRODUCT_SIZE[device]
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * size**3 / (times_of(lambda: left @ right, device)[1] / 1e3)


if __name__ == "__main__":
    main()
