r"""Where numbers stand in a law on a line: the mass below them, by binary search in a `Staircase`."""

import torch
from torch import Tensor

from dmviz.losses._lines import Staircase, accurate
from dmviz.losses._sorting import places, ranked


def below_and_up_to(law: Staircase, at: Tensor) -> tuple[Tensor, Tensor]:
    """(R, K) mass below each number of `at` (R, K), and mass below it or on it, float64."""
    at = at.detach()
    return tuple(law.level.gather(1, places(law.y, at, right=right)) for right in (False, True))  # type: ignore[return-value]


def standing(law: Staircase, at: Tensor) -> Tensor:
    """(R, K) mass below each number and half of the mass on it: the distribution function, halfway up its steps.

    >>> standing(Staircase.of(torch.tensor([[0.0, 1.0]]), None), torch.tensor([[-1.0, 0.0, 0.5, 1.0]])).tolist()
    [[0.0, 0.25, 0.5, 0.75]]
    """
    below, up_to = below_and_up_to(law, at)
    return 0.5 * (below + up_to)


def middle_levels(rows: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """(R, N) each number's own level, halfway up its mass (N,), in the order of the numbers; and that order.

    Equal numbers stand one after another, so that their levels differ.
    """
    order = ranked(rows)
    mass = mass.to(accurate(rows))[order]
    level = mass.cumsum(-1) - 0.5 * mass
    return torch.empty_like(level).scatter_(-1, order, level), order
