"""Rows of numbers -> Items: standardised, turned to their principal components, and cut to a number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dmviz.datasets._store import shown
from dmviz.items import FileProblem, Items

_LARGEST = 1e15  # above, the squares that every distance needs come near the end of float32


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows that can be used, in float64, before any is left out for want of room."""

    x: np.ndarray  # (N, D) float64, finite
    columns: tuple[str, ...]
    ids: np.ndarray  # (N,) int64
    origin: str
    label: np.ndarray | None = None  # (N,) int64
    label_names: tuple[str, ...] = ()
    weight: np.ndarray | None = None  # (N,) float64, at least 0
    notes: tuple[str, ...] = ()
    table: Any = None


def standardised(rows: Rows) -> Rows:
    """Every column with mean 0 and standard deviation 1; a constant column becomes 0, and a note says so."""
    # First by a power of two near the column's size, so that squares of 1e300 stay finite.
    size = np.abs(rows.x).max(0, initial=0.0)
    x = rows.x / np.where(size > 0, np.exp2(np.ceil(np.log2(np.maximum(size, 1e-300)))), 1.0)
    x = x - x.mean(0)
    deviation = x.std(0)
    flat = deviation <= 1e-12
    notes = rows.notes
    if flat.any():
        notes = (*notes, f"{_listed(rows.columns, flat)} the same in every row, and shown as 0")
    return replace(rows, x=np.where(flat, 0.0, x / np.where(flat, 1.0, deviation)), notes=notes)


def principal(rows: Rows, components: int) -> Rows:
    """The first principal components, each pointing to where its largest entry is positive.

    The note says how much of the variance they keep. Fewer come where the rows have fewer columns.
    """
    if components == 0 or components >= rows.x.shape[1]:
        return rows
    center = rows.x.mean(0)
    size, way = np.linalg.eigh((rows.x - center).T @ (rows.x - center))
    way = way[:, ::-1][:, :components]
    way = way * np.where(way[np.abs(way).argmax(0), np.arange(components)] < 0, -1.0, 1.0)
    kept = 100 * size[::-1][:components].sum() / max(size.sum(), 1e-300)
    note = f"{components} principal components of {rows.x.shape[1]} columns keep {kept:.0f} % of the variance"
    names = tuple(f"PC {i + 1}" for i in range(components))
    return replace(rows, x=(rows.x - center) @ way, columns=names, notes=(*rows.notes, note))


def of_classes(rows: Rows, classes: str, owner: str) -> Rows:
    """The rows of some classes, given by name as in `3,5`; all where the text is empty."""
    asked = tuple(part.strip() for part in classes.split(",") if part.strip())
    if not asked or rows.label is None:
        return rows
    unknown = [name for name in asked if name not in rows.label_names]
    if unknown:
        raise ValueError(f"{owner}: no class {unknown[0]!r}; there are {', '.join(rows.label_names)}")
    keep = np.isin(rows.label, [rows.label_names.index(name) for name in asked])
    return compact(chosen_rows(rows, np.flatnonzero(keep)))


def chosen_rows(rows: Rows, at: np.ndarray) -> Rows:
    """The rows at some places, with all that belongs to them."""

    def cut(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[at]

    table = None if rows.table is None else rows.table.take(at)
    return replace(rows, x=rows.x[at], ids=rows.ids[at], label=cut(rows.label), weight=cut(rows.weight), table=table)


def compact(rows: Rows) -> Rows:
    """Codes without gaps: classes that no row has any more are dropped from the names."""
    if rows.label is None:
        return rows
    present, label = np.unique(rows.label, return_inverse=True)
    return replace(rows, label=label.astype(np.int64), label_names=tuple(rows.label_names[i] for i in present))


def items_of(rows: Rows, limit: int, rng: Generator) -> Items:
    """At most `limit` of the rows as Items, classes in proportion; the note says how many of how many.

    Raises FileProblem where a number is too large for float32.
    """
    size = np.abs(rows.x).max(0, initial=0.0)
    if (size > _LARGEST).any():
        worst = int(size.argmax())
        raise FileProblem(
            f"{rows.origin}: column {shown(rows.columns[worst])!r} holds numbers as large as {size[worst]:.3g}, and "
            f"float32 distances end at {_LARGEST:g}; standardise the columns or change the unit"
        )
    total = len(rows.x)
    if total > limit:
        rows = chosen_rows(rows, _sampled(rows, limit, rng))
        how = "drawn by the seed" + ("" if rows.label is None else ", classes in proportion")
        rows = replace(rows, notes=(*rows.notes, f"{limit:,} of {total:,} rows are used, {how}"))
    return Items(
        x=torch.from_numpy(rows.x.astype(np.float32)),
        columns=rows.columns,
        ids=torch.from_numpy(rows.ids.copy()),
        origin=rows.origin,
        label=None if rows.label is None else torch.from_numpy(rows.label.copy()),
        label_names=rows.label_names,
        weight=None if rows.weight is None else _shares(rows),
        notes=(*rows.notes, *_fine_notes(rows)),
        table=rows.table,
    )


def _sampled(rows: Rows, limit: int, rng: Generator) -> np.ndarray:
    """(limit,) places in order: shuffled, sorted by class, and every (N / limit)-th taken."""
    order = torch.randperm(len(rows.x), generator=rng, device=rng.device).cpu().numpy()
    if rows.label is not None:
        order = order[np.argsort(rows.label[order], kind="stable")]
    if rows.weight is not None:
        heavy = rows.weight[order] > 0
        if heavy.sum() < limit:  # rows without weight come only where there is room left
            return np.sort(np.concatenate([order[heavy], order[~heavy]])[:limit])
        order = order[heavy]
    start = torch.rand((), generator=rng, device=rng.device, dtype=torch.float64).item()
    at = ((np.arange(limit) + start) * (len(order) / limit)).astype(np.int64)
    return np.sort(order[np.minimum(at, len(order) - 1)])


def _shares(rows: Rows) -> Tensor:
    assert rows.weight is not None
    largest = rows.weight.max(initial=0.0)
    if largest <= 0:
        raise FileProblem(f"{rows.origin}: all weights of the rows used are 0; at least one must be above 0")
    share = rows.weight / largest  # the sum of weights near 1e308 would overflow
    return torch.from_numpy((share / share.sum()).astype(np.float32))


def _fine_notes(rows: Rows) -> tuple[str, ...]:
    """A note where float32 cannot tell the rows of a column apart: dates in seconds, for example."""
    size, spread = np.abs(rows.x).max(0, initial=0.0), np.ptp(rows.x, 0) if len(rows.x) else 0.0
    coarse = (spread > 0) & (spread < 1e-4 * size)
    if not coarse.any():
        return ()
    return (f"{_listed(rows.columns, coarse)} far larger than its spread; standardise to keep digits in float32",)


def _listed(names: Sequence[str], which: np.ndarray) -> str:
    found = [repr(shown(name)) for name, one in zip(names, which, strict=True) if one]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        ("column " if len(found) == 1 else "columns ")
        + ", ".join(found[:5])
        + more
        + (" is" if len(found) == 1 else " are")
    )
