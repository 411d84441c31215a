"""Times PyTorch's BERT on one batch, compiled, in bf16: beside `bert-bench step` and jax_step.py in
the same shape.

    PYTHON benchmarks/torch_step.py LAYERS HIDDEN ROWS [--seq_length 384] [--device cpu]

The step is that of bert-squad: loss, gradient, clipping, the fused AdamW, with dropout. The rival
gets what its users would set: float32 products in TF32, its fused attention. PYTHON has torch and
transformers; this file imports nothing of RingBERT.
"""

import argparse
import time

import torch
import transformers

NUM_WARMUP, NUM_STEPS, NUM_RATES = 3, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("layers", "hidden", "rows"):
        parser.add_argument(name, type=int)
    parser.add_argument("--seq_length", type=int, default=384, help="(default: 384)")
    parser.add_argument("--device", default="cuda", help="PyTorch's device (default: cuda)")
    options = parser.parse_args()
    rows, length, device = options.rows, options.seq_length, options.device
    torch.set_float32_matmul_precision("high")  # TF32, for what autocast leaves in float32
    config = transformers.BertConfig(
        attn_implementation="sdpa",
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        intermediate_size=4 * options.hidden,
    )
    model = transformers.BertForQuestionAnswering(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    ids = torch.randint(0, config.vocab_size, (rows, length), device=device)
    answers = torch.randint(0, length, (rows,), device=device)

    def losses(count: int) -> float:
        """The last loss of some steps; its value is there when the device has ended them."""
        for _ in range(count):
            with torch.autocast(device, torch.bfloat16):
                loss = compiled(input_ids=ids, start_positions=answers, end_positions=answers).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    attention = model.config._attn_implementation
    print(f"torch {torch.__version__}, attention {attention}, TF32 products, fused AdamW")
    losses(NUM_WARMUP)
    for _ in range(NUM_RATES):
        start_s = time.perf_counter()
        last = losses(NUM_STEPS)
        seconds = time.perf_counter() - start_s
        print(f"total examples/sec: {NUM_STEPS * rows / seconds:.2f}, loss {last:.4f}", flush=True)


if __name__ == "__main__":
    main()
