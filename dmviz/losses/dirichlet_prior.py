"""Dirichlet-prior shaping: each row's softmax should look drawn from a Dirichlet law."""

from typing import Annotated, Any

import torch
from scipy.special import betainc
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._ranks import middle_levels
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_DENSITY = (1e-3, 100.0)  # the density that stands for the slope of the Beta distribution function is held in here


@entry
class DirichletPrior:
    r"""Read each point as logits, and spread the shares of every class as a Dirichlet law would.

    $$ F = \frac1D \sum_k \frac1n \sum_i \Bigl(\frac{i}{n + 1} - B_k\bigl(p_{(i)k}\bigr)\Bigr)^2, \qquad
       p = \operatorname{softmax}(x) $$

    For each class k the shares, sorted, are held against the distribution function B_k of Beta(alpha_k, sum - alpha_k),
    the marginal of the Dirichlet law. alpha below 1 asks for rows that decide for one class, 1 for rows spread evenly
    over all mixtures, above 1 for rows that hesitate; `favor` multiplies the first class's alpha, so that it is used
    more. It looks at the particles alone. Unit: none, at most 1. With weights, i / (n + 1) becomes (n m + 1/2) /
    (n + 1) at the middle m of a particle's mass, n being the effective number 1 / sum a^2: the same for equal weights.

    The slope of B is its density, held within 0.001 and 100 as the batch-shaping code does: where the true density is
    outside, the pull is not the gradient, but rows stuck at a corner still move.

    Fails: marginals do not settle how classes go together, and many clouds of logits have one cloud of shares. Rows
    far in a tail of the prior hardly move. A pull never changes the sum of a row.

    Batch shaping: Bejnordi et al. 2020; for Dirichlet priors, Mirvakhabova et al. 2025, whose exact grid and whose
    mean over classes could not be checked.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.zeros(2, 2)  # shares of 1/2: B is 1/2, and the grid is 1/3 and 2/3
    >>> round(DirichletPrior()(x, Cloud(x), seeded(0)).item(), 4)  # 1/36
    0.0278

    ```
    """

    title = "Dirichlet-prior shaping"
    family = "moments and order"
    source = ("mirvakhabova2025dirichlet", "bejnordi2020batch")
    needs = "nothing"
    cost = "N D log time, N D memory"
    laws = frozenset({"nonnegative", "deterministic"})
    degree = float("nan")
    root = 1.0
    dims = (2, None)

    alpha: Annotated[
        float, Range(0.02, 50.0, log=True, help="below 1: rows decide for one class; above: rows hesitate")
    ] = 1.0
    favor: Annotated[
        float, Range(0.1, 10.0, log=True, help="above 1: the first class gets more than its part; below: less")
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        p = x.to(accurate(x)).softmax(1)
        mass = mass_of(x, weight).to(p.dtype)
        goal = shaping_grid(p.detach().T.contiguous(), mass)
        level: Tensor = _BetaCdf.apply(p.T, *self._beta(p))  # type: ignore[no-untyped-call]
        gap = level - goal
        return (gap.square() @ mass).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Each share moves to where its level belongs; a row's shares together stay 1."""
        p = x.to(accurate(x)).softmax(1)
        mass = mass_of(x, weight).to(p.dtype)
        rows = p.T.contiguous()
        gap = beta_cdf(rows, *self._beta(p)) - shaping_grid(rows, mass)
        slope = (2.0 / x.shape[1]) * (gap * clipped_density(rows, *self._beta(p))).T
        v = (p * ((p * slope).sum(1, keepdim=True) - slope)).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, (gap.square() @ mass).mean().to(x.dtype))

    def _beta(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """(D, 1) both parameters of each class's Beta law."""
        alpha = p.new_full((p.shape[1], 1), self.alpha)
        alpha[0] *= self.favor
        return alpha, alpha.sum() - alpha


def shaping_grid(rows: Tensor, mass: Tensor) -> Tensor:
    """(R, N) the level that each number should have: i / (n + 1) for the i-th smallest of n equal masses.

    >>> shaping_grid(torch.tensor([[0.9, 0.1, 0.5]]), torch.full((3,), 1 / 3, dtype=torch.float64)).tolist()
    [[0.75, 0.25, 0.5]]
    """
    level, _ = middle_levels(rows, mass)
    n = 1.0 / mass.square().sum()
    return (n * level + 0.5) / (n + 1.0)


def beta_cdf(p: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Distribution function of Beta(a, b)."""
    found = betainc(*(z.detach().cpu().double().numpy() for z in (a, b, p)))
    return torch.as_tensor(found, dtype=p.dtype, device=p.device)


def clipped_density(p: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Density of Beta(a, b), held within [0.001, 100]; at a corner where it is infinite, 100."""
    norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    # Each logarithm is kept finite, so that an infinite one does not meet its opposite.
    low, high = torch.special.xlogy(a - 1.0, p), torch.special.xlog1py(b - 1.0, -p)
    rise: Tensor = low.clamp(-1e4, 1e4) + high.clamp(-1e4, 1e4)
    return (norm + rise).clamp_max(10.0).exp().clamp(*_DENSITY)


class _BetaCdf(torch.autograd.Function):
    """`beta_cdf`, whose slope is `clipped_density`."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(p, a, b)
        return beta_cdf(p, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        p, a, b = ctx.saved_tensors
        return grad * clipped_density(p, a, b), None, None
