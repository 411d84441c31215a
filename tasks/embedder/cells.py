"""Texts and scores in the cells of tables."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ringbase.errors import InputError
from tasks.runs.rows.tables import number_in


def texts_in(
    row: Mapping, name: str, where: str, counts: Counter[str], takes_list: bool = True
) -> list[str]:
    """The texts in a cell, which holds one, a list of them, or nothing. Empty ones are left out;
    those in lists are counted."""
    value = row.get(name)
    is_list = isinstance(value, list) and takes_list
    values = value if is_list else [value]
    texts = []
    for each in values or ():
        if each is not None and not isinstance(each, str):
            kinds = "a text or a list of texts" if takes_list else "a text"
            raise InputError(f"{where}: {name} must be {kinds}, got {value!r:.80}")
        if each and each.strip():
            texts.append(each)
        elif is_list:
            counts[f"empty texts in lists of {name} left out"] += 1
    return texts


def scored_texts(
    row: Mapping, names: Sequence[str], score_name: str, where: str
) -> list[tuple[str, float]]:
    """The texts of cells and their scores, without empty texts."""
    values = [value for name in names for value in listed(row.get(name))]
    scores = listed(row.get(score_name))
    numbers = [*map(number_in, scores)]
    if len(values) != len(numbers) or None in numbers:
        raise InputError(
            f"{where}: {score_name} must have a number for each of the {len(values)} texts of"
            f" {', '.join(names)}, got {row.get(score_name)!r:.80}"
        )
    found = []
    for value, number in zip(values, numbers, strict=True):
        assert number is not None
        texts = texts_in({names[0]: value}, names[0], where, Counter(), takes_list=False)
        found += [(text, number) for text in texts]
    return found


def listed(cell: object) -> list:
    """A cell as a list: of nothing an empty one."""
    if isinstance(cell, list):
        return cell
    return [] if cell is None else [cell]


def score_in(value: object, name: str, scale: float, where: str) -> float:
    number = number_in(value)
    if number is None or abs(number) > scale:
        raise InputError(
            f"{where}: {name} must be a number from -{scale:g} to {scale:g} (--score_scale), got"
            f" {value!r:.80}"
        )
    return number / scale
