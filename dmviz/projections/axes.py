from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.params import Help, entry
from dmviz.projections._linear import Linear


@entry
class Axes:
    r"""The picture seen along the axes of the data: two or three of its own columns, nothing mixed.

    $$ z_i = x_{a_i} $$

    Axes are counted from 0. One that the data does not have is shown as 0.

    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[1.0, 2.0, 3.0]])
    >>> Axes(axes="2,0").fit(x, seeded(0))(x).tolist()
    [[3.0, 1.0]]
    """

    title: ClassVar[str] = "Chosen axes"
    source: ClassVar[tuple[str, ...]] = ()

    axes: Annotated[str, Help("two or three axes, counted from 0, such as 0,1", most=50)] = "0,1"

    def __post_init__(self) -> None:
        self.chosen()

    def chosen(self) -> tuple[int, ...]:
        """The axes as numbers. Raises ValueError where the text is not two or three different whole numbers."""
        parts = [part.strip() for part in self.axes.split(",")]
        numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
        if len(numbers) != len(parts) or len(set(numbers)) != len(parts) or len(parts) not in (2, 3):
            raise ValueError(
                f"Axes: axes must be two or three different whole numbers from 0, such as 0,1, got {self.axes!r}"
            )
        return numbers

    def fit(self, x: Tensor, rng: Generator) -> Linear:
        chosen, dim = self.chosen(), x.shape[1]
        way = torch.zeros(dim, len(chosen), dtype=torch.float64)
        for column, axis in enumerate(chosen):
            if axis < dim:
                way[axis, column] = 1.0
        return Linear(torch.zeros(dim, dtype=torch.float64), way, tuple(f"axis {axis}" for axis in chosen))
