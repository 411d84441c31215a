"""Searches in the form of BEIR (Thakur et al. 2021): a folder with `corpus.jsonl`,
`queries.jsonl` and in `qrels/` a table for each set, which says how right a document is for a
query."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ringbase.errors import InputError
from tasks.runs.rows.tables import Table, number_in, open_table

COLUMNS = QUERY, DOCUMENT, SCORE = "query-id", "corpus-id", "score"
QUERIES, CORPUS = "queries.jsonl", "corpus.jsonl"


class Judged(NamedTuple):
    """What pairs of queries and documents lack of judgements: of each pair the numbers of its query
    and of its document in the corpus, and its gain; of each query the number of the document that
    it may not find, or -1."""

    queries: Sequence[int]
    documents: Sequence[int]
    gains: Sequence[float]
    own: Sequence[int]


def are_judgements(table: Table) -> bool:
    """Whether a table is one of `qrels/`."""
    return set(COLUMNS) <= {*table.header}


@dataclass(frozen=True)
class JudgedSearch:
    """Pairs of a query and a document that is right for it, and all documents by their ids."""

    queries: Mapping[str, str]  # those with a right document
    documents: Mapping[str, str]
    gains: Mapping[str, Mapping[str, float]]  # of each query's right documents
    counts: Mapping[str, int]

    def rows(self) -> Iterator[tuple[str, ...]]:
        for query, gains in self.gains.items():
            for document in gains:
                yield self.queries[query], self.documents[document]

    def judged(self) -> Judged:
        number_of = {name: number for number, name in enumerate(self.documents)}
        queries, documents, gains = [], [], []
        for query, gains_of_query in enumerate(self.gains.values()):
            for document, gain in gains_of_query.items():
                queries.append(query)
                documents.append(number_of[document])
                gains.append(gain)
        # BEIR's searches leave out the document that is the query itself
        own = [number_of.get(name, -1) for name in self.gains]
        return Judged(queries, documents, gains, own)


def read_judgements(
    table: Table, file: Path, where: str, most_queries: int | None, reads_all: bool
) -> JudgedSearch:
    """The judgements in a table, which lies in the file, with the texts of its folder: those of the
    first so many queries, and all documents or only the right ones. Raises InputError, with the
    place."""
    counts = Counter[str]()
    gains: dict[str, dict[str, float]] = {}
    for place, row in table.rows:
        gain = number_in(row[SCORE])
        if gain is None:
            raise InputError(f"{where}: {place}: {SCORE} must be a number, got {row[SCORE]!r:.80}")
        if gain <= 0:
            counts["judgements that a document is wrong, which are not read"] += 1
            continue
        gains.setdefault(str(row[QUERY]), {})[str(row[DOCUMENT])] = gain
    gains = dict([*gains.items()][:most_queries])
    wanted = {document for of_query in gains.values() for document in of_query}
    folder = file.parent.parent
    queries = _texts_in(folder / QUERIES, where, gains.keys())
    documents = _texts_in(folder / CORPUS, where, wanted, reads_all)
    counts["documents without a text"] = sum(not text for text in documents.values())
    return JudgedSearch(queries, documents, gains, dict(+counts))


def _texts_in(file: Path, where: str, wanted: Set[str], reads_all: bool = False) -> dict[str, str]:
    """The texts of a file by their ids, the wanted ones or all, with their titles before them."""
    if not file.is_file():
        raise InputError(
            f"{where}: a table of judgements needs {QUERIES} and {CORPUS} in the folder around its"
            f" own, and there is no {file}"
        )
    table = open_table(file, f"{where}: {file}", ("_id", "title", "text"))
    for column in ("_id", "text"):
        table.find(column)
    texts = {}
    for place, row in table.rows:
        name = str(row.get("_id"))
        if not (reads_all or name in wanted):
            continue
        parts = [row.get(column) or "" for column in ("title", "text")]
        if not all(isinstance(part, str) for part in parts):
            raise InputError(f"{table.where}: {place}: title and text must be texts")
        if name in texts:
            raise InputError(f"{table.where}: {place}: the _id {name} occurs twice")
        texts[name] = " ".join(parts).strip()
    missing = sorted(wanted - texts.keys())
    if missing:
        raise InputError(
            f"{where}: {file} has no _id {missing[0]}, which is judged"
            f" ({len(missing):,} of {len(wanted):,} are missing)"
        )
    return texts
