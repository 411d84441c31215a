"""How ranks agree: the same facts on all, and the failure of rank 0 on the others."""

from collections.abc import Mapping, Sequence

from ringbase.errors import InputError


class FirstRankError(Exception):
    """`World.on_first` failed on rank 0, which reports it and ends the job."""


def check_agreement(everyone: Sequence[Mapping[str, str]]) -> None:
    """Raises InputError for the first fact (name -> value) that differs among the ranks, with its values."""
    for name in dict.fromkeys(name for facts_of_rank in everyone for name in facts_of_rank):
        values = [facts_of_rank.get(name, "nothing") for facts_of_rank in everyone]
        if len(set(values)) > 1:
            differences = "; ".join(
                f"rank{'s' if values.count(value) > 1 else ''} "
                f"{','.join(str(rank) for rank, v in enumerate(values) if v == value)}: {value}"
                for value in dict.fromkeys(values)
            )
            raise InputError(f"the ranks disagree about {name}: {differences}")
