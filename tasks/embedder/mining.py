"""Hard negatives: of each query the nearest documents that are not its positives, by the rules of
sentence-transformers' `mine_hard_negatives`."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distributed.nearest import nearest
from distributed.run import Run
from distributed.world import World
from tasks.embedder.scoring import Search
from tasks.embedder.settings import MiningSettings

# where a negative may be refused, as many times more candidates
CANDIDATES = 10


class Mining(NamedTuple):
    """Which negatives are taken, and the seed of chance."""

    settings: MiningSettings
    seed: int


class Mined(NamedTuple):
    """What was found for a query."""

    query: str
    positives: Sequence[str]
    negatives: Sequence[str]
    positive_cosines: Sequence[float]
    negative_cosines: Sequence[float]

    @property
    def row(self) -> dict:
        """A row of a file to train on."""
        return {
            "query": self.query,
            "pos": self.positives,
            "neg": self.negatives,
            "pos_scores": self.positive_cosines,
            "neg_scores": self.negative_cosines,
        }


def mine(search: Search | None, mining: Mining, world: World) -> list[Mined] | None:
    """The negatives of each query of a search, which rank 0 has and which gets them; None on other
    ranks. All ranks search together."""
    settings = mining.settings
    queries = documents = None
    last = most = 0
    if search:
        queries, documents = search.query_units, search.document_units
        most_positives = max(map(len, search.positives_of_queries))
        last = last_candidate(settings, most_positives)
        most = last + most_positives + 1  # a query's own text may be among them
    most = world.broadcast(most)
    found = nearest(world, queries, documents, most)
    if search is None or found is None:
        return None
    mined = []
    for number, (places, cosines) in enumerate(zip(*found, strict=True)):
        positives = search.positives_of_queries[number]
        positive_cosines = search.cosines_of_positives(number)
        is_wrong = ~np.isin(places, [*positives, search.own_of_queries[number]])
        is_wrong &= is_far(cosines, positive_cosines.min(), settings)
        candidates = np.flatnonzero(is_wrong)[:last][settings.range_min :]
        chosen = candidates[: settings.num_negatives]
        if settings.sampling_strategy == "random":
            chance = np.random.default_rng([mining.seed, number])
            size = min(len(candidates), settings.num_negatives or 0)
            chosen = np.sort(chance.choice(candidates, size, replace=False))
        mined.append(
            Mined(
                search.query_texts[number],
                [search.document_texts[place] for place in positives],
                [search.document_texts[place] for place in places[chosen]],
                positive_cosines.tolist(),
                cosines[chosen].tolist(),
            )
        )
    return mined


def last_candidate(settings: MiningSettings, most_positives: int) -> int:
    """How many documents, besides the positives, a negative may be one of."""
    if settings.range_max is not None:
        return settings.range_max
    number = settings.num_negatives or 0
    if settings.refuses_near_ones:
        number *= CANDIDATES
    return settings.range_min + number + most_positives


def is_far(cosines: np.ndarray, of_positive: float, settings: MiningSettings) -> np.ndarray:
    """Which candidates are far enough from the query, whose positives have at least the cosine
    `of_positive`."""
    is_far = np.ones(len(cosines), bool)
    if settings.absolute_margin is not None:
        is_far &= cosines + settings.absolute_margin <= of_positive
    if settings.relative_margin is not None:
        is_far &= cosines <= of_positive - abs(of_positive) * settings.relative_margin
    if settings.max_score is not None:
        is_far &= cosines <= settings.max_score
    if settings.min_score is not None:
        is_far &= cosines >= settings.min_score
    return is_far


def write_mined(run: Run, mined: Sequence[Mined], mining: Mining) -> None:
    """Writes mined.jsonl, and says what is in it. On rank 0."""
    wanted = mining.settings.num_negatives or 0
    number = sum(len(each.negatives) for each in mined)
    fewer = sum(len(each.negatives) < wanted for each in mined)
    say = f"mined.jsonl: {number:,} hard negatives of {len(mined):,} queries"
    if fewer:
        say += f", of which {fewer:,} have fewer than {wanted}"
    if number:
        positive = np.concatenate([each.positive_cosines for each in mined]).mean()
        negative = np.concatenate([each.negative_cosines for each in mined]).mean()
        say += f"; mean cosine of positives {positive:.3f}, of negatives {negative:.3f}"
    run.say(say)
    lines = (json.dumps(each.row, ensure_ascii=False) + "\n" for each in mined)
    run.write("mined.jsonl", "".join(lines))
