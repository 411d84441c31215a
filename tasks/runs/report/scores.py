"""The scores of runs: which are shown large, which run is the best, and a table of all."""

import math
import statistics
from collections.abc import Mapping, Sequence

from tasks.runs.report.files import NO_SCORES, RunFiles, is_score
from tasks.runs.report.sections import Best, table

MOST_TILES = 4
Scores = Mapping[str, float]


def tiles_of(scores: Scores) -> list[str]:
    """The names of the main scores, which a task gives first, and of losses if there is room."""
    return sorted(scores, key=is_score, reverse=True)[:MOST_TILES]


def grouped(places: Sequence[RunFiles]) -> dict[str, list[RunFiles]]:
    """Runs by name; the seeds of a run are together."""
    groups: dict[str, list[RunFiles]] = {}
    for place in places:
        groups.setdefault(place.group or place.name, []).append(place)
    return groups


def best_first(places: Sequence[RunFiles]) -> tuple[Sequence[RunFiles], str | None]:
    """Runs by the score that chooses the best model, and its name; the seeds of a run by their
    mean. In their order and without a name if there is nothing to compare."""
    groups = grouped(places)
    names = (place.compared_by(place.scores or {}) for place in places)
    name = next(filter(None, names), None)
    if len(groups) == 1 or name is None:
        return places, None

    def worth(members: Sequence[RunFiles]) -> float:
        value = means(members).get(name, math.nan)
        return value if math.isfinite(value) else -math.inf

    ordered = sorted(groups.values(), key=worth, reverse=True)
    return [place for members in ordered for place in members], name


def score_table(places: Sequence[RunFiles]) -> str:
    """A row for each score; columns for the first evaluation of a single run, for each run, for the
    mean of several seeds. Of a single run only what its tiles do not show."""
    columns: dict[str, Mapping[str, str]] = {}
    hidden: Sequence[str] = NO_SCORES
    if len(places) == 1:
        scores, evaluations = places[0].scores or {}, places[0].evaluations
        first = evaluations[0] if len(evaluations) > 1 else {}
        if any(first[name] != scores[name] for name in first.keys() & scores.keys()):
            columns[f"after step {first['step']:,.0f}"] = texts(first)
        else:
            hidden = [*NO_SCORES, *tiles_of(scores)]
    for group, members in grouped(places).items():
        for place in members:
            columns[place.name] = texts(place.scores or {})
        if len(members) > 1:
            columns[mean_column(group)] = with_deviations(members)

    running = {place.name for place in places if place.scores is None}
    compared, rows = competitors(places), []
    for name in dict.fromkeys(name for cells in columns.values() for name in cells):
        if name in hidden:
            continue
        best = best_of(name, compared)
        row: list[str] = [name]
        for column, cells in columns.items():
            text = cells.get(name, "not yet" if column in running else "")
            row.append(Best(text) if column in best else text)
        rows.append(row)
    if not rows:
        return "<p>No scores yet.</p>" if running else ""
    return f"<h2>Scores</h2>{table(['', *columns], rows)}"


def competitors(places: Sequence[RunFiles]) -> dict[str, Scores]:
    """The scores that are compared, by their column: means, where a run has several seeds, but of
    a single run its seeds."""
    groups = grouped(places)
    if len(groups) == 1:
        return {place.name: place.scores or {} for place in places}
    compared = dict[str, Scores]()
    for group, members in groups.items():
        column = members[0].name if len(members) == 1 else mean_column(group)
        compared[column] = means(members)
    return compared


def best_of(name: str, compared: Mapping[str, Scores]) -> set[str]:
    """The columns with the best value: the highest score or the lowest loss, if some differ."""
    values = {column: scores.get(name, math.nan) for column, scores in compared.items()}
    known = {value for value in values.values() if math.isfinite(value)}
    is_loss = name.endswith("loss")
    if len(known) < 2 or not (is_loss or is_score(name)):
        return set()
    best = min(known) if is_loss else max(known)
    return {column for column, value in values.items() if value == best}


def mean_column(group: str) -> str:
    return f"{group}: mean ± deviation"


def columns_of(members: Sequence[RunFiles]) -> dict[str, list[float]]:
    """The values of each score that all have which have any."""
    measured = [member.scores for member in members if member.scores]
    shared = [name for name in (measured or [{}])[0] if all(name in each for each in measured)]
    return {name: [scores[name] for scores in measured] for name in shared}


def means(members: Sequence[RunFiles]) -> dict[str, float]:
    return {name: statistics.fmean(values) for name, values in columns_of(members).items()}


def with_deviations(members: Sequence[RunFiles]) -> dict[str, str]:
    """Means and standard deviations, if several runs have scores."""
    cells = texts(means(members))
    for name, values in columns_of(members).items():
        if len(values) == 1:
            return {}
        cells[name] += f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{statistics.stdev(values):.2g}"
    return cells


def texts(scores: Scores) -> dict[str, str]:
    return {name: shown(name, scores) for name in scores}


def shown(name: str, scores: Scores) -> str:
    """A value as text: counts are whole, percentages, as SQuAD's scores are, have two decimals,
    others four."""
    if name.endswith("total"):
        return f"{scores[name]:,.0f}"
    is_percent = is_score(name) and any(
        value > 1 for other, value in scores.items() if is_score(other)
    )
    return f"{scores[name]:.2f}" if is_percent else f"{scores[name]:.4f}"
