from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from torch import Generator

from dmviz.datasets._choosing import Choice, looks_numeric, rows_of
from dmviz.datasets._reading import read
from dmviz.datasets._rows import Rows, items_of, principal, standardised
from dmviz.datasets._store import located
from dmviz.items import Items
from dmviz.params import Help, Range, entry

_EXAMPLE = Path(__file__).parents[2] / "assets" / "data" / "example.csv"


@entry
class File:
    r"""Your own table of numbers: each row becomes a particle, each chosen column a dimension.

    Reads csv, tsv, parquet, npy, npz (without pickles), json lines and json, known by their content. Rows with an
    empty, NaN or infinite cell in a chosen column are left out, counted and named. Columns may be given by name, by a
    pattern such as `x*`, or as one column of lists. At most 200 MB and 20,000,000 cells are read. Standardised, each
    column has mean 0 and standard deviation 1: most shapes live within [-3, 3]. Without a path a small example is
    shown.

    >>> from dmviz.cloud import seeded
    >>> File(columns="height, width", label="kind").load(10, seeded(0)).label_names
    ('leaf', 'needle', 'pod')
    """

    title: ClassVar[str] = "Own file"
    source: ClassVar[tuple[str, ...]] = ()

    path: Annotated[str, Help("a file on this machine, or an upload; empty: an example", most=1000)] = ""
    columns: Annotated[str, Help("columns to use, such as a, b or x*; empty: every column of numbers")] = ""
    label: Annotated[str, Help("column that names the class of a row; empty: none", most=200)] = ""
    weight: Annotated[str, Help("column of weights, at least 0; empty: all rows alike", most=200)] = ""
    standardise: Annotated[bool, Help("give every column mean 0 and standard deviation 1")] = True
    components: Annotated[int, Range(0, 64, help="principal components to keep; 0: the columns as they are")] = 0

    def load(self, limit: int, rng: Generator) -> Items:
        """At most `limit` rows. Raises FileProblem, one sentence, where the file cannot be used."""
        where, name = located(self.path) if self.path else (_EXAMPLE, _EXAMPLE.name)
        stat = where.stat()
        place = _Place(where, name, stat.st_mtime_ns, stat.st_size)
        choice = Choice(self.columns, self.label, self.weight)
        return items_of(_prepared(place, choice, self.standardise, self.components), limit, rng)


class _Place(NamedTuple):
    """A file as it is now: an edited one is another key of the caches below, and is read again."""

    path: Path
    name: str
    changed: int
    size: int


@lru_cache(maxsize=2)
def _rows(place: _Place, choice: Choice) -> Rows:
    return rows_of(read(place.path, place.name, choice.patterns()), choice, place.name)


@lru_cache(maxsize=4)
def _prepared(place: _Place, choice: Choice, standardise: bool, components: int) -> Rows:
    rows = _rows(place, choice)
    return principal(standardised(rows) if standardise else rows, components)


@dataclass(frozen=True)
class Described:
    """What a file has, for the widgets that choose from it."""

    name: str
    rows: int
    columns: tuple[str, ...]  # those that `columns`, `label` and `weight` may name
    numeric: tuple[str, ...]  # those of them that hold numbers, or lists of numbers
    notes: tuple[str, ...]


def describe(path: str) -> Described:
    """The columns of a file or an upload. Raises FileProblem, one sentence, where it cannot be read."""
    where, name = located(path) if path else (_EXAMPLE, _EXAMPLE.name)
    stat = where.stat()
    return _described(_Place(where, name, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=16)
def _described(place: _Place) -> Described:
    sheet = read(place.path, place.name)
    columns = tuple(sheet.table.column_names)
    numeric = tuple(column for column in columns if looks_numeric(sheet.table[column]))
    return Described(place.name, sheet.table.num_rows, columns, numeric, sheet.notes)
