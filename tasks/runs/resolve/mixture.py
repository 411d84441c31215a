"""Several corpora in the stream of a training, with weights that may change along it: what the
plan, the report and a resumed run know of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from distributed.mixture import Mixture, units_of
from distributed.order import BlockOrder, Order
from distributed.plan import Plan
from distributed.stages import Places, Table
from ringbase.errors import InputError
from tasks.runs.naming import Named
from tasks.runs.resolve.command import Stream

Weights = Table[tuple[int, ...]]  # of all corpora, as whole numbers


class Corpus(NamedTuple):
    """A corpus of a training."""

    name: str
    num_rows: int


@dataclass(frozen=True)
class MixtureStream(Stream):
    """The weights of corpora, in rows of the stream. Without `weights` they are one corpus."""

    corpora: Sequence[Corpus] = ()  # of a mixture
    weights: Weights | None = None
    weights_flag: str = "input_file"  # which has decided them
    batch: int = 1  # so many rows in a row are of one corpus
    order_of: Callable[[int, int], Order] = BlockOrder  # of the rows of a corpus

    def order(self, num_rows: int, seed: int) -> Order:
        if self.weights is None:
            return self.order_of(num_rows, seed)
        sizes = [corpus.num_rows for corpus in self.corpora]
        return Mixture(sizes, self.weights, seed, self.batch, self.order_of)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the corpora of a mixture."""
        return tuple(corpus.name for corpus in self.corpora)

    def fixed(self) -> dict[str, str]:
        if self.weights is None:
            return {}
        values = tuple(":".join(map(str, units)) for units in self.weights.values)
        return {f"--{self.weights_flag}": f"weights {Table(self.weights.starts, values)}"}

    def in_words(self, plan: Plan) -> list[str]:
        if self.weights is None:
            return []
        pieces = []
        for units in self.weights.values:
            shares = zip(self.corpora, units, strict=True)
            shown = [f"{corpus.name} {unit / sum(units):.4g}" for corpus, unit in shares]
            pieces.append(", ".join(shown))
        of_one = ", each global batch of one of them" if self.batch > 1 else ""
        seen = []
        for corpus, times in zip(self.corpora, self.times_seen(plan), strict=True):
            seen.append(f"{corpus.name} {times:.3g} times ({corpus.num_rows:,} rows)")
        return [
            f"mixture: {Table(self.weights.starts, tuple(pieces))}{of_one}",
            f"seen: {', '.join(seen)}",
        ]

    def times_seen(self, plan: Plan) -> list[float]:
        """How often each corpus is seen in the whole training."""
        assert self.weights is not None
        end = plan.steps * plan.global_batch_size
        counts = [Fraction(0)] * len(self.corpora)
        stops = [*self.weights.starts[1:], end]
        for start, stop, units in zip(self.weights.starts, stops, self.weights.values, strict=True):
            for number, unit in enumerate(units):
                # on many ranks the last steps of one rank may be missing
                counts[number] += max(min(stop, end) - start, 0) * Fraction(unit, sum(units))
        pairs = zip(counts, self.corpora, strict=True)
        return [float(count / corpus.num_rows) for count, corpus in pairs]

    def facts(self, plan: Plan) -> dict[str, Any]:
        if self.weights is None:
            return {}
        corpora = []
        for corpus, times in zip(self.corpora, self.times_seen(plan), strict=True):
            corpora.append({"name": corpus.name, "rows": corpus.num_rows, "seen": times})
        return {"corpora": corpora, "weights": rows_and_values(self.weights)}


def rows_and_values(table: Table) -> list[dict[str, Any]]:
    """A table for JSON."""
    pairs = []
    for row, value in zip(table.starts, table.values, strict=True):
        is_of_all = isinstance(value, tuple)  # the weights of all corpora
        pairs.append({"from_row": row, "value": [*value] if is_of_all else value})
    return pairs


def table_of_weights(
    named: Sequence[Named], corpora: Sequence[Corpus], places: Places, flag: str
) -> Weights:
    """The weights of all corpora that a flag names, from each row on at which one changes. Raises
    InputError: a corpus is never seen; a place is not within the training."""
    tables = [places.table(each.weight or (), flag) for each in named]
    starts = sorted({start for table in tables for start in table.starts})
    values = []
    for start in starts:
        weights = [table.values[table.number_at(start)] for table in tables]
        try:
            values.append(units_of(weights))
        except ValueError as error:
            raise InputError(f"--{flag}, from row {start:,} on: {error}") from None
    for corpus, units in zip(corpora, zip(*values, strict=True), strict=True):
        if not any(units):
            raise InputError(f"--{flag}: the weight of {corpus.name} is always 0: leave it out")
    return Table(tuple(starts), tuple(values))
