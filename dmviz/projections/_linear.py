"""Projections that turn and shift: z = (x - center) way."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear picture of many dimensions. `axes` are the titles of its axes.

    >>> import torch
    >>> Linear(torch.zeros(3), torch.eye(3)[:, :2], ("a", "b"))(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 2.0]]
    """

    center: Tensor  # (D,) float64
    way: Tensor  # (D, 2 or 3) float64
    axes: tuple[str, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.center.to(x)) @ self.way.to(x)

    def turn(self, v: Tensor) -> Tensor:
        """(K, D) velocities, or other differences of points, as (K, 2 or 3)."""
        return v @ self.way.to(v)
