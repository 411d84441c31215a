"""What of a pretraining changes along its stream of rows: the weights of several corpora, and the
share of the tokens that are masked. Without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from bert.corpus.shards import find_shards, is_arrow, open_shards
from distributed.mixture import Mixture, units_of
from distributed.order import BlockOrder, Order
from distributed.plan import Plan
from distributed.stages import Places, Table, stages_of
from ringbase.errors import InputError
from tasks.pretraining.naming import Named
from tasks.pretraining.settings import PretrainingConfig
from tasks.runs.resolve.command import Stream

DIGITS = 9  # of shares by a temperature, so that all machines find the same ones
Files = Mapping[Path, Mapping]  # shards, each with the manifest of its folder


class Corpus(NamedTuple):
    """A corpus of a training."""

    name: str
    num_rows: int


def names_of(named: Sequence[Named], files: Sequence[Files]) -> list[str]:
    """A name for each corpus: of its folder, or its globs where that is not enough."""
    folders = []
    for each, shards in zip(named, files, strict=True):
        parents = {path.parent.name for path in shards}
        folders.append(parents.pop() if len(parents) == 1 else each.patterns)
    names = []
    for each, folder in zip(named, folders, strict=True):
        names.append(each.patterns if folders.count(folder) > 1 else folder)
    return names


def refuse_twice(named: Sequence[Named], files: Sequence[Files], flag: str) -> None:
    """Raises InputError: two corpora have a shard in common."""
    owners: dict[Path, Named] = {}
    for each, shards in zip(named, files, strict=True):
        for path in shards:
            owner = owners.setdefault(path.resolve(), each)
            if owner is not each:
                raise InputError(
                    f"{flag} names {path} twice, in {owner.patterns} and {each.patterns}: name it"
                    " once, with the sum of its weights"
                )


def note_of_twice(patterns: str) -> str | None:
    """What to say if one of several globs names shards again that another one has named; they are
    read once."""
    seen = set[Path]()
    several = [*filter(None, map(str.strip, patterns.split(",")))]
    for pattern in several if len(several) > 1 else ():
        shards = {path.resolve() for path in find_shards(pattern)}
        if shards & seen:
            return (
                f"note: --input_file names shards of {pattern} twice, which are read once: to see a"
                f" corpus more often, give all corpora weights, such as {pattern}=2"
            )
        seen |= shards
    return None


@dataclass(frozen=True)
class PretrainingStream(Stream):
    """The tables of a training, in rows of the stream. Without `weights` there is one corpus."""

    corpora: Sequence[Corpus] = ()  # of a mixture
    weights: Table[tuple[int, ...]] | None = None  # of all corpora, as whole numbers
    weights_flag: str = "input_file"  # which has decided them
    masked_lm_prob: Table[float] | None = None

    def order(self, num_rows: int, seed: int) -> Order:
        """The row at each position of the stream."""
        if self.weights is None:
            return BlockOrder(num_rows, seed)
        return Mixture([corpus.num_rows for corpus in self.corpora], self.weights, seed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the corpora of a mixture."""
        return tuple(corpus.name for corpus in self.corpora)

    def fixed(self) -> dict[str, str]:
        tables = {}
        if self.weights:
            values = tuple(":".join(map(str, units)) for units in self.weights.values)
            tables[f"--{self.weights_flag}"] = f"weights {Table(self.weights.starts, values)}"
        if self.masked_lm_prob:
            tables["--masked_lm_prob"] = str(self.masked_lm_prob)
        return tables

    def in_words(self, plan: Plan) -> list[str]:
        lines = []
        if self.weights:
            pieces = []
            for units in self.weights.values:
                shares = zip(self.corpora, units, strict=True)
                shown = [f"{corpus.name} {unit / sum(units):.4g}" for corpus, unit in shares]
                pieces.append(", ".join(shown))
            lines.append(f"mixture: {Table(self.weights.starts, tuple(pieces))}")
            seen = []
            for corpus, times in zip(self.corpora, self.times_seen(plan), strict=True):
                seen.append(f"{corpus.name} {times:.3g} times ({corpus.num_rows:,} rows)")
            lines.append(f"seen: {', '.join(seen)}")
        if self.masked_lm_prob:
            lines.append(f"--masked_lm_prob: {self.masked_lm_prob}")
        return lines

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
        facts: dict[str, Any] = {}
        if self.weights:
            corpora = []
            for corpus, times in zip(self.corpora, self.times_seen(plan), strict=True):
                corpora.append({"name": corpus.name, "rows": corpus.num_rows, "seen": times})
            facts["corpora"] = corpora
            facts["weights"] = rows_and_values(self.weights)
        if self.masked_lm_prob:
            facts["masked_lm_prob"] = rows_and_values(self.masked_lm_prob)
        return facts


def rows_and_values(table: Table) -> list[dict[str, Any]]:
    """A table for JSON."""
    pairs = []
    for row, value in zip(table.starts, table.values, strict=True):
        is_of_all = isinstance(value, tuple)  # the weights of all corpora
        pairs.append({"from_row": row, "value": [*value] if is_of_all else value})
    return pairs


def corpora_of(config: PretrainingConfig) -> list[Corpus] | None:
    """The corpora of a training; None for TFRecord files, whose records nobody has counted yet."""
    files = [find_shards(each.patterns) for each in config.corpora]
    if not all(map(is_arrow, files)):
        return None
    corpora = []
    for name, shards in zip(names_of(config.corpora, files), files, strict=True):
        opened, _ = open_shards(shards)
        corpora.append(Corpus(name, sum(shard.num_rows for shard in opened)))
    return corpora


def stream_of(config: PretrainingConfig, corpora: Sequence[Corpus]) -> PretrainingStream:
    """The tables of a training on these corpora. Raises InputError: a corpus is empty, or never
    seen; a place is not within the training."""
    named, alpha, share = config.corpora, config.mixture_alpha, config.shards.masked_lm_prob
    plan = config.training.plan.resolved()
    places = Places.of(plan, sum(corpus.num_rows for corpus in corpora))
    masks = None
    if isinstance(share, str):
        flag = "masked_lm_prob"
        table = places.table(stages_of(share, flag), flag)
        masks = Table(table.starts, tuple(map(float, table.values)))
    if len(corpora) == 1:
        return PretrainingStream(masked_lm_prob=masks)
    for corpus in corpora:
        if not corpus.num_rows:
            raise InputError(f"--input_file: the corpus {corpus.name} has no rows: leave it out")
    flag = "input_file"
    if alpha is None:
        weights = table_of_weights(named, corpora, places)
    else:
        flag = "mixture_alpha"
        exponents = places.table(stages_of(alpha, flag), flag)
        sizes = [corpus.num_rows for corpus in corpora]
        values = tuple(units_of(shares_by(float(value), sizes)) for value in exponents.values)
        weights = Table(exponents.starts, values)
    return PretrainingStream(corpora, weights, flag, masks)


def last_share(share: str | float) -> float:
    """The last of the values of `--masked_lm_prob`."""
    if not isinstance(share, str):
        return share
    return float(stages_of(share, "masked_lm_prob")[-1].value)


def table_of_weights(
    named: Sequence[Named], corpora: Sequence[Corpus], places: Places
) -> Table[tuple[int, ...]]:
    """The weights of all corpora, from each row on at which one changes."""
    tables = [places.table(each.weight or (), "input_file") for each in named]
    starts = sorted({start for table in tables for start in table.starts})
    values = []
    for start in starts:
        weights = [table.values[table.number_at(start)] for table in tables]
        try:
            values.append(units_of(weights))
        except ValueError as error:
            raise InputError(f"--input_file, from row {start:,} on: {error}") from None
    for corpus, units in zip(corpora, zip(*values, strict=True), strict=True):
        if not any(units):
            raise InputError(f"--input_file: the weight of {corpus.name} is always 0: leave it out")
    return Table(tuple(starts), tuple(values))


def shares_by(alpha: float, sizes: Sequence[int]) -> list[Fraction]:
    """Shares p_i ∝ n_i^alpha (Conneau et al. 2020, section 3.1)."""
    largest = max(sizes)
    powers = [(size / largest) ** alpha for size in sizes]
    total = sum(powers)
    least = Fraction(1, 10**DIGITS)
    return [max(Fraction(f"{power / total:.{DIGITS}f}"), least) for power in powers]
