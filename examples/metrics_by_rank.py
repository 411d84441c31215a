"""Ranks with unequal shares of the data: the gradients and the metrics are those of all examples
together.

    bert-launch -np 2 -- python examples/metrics_by_rank.py
    python examples/metrics_by_rank.py    # one rank ends with the same numbers

A sampler cuts each global batch into shares; here rank r gets r + 1 parts, as if its machine were
faster. The mean of the ranks' means is then not the mean over all examples. So in training each
example has a weight, which makes the mean of the ranks' gradients that of all examples, and this
script adds up what the metrics have counted, not their results.
"""

import argparse

import ringbert.horovod as hvd

import keras
import numpy as np
from sklearn.datasets import load_digits

NUM_TRAIN = 1437  # of the 1,797 digits; the others test


class Shares(keras.utils.PyDataset):
    """This rank's share of each global batch. The order of an epoch is the same on all ranks."""

    def __init__(self, x: np.ndarray, y: np.ndarray, global_batch_size: int, weighs: bool):
        super().__init__()
        self.x, self.y, self.weighs, self.epoch = x, y, weighs, -1
        self.num_steps = len(x) // global_batch_size
        self.on_epoch_end()

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, number: int) -> tuple[np.ndarray, ...]:
        batch = np.array_split(self.order, self.num_steps)[number]
        ends = np.cumsum(np.arange(hvd.size() + 1)) * len(batch) // np.arange(hvd.size() + 1).sum()
        mine = batch[ends[hvd.rank()] : ends[hvd.rank() + 1]]
        if not self.weighs:
            return self.x[mine], self.y[mine]
        return (
            self.x[mine],
            self.y[mine],
            np.full(len(mine), len(mine) * hvd.size() / len(batch), np.float32),
        )

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self.order = np.random.default_rng(self.epoch).permutation(len(self.x))


def sum_over_ranks(metrics: list[keras.metrics.Metric]) -> None:
    """Adds up the metrics' totals and counts, so that their results are those over all ranks'
    examples."""
    variables = [variable for metric in metrics for variable in metric.variables]
    sums = hvd.grouped_allreduce(variables, op=hvd.Sum, name="metrics")
    for variable, total in zip(variables, sums, strict=True):
        variable.assign(total)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--global_batch_size", type=int, default=60, help="digits per step over all ranks"
    )
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    layers = [keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    model, optimizer = (
        keras.Sequential(layers),
        hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = Shares(x[:NUM_TRAIN], y[:NUM_TRAIN], options.global_batch_size, weighs=True)
    # each rank would shuffle differently
    model.fit(data, epochs=options.epochs, shuffle=False, verbose=0)
    model.evaluate(
        Shares(x[NUM_TRAIN:], y[NUM_TRAIN:], options.global_batch_size, weighs=False), verbose=0
    )
    of_ranks = hvd.allgather_object(model.get_metrics_result())
    sum_over_ranks(model.metrics)
    whole = model.get_metrics_result()
    means = {name: np.mean([result[name] for result in of_ranks]) for name in whole}
    results = {f"rank {rank}": result for rank, result in enumerate(of_ranks)}
    for name, result in {
        **results,
        "mean of the ranks' means": means,
        "mean over all digits": whole,
    }.items():
        if hvd.rank() == 0:
            print(f"{name}: loss {result['loss']:.5f}, accuracy {result['accuracy']:.5f}")


if __name__ == "__main__":
    main()
