"""Laws along a plane curve, blurred by round noise: their density is an integral over the curve."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from dmviz.cloud import LogProb, Score
from dmviz.shapes._law import has_density, mixture_law

_MOST_NODES = 2048
_DENSITY = 1.7  # nodes a noise length; the rule's nodes lie up to pi / 2 wider apart in its middle

Curve = Callable[[Tensor], Tensor]
"""(K,) in [0, 1] -> (K, 2 or 3)."""


@cache
def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes in (0, 1) and weights that sum to 1, float64, exact for polynomials of degree 2 count - 1.

    Eigenvalues of the Jacobi matrix of the Legendre polynomials (Golub and Welsch).
    """
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k.square() - 1).sqrt()
    node, vector = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (node + 1) / 2, vector[0].square()


def curve_law(curves: Sequence[Curve], length: float, noise: float) -> tuple[Score | None, LogProb | None]:
    r"""Score and log density of points along smooth curves, equal shares each, plus round noise.

    $$ p(x) = \frac1C \sum_c \int_0^1 \mathcal N\big(x;\, \gamma_c(u),\, s^2 I\big)\, du $$

    The integral has no closed form; Gauss-Legendre quadrature with 1.7 nodes a noise length gives it to
    about 1e-6 where there is mass. (None, None) if the noise is 0 or so small that this needs more than 2,048 nodes.
    `length` bounds the speed |d curve / du|.
    """
    if not has_density(noise) or len(curves) * length * _DENSITY / noise > _MOST_NODES:
        return None, None
    node, weight = gauss_legendre(32 * math.ceil((20 + _DENSITY * length / noise) / 32))
    return mixture_law(torch.cat([curve(node) for curve in curves]), weight.repeat(len(curves)), noise)
