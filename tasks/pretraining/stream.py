"""What of a pretraining changes along its stream of rows: the weights of several corpora, and the
share of the tokens that are masked. Without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from bert.corpus.shards import find_shards, is_arrow, open_shards
from distributed.mixture import units_of
from distributed.plan import Plan
from distributed.stages import Places, Table, stages_of
from ringbase.errors import InputError
from tasks.pretraining.settings import PretrainingConfig
from tasks.runs.naming import Named
from tasks.runs.resolve.mixture import Corpus, MixtureStream, rows_and_values, table_of_weights

DIGITS = 9  # of shares by a temperature, so that all machines find the same ones
Files = Mapping[Path, Mapping]  # shards, each with the manifest of its folder


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
class PretrainingStream(MixtureStream):
    """The weights of corpora, and the shares of the tokens that are masked, in rows of the
    stream."""

    masked_lm_prob: Table[float] | None = None

    def fixed(self) -> dict[str, str]:
        tables = super().fixed()
        if self.masked_lm_prob:
            tables["--masked_lm_prob"] = str(self.masked_lm_prob)
        return tables

    def in_words(self, plan: Plan) -> list[str]:
        lines = super().in_words(plan)
        if self.masked_lm_prob:
            lines.append(f"--masked_lm_prob: {self.masked_lm_prob}")
        return lines

    def facts(self, plan: Plan) -> dict[str, Any]:
        facts = super().facts(plan)
        if self.masked_lm_prob:
            facts["masked_lm_prob"] = rows_and_values(self.masked_lm_prob)
        return facts


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
        weights = table_of_weights(named, corpora, places, flag)
    else:
        flag = "mixture_alpha"
        exponents = places.table(stages_of(alpha, flag), flag)
        sizes = [corpus.num_rows for corpus in corpora]
        values = tuple(units_of(shares_by(float(value), sizes)) for value in exponents.values)
        weights = Table(exponents.starts, values)
    return PretrainingStream(corpora, weights, flag, masked_lm_prob=masks)


def last_share(share: str | float) -> float:
    """The last of the values of `--masked_lm_prob`."""
    if not isinstance(share, str):
        return share
    return float(stages_of(share, "masked_lm_prob")[-1].value)


def shares_by(alpha: float, sizes: Sequence[int]) -> list[Fraction]:
    """Shares p_i ∝ n_i^alpha (Conneau et al. 2020, section 3.1)."""
    largest = max(sizes)
    powers = [(size / largest) ** alpha for size in sizes]
    total = sum(powers)
    least = Fraction(1, 10**DIGITS)
    return [max(Fraction(f"{power / total:.{DIGITS}f}"), least) for power in powers]
