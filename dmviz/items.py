"""Items: rows of real data before they become a cloud, with where they came from and what was left out."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmviz.cloud import Cloud

MISSING_LABEL = "(none)"
"""The name shown for rows whose label cell is empty: they keep a class of their own."""


class FileProblem(ValueError):
    """One sentence on why rows could not be read: who, what must hold, what came, and the remedy."""

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(str(sentence).split()))


@dataclass(frozen=True, eq=False)
class Items:
    """Rows of numbers with their provenance.

    `ids` are the rows' numbers in the source, counted from 0, so a row keeps its name after others were left out.
    `table` is the source's own pyarrow Table where there is one, cut to the same rows, for tooltips and colours.
    """

    x: Tensor  # (N, D) float32
    columns: tuple[str, ...]  # D names
    ids: Tensor  # (N,) int64
    origin: str
    label: Tensor | None = None  # (N,) int64 codes
    label_names: tuple[str, ...] = ()
    weight: Tensor | None = None  # (N,) sums to 1
    notes: tuple[str, ...] = ()
    table: Any = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.x.shape[1] != len(self.columns):
            raise ValueError(f"Items: x must be (N, {len(self.columns)}), got {tuple(self.x.shape)}")
        if self.ids.shape != self.x.shape[:1]:
            raise ValueError(f"Items: ids must be ({len(self.x)},), got {tuple(self.ids.shape)}")

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def cloud(self) -> Cloud:
        """The rows as an empirical law."""
        return Cloud(self.x, self.weight, self.label)


def coded(values: Sequence[Hashable | None]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels of any type as (N,) codes and their names: numbers in order, then words, then the empty ones.

    >>> coded(["b", None, "a", "b"])
    (tensor([1, 2, 0, 1]), ('a', 'b', '(none)'))
    """
    keys = [_key(value) for value in values]
    order = sorted(set(keys))
    code = {key: i for i, key in enumerate(order)}
    return torch.tensor([code[key] for key in keys], dtype=torch.int64), tuple(key[2] for key in order)


def _key(value: Any) -> tuple[int, float, str]:
    if value is None or value != value:  # NaN is the empty cell of a number column
        return 2, 0.0, MISSING_LABEL
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 1, 0.0, value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return 0, float(value), str(int(value)) if float(value).is_integer() else repr(float(value))
