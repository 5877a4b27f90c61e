"""A table and the columns that a person chose -> Rows: numbers cast once, rows without a number left out by name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from dmviz.datasets._reading import Sheet
from dmviz.datasets._rows import Rows
from dmviz.datasets._store import shown
from dmviz.items import FileProblem, coded


@dataclass(frozen=True)
class Choice:
    """Names as a person writes them; empty `columns` means every column of numbers."""

    columns: str = ""
    label: str = ""
    weight: str = ""

    def names(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.columns.split(",") if part.strip())

    def patterns(self) -> tuple[str, ...]:
        """Patterns of the columns that are needed at all; none: every column."""
        if not self.names():
            return ()
        whole = (re.sub(r"_?\d+$", "", name) for name in self.names())  # x12 is a part of the list column x
        return tuple(p for p in (*self.names(), *whole, self.label.strip(), self.weight.strip()) if p)


def rows_of(sheet: Sheet, choice: Choice, name: str) -> Rows:
    """The rows of a table, with the chosen columns as numbers.

    Raises FileProblem, one sentence, where a chosen column is missing, has text, or leaves no row.
    """
    notes = list(sheet.notes)
    parts = list(_parts(sheet, choice, name, notes))
    if not parts:
        raise FileProblem(f"{name} has no column of numbers; its columns are {_some(sheet.table.column_names)}")
    columns = tuple(title for titles, _ in parts for title in titles)
    x = np.concatenate([block for _, block in parts], axis=1)  # (N, D)
    weight = _weight(sheet, choice.weight.strip(), name)
    keep = _finite(x, columns, weight, choice.weight.strip(), name, notes)
    label, label_names = _label(sheet, choice.label.strip(), keep, name)
    return Rows(
        x=x[keep],
        columns=columns,
        ids=keep + 1,
        origin=name,
        label=label,
        label_names=label_names,
        weight=None if weight is None else weight[keep],
        notes=tuple(notes),
        table=sheet.table if len(keep) == len(x) else sheet.table.take(keep),
    )


Part = tuple[tuple[str, ...], np.ndarray]  # k titles and (N, k) numbers


def _parts(sheet: Sheet, choice: Choice, name: str, notes: list[str]) -> Iterator[Part]:
    have = sheet.table.column_names
    if choice.names():
        for column, titles in _asked(sheet, choice.names(), name):
            every, block = _block(sheet, column, name, notes)
            at = [every.index(title) for title in titles] if titles else list(range(len(every)))
            yield tuple(every[i] for i in at), block[:, at]
        return
    taken = (choice.label.strip(), choice.weight.strip())
    for column in (sheet.matrix,) if sheet.matrix else have:
        if column not in taken and looks_numeric(sheet.table[column]):
            titles, block = _block(sheet, column, name, notes)
            if np.isnan(block).all():
                notes.append(f"column {column!r} left out: it is empty")
            elif len(have) > 1 and _counts_rows(column, block):
                notes.append(f"column {column!r} left out: it only numbers the rows")
            else:
                yield titles, block


def _asked(sheet: Sheet, names: tuple[str, ...], name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Columns of the table for the names asked for, and, of a column of lists, which of its parts."""
    have, used = sheet.table.column_names, set()
    for asked in names:
        found: list[tuple[str, tuple[str, ...]]] = [(c, ()) for c in have if c == asked]
        found = found or [(c, (asked,)) for c in have if _grows(asked, c) and asked in _titles(sheet, c, name)]
        found = found or [(c, ()) for c in have if fnmatchcase(c, asked)]
        if not found:
            raise FileProblem(f"{name} has no column {shown(asked)!r}; its columns are {_some(have)}")
        for one in found:
            if one not in used:
                used.add(one)
                yield one


def _grows(title: str, column: str) -> bool:
    """Whether `title` may be one part of the list column `column`: x12 of x, embedding_3 of embedding."""
    return title.startswith(column) and title[len(column) :].lstrip("_").isdigit()


def _titles(sheet: Sheet, column: str, name: str) -> tuple[str, ...]:
    return _block(sheet, column, name, [])[0] if _is_listed(sheet.table[column]) else ()


def _block(sheet: Sheet, column: str, name: str, notes: list[str]) -> Part:
    values = sheet.table[column]
    if _is_listed(values):
        block = _list_numbers(values, column, name)
        gap = "" if len(column) == 1 else "_"
        return tuple(f"{column}{gap}{i}" for i in range(block.shape[1])), block
    numbers = _numbers(values, column, name)
    if (was := _foreign_type(values)) and np.isfinite(numbers).any():
        notes.append(f"column {column!r} was {was} and is cast to numbers")
    return (column,), numbers[:, None]


# ---- what a column is


def _is_listed(values: Any) -> bool:
    import pyarrow.types as pt

    kind = values.type
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return True
    if not (pt.is_string(kind) or pt.is_large_string(kind)):
        return False
    first = next((v for v in (cell.as_py() for cell in values.slice(0, 50)) if v and v.strip()), "")
    return first.strip().startswith("[") and first.strip().endswith("]")


def looks_numeric(values: Any) -> bool:
    import pyarrow as pa
    import pyarrow.types as pt

    kind = values.type
    if _is_listed(values):
        inner = getattr(kind, "value_type", pa.float64())
        return bool(pt.is_integer(inner) or pt.is_floating(inner) or pt.is_boolean(inner))
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return True
    return _text(values) is not None and _first_text(_text(values)) is None


def _foreign_type(values: Any) -> str:
    import pyarrow.types as pt

    kind = values.type
    if pt.is_boolean(kind):
        return "true or false"
    if pt.is_floating(kind) or pt.is_integer(kind) or pt.is_null(kind):
        return "float16" if pt.is_float16(kind) else ""
    return "decimal" if pt.is_decimal(kind) else "text"


def _text(values: Any) -> Any:
    """The column as one array of strings, or None where it is of another kind."""
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pt.is_string(values.type) or pt.is_large_string(values.type) or pt.is_string_view(values.type):
        return values.cast(pa.large_string())
    return None


def _first_text(values: Any) -> tuple[int, str] | None:
    """Place and content of the first cell that is not a number, if there is one."""
    for row, cell in enumerate(values.to_pylist()):
        if cell is not None and _as_float(cell) is None:
            return row, cell
    return None


def _as_float(cell: str) -> float | None:
    cell = cell.strip()
    if not cell:
        return float("nan")
    try:
        return None if "_" in cell else float(cell)  # Python alone takes 1_000 for a number
    except ValueError:
        return None


# ---- numbers


def _numbers(values: Any, column: str, name: str) -> np.ndarray:
    """(N,) float64, empty cells as NaN."""
    import pyarrow as pa
    import pyarrow.types as pt

    kind = values.type
    if (text := _text(values)) is not None:
        if (bad := _first_text(text)) is not None:
            raise FileProblem(
                f"{name}: column {column!r} has text in row {bad[0] + 1:,} ({shown(bad[1])!r}); the columns chosen "
                f"must be numbers. Leave the column out or fill the cell."
            )
        cells = text.to_pylist()
        return np.array([np.nan if cell is None else _as_float(cell) for cell in cells], dtype=np.float64)
    if pt.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pt.is_boolean(kind):
        values = values.cast(pa.int8())
    elif not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind)):
        raise FileProblem(f"{name}: column {column!r} holds {kind}, and the columns chosen must be numbers")
    return np.array(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _list_numbers(values: Any, column: str, name: str) -> np.ndarray:
    """(N, k) float64 of a column of lists, or of their text; rows without a list become NaN."""
    import pyarrow as pa
    import pyarrow.types as pt

    kind = values.type
    if not hasattr(kind, "value_type"):
        values = pa.chunked_array([pa.array(_parsed_lists(values, column, name), pa.list_(pa.float64()))])
    elif not any(check(kind.value_type) for check in (pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_null)):
        raise FileProblem(f"{name}: column {column!r} has lists of {kind.value_type}, and they must be of numbers")
    whole = values.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    width = np.asarray(whole.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    there = width > 0
    if not there.any():
        return np.full((len(width), 1), np.nan)
    first = int(np.flatnonzero(there)[0])
    if (other := np.flatnonzero(there & (width != width[first]))).size:
        raise FileProblem(
            f"{name}: column {column!r} must have lists of one length, got {width[first]:,} numbers in row "
            f"{first + 1:,} and {width[other[0]]:,} in row {other[0] + 1:,}"
        )
    flat = whole.filter(pa.array(there)).flatten()
    flat = (flat.cast(pa.int8()) if pt.is_boolean(flat.type) else flat).cast(pa.float64(), safe=False)
    out = np.full((len(width), int(width[first])), np.nan)
    out[there] = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, int(width[first]))
    return out


def _parsed_lists(values: Any, column: str, name: str) -> list[list[float] | None]:
    rows: list[list[float] | None] = []
    for number, cell in enumerate(values.to_pylist(), 1):
        inner = "" if cell is None else cell.strip()
        numbers = [_as_float(part) for part in inner.strip("[]").replace(",", " ").split()]
        if any(value is None for value in numbers):
            raise FileProblem(
                f"{name}: column {column!r} has text in the list of row {number:,} ({shown(cell)}); it must be numbers"
            )
        rows.append([value for value in numbers if value is not None] or None)
    return rows


def _counts_rows(column: str, block: np.ndarray) -> bool:
    """Whether a column is the row number that tables carry along: 0, 1, 2, ... under a name such as index."""
    if column.lower() not in ("index", "id", "row", "unnamed: 0", "column 1", "__index_level_0__"):
        return False
    return len(block) > 1 and bool(np.all(np.diff(block[:, 0]) == 1) and block[0, 0] in (0, 1))


# ---- rows


def _finite(
    x: np.ndarray, columns: tuple[str, ...], weight: np.ndarray | None, weight_name: str, name: str, notes: list[str]
) -> np.ndarray:
    """Places of the rows that have all their numbers; `notes` says which others there were, and why."""
    good = np.isfinite(x)
    if weight is not None:
        good, columns = np.concatenate([good, np.isfinite(weight)[:, None]], 1), (*columns, weight_name)
    left_out = np.flatnonzero(~good.all(1))
    if len(left_out) == len(good):
        blame = columns[int((~good).sum(0).argmax())]
        raise FileProblem(
            f"{name}: each of its {len(good):,} rows has an empty, NaN or infinite cell, most of them in column "
            f"{shown(blame)!r}; choose other columns or fill the cells"
        )
    blamed = (~good[left_out]).argmax(1)  # the first column at fault
    for column in list(dict.fromkeys(blamed.tolist()))[:5]:
        rows = left_out[blamed == column]
        cells = x[rows, column] if weight is None or column < x.shape[1] else weight[rows]
        some = ", ".join(f"{row + 1:,}" for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        plural = "row" if len(rows) == 1 else "rows"
        notes.append(f"{len(rows):,} {plural} left out: {_what(cells)} in {shown(columns[column])!r} ({plural} {some})")
    if len(set(blamed.tolist())) > 5:
        notes.append(f"{len(left_out):,} rows are left out in all")
    return np.flatnonzero(good.all(1))


def _what(cells: np.ndarray) -> str:
    kinds = [word for word, there in (("NaN or empty", np.isnan(cells)), ("infinite", np.isinf(cells))) if there.any()]
    return " or ".join(kinds)


def _weight(sheet: Sheet, column: str, name: str) -> np.ndarray | None:
    if not column:
        return None
    if column not in sheet.table.column_names:
        raise FileProblem(f"{name} has no column {shown(column)!r} for weights; {_have(sheet, column)}")
    weight = _numbers(sheet.table[column], column, name)
    if (bad := np.flatnonzero(weight < 0)).size:
        raise FileProblem(
            f"{name}: weights must be at least 0, got {weight[bad[0]]:g} in column {column!r}, row {bad[0] + 1:,}"
        )
    if not (weight[np.isfinite(weight)] > 0).any():
        raise FileProblem(f"{name}: weights in column {column!r} are all 0; at least one must be above 0")
    return weight


def _label(sheet: Sheet, column: str, keep: np.ndarray, name: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if not column:
        return None, ()
    if column not in sheet.table.column_names:
        raise FileProblem(f"{name} has no column {shown(column)!r} for labels; {_have(sheet, column)}")
    cells = sheet.table[column].take(keep).to_pylist()
    plain = [None if cell is None or cell == "" else cell if _is_plain(cell) else str(cell) for cell in cells]
    codes, names = coded(plain)
    return codes.numpy(), tuple(shown(title) for title in names)


def _is_plain(cell: object) -> bool:
    return isinstance(cell, (str, int, float, bool))


def _have(sheet: Sheet, missing: str) -> str:
    why = next((f" ({note})" for note in sheet.notes if repr(missing) in note), "")
    return f"its columns are {_some(sheet.table.column_names)}{why}"


def _some(names: list[str]) -> str:
    return ", ".join(shown(name) for name in names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
