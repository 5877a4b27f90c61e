"""Enveloping and homogeneity: a trace of particles that covers the sphere with even steps."""

from typing import Annotated

import torch
from scipy.spatial import cKDTree
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._own_pairs import directions, turned
from dmviz.losses._slicing import fixed_unit_vectors
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_TREE = 8  # up to this dimension a k-d tree finds the nearest particle faster than looking at all pairs
_BLOCK = 1 << 18  # cosines held at once


@entry
class Enveloping:
    r"""Lay the particles, in their order, as a trace that passes near every point of the sphere in even steps.

    $$ F = w_e \Bigl(1 - \frac1P \sum_{p=1}^{P} \max_k\, q_p \cdot u_k\Bigr)
         + w_h \Bigl(-\sum_k c_k + \beta\, \mathrm{Var}_k(c_k)\Bigr), \qquad c_k = u_k \cdot u_{k+1},\ u = x / |x| $$

    The first part looks from P fixed random points q of the sphere at the nearest particle; the second draws each
    particle to the next in order and evens out their steps. Order matters: in the paper particle k is the centre of
    the embeddings whose label falls in the k-th bin. The target is not read. Unit: none. Only directions count.

    The homogeneity is that of the released code, with beta = 0.1 and w_h / w_e = 1 / 10,000; the paper's own, by arc
    length, is unverified. It is a sum, so it grows with the number of particles; the variance is over N - 1 steps,
    divided by their number. Weights have no part in it: a light particle moves faster, one without weight is left out,
    and so is a row of zeros.

    Large `enveloping` covers the sphere in any order; large `homogeneity` contracts the trace to a point. Fails: only
    the nearest particle of a probe is pulled, so that particles crowded behind others stay (start from spread ones);
    above three dimensions any small number of particles covers almost nothing, whatever they do.

    Dong et al. 2025.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    >>> Enveloping(enveloping=0.0, homogeneity=1.0, beta=1.0)(x, Cloud(x), seeded(0)).item()  # -(0 + 1) + 1/4
    -0.75

    ```
    """

    title = "Enveloping and homogeneity"
    family = "regularizers"
    source = ("dong2025improve",)
    needs = "nothing"
    cost = "P log N time in low dimension, P N D above 8; P D memory"
    laws = frozenset({"deterministic"})
    degree = 0.0
    root = 1.0
    ordered = True

    enveloping: Annotated[float, Range(0.0, 1000.0, help="Weight of covering the sphere")] = 1.0
    homogeneity: Annotated[float, Range(0.0, 1000.0, help="Weight of short and even steps along the trace")] = 1e-4
    beta: Annotated[float, Range(0.0, 100.0, help="How much even steps count against short ones")] = 0.1
    probes: Annotated[
        int, Range(1, 100_000, log=True, help="Points that look for the nearest particle: few leave gaps unseen")
    ] = 2000
    probe_seed: Annotated[int, Range(0, 2**31 - 1, help="another number, other fixed probes")] = 0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        rows = _taking_part(x, mass_of(x, weight))
        u = directions(x[rows]).to(accurate(x))
        covered = coverage(u, self._probes(x).to(u)) if len(u) else u.sum()
        return (self.enveloping * (1.0 - covered) + self.homogeneity * self._uneven(u)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Towards the probes that a particle is nearest to, and towards its neighbours in order."""
        a = mass_of(x, weight)
        rows = _taking_part(x, a)
        u = directions(x[rows]).to(accurate(x))
        q, grad, covered = self._probes(x).to(u), torch.zeros_like(u), u.sum() * 0.0
        if len(u):
            winner = nearest(u, q)
            covered = (q * u[winner]).sum(1).mean()
            grad.index_add_(0, winner, q * (-self.enveloping / len(q)))
        step = (u[:-1] * u[1:]).sum(1)
        if len(step):
            slope = self.homogeneity * (2.0 * self.beta * (step - step.mean()) / len(step) - 1.0)[:, None]
            grad[:-1] += slope * u[1:]
            grad[1:] += slope * u[:-1]
        moved = -turned(x[rows].to(u.dtype), u, grad) / a[rows, None]
        value = self.enveloping * (1.0 - covered) + self.homogeneity * self._uneven(u)
        return Velocity(torch.zeros_like(x).index_copy_(0, rows, moved.to(x.dtype)), value.to(x.dtype))

    def _uneven(self, u: Tensor) -> Tensor:
        """Minus the sum of the cosines between neighbours, and beta times their variance."""
        step = (u[:-1] * u[1:]).sum(1)
        return -step.sum() + (self.beta * step.var(correction=0) if len(step) else 0.0)

    def _probes(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:  # the whole sphere of a line
            return torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        return fixed_unit_vectors("random", self.probes, x.shape[1], self.probe_seed)


def _taking_part(x: Tensor, a: Tensor) -> Tensor:
    """Rows that have weight and a direction."""
    return ((a > 0) & (x.detach().square().sum(1) > 0)).nonzero()[:, 0]


def coverage(u: Tensor, probes: Tensor) -> Tensor:
    """() mean cosine between each probe (P, D) and the unit vector u (N, D) nearest to it."""
    return (probes * u[nearest(u, probes)]).sum(1).mean()


@torch.no_grad()
def nearest(u: Tensor, probes: Tensor) -> Tensor:
    """(P,) int64: which unit vector of u (N, D) has the largest cosine with each probe (P, D)."""
    if u.device.type == "cpu" and u.shape[1] <= _TREE:
        return torch.from_numpy(cKDTree(u.detach().double().numpy()).query(probes.double().numpy())[1])
    size = max(1, _BLOCK // len(u))
    return torch.cat([(probes[i : i + size] @ u.T).argmax(1) for i in range(0, len(probes), size)])
