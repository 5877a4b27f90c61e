"""MAUVE: the area under the frontier between two kinds of error."""

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._clusters import Space, histograms, kl
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law


@entry
class Mauve:
    r"""Mix the two clouds in every proportion, and see how far each is from every mixture.

    $$ \bigl(e^{-c\,KL(Q \| R_w)},\ e^{-c\,KL(P \| R_w)}\bigr), \qquad R_w = w P + (1 - w) Q, \quad 0 < w < 1 $$

    P of the target and Q of the particles are histograms over k-means clusters of both clouds together. One axis counts
    what the particles invent, the other what they miss of the target; MAUVE is the area under the curve, corners
    (0, 1) and (1, 0) included, as the mean of its two trapezoid sums over 25 mixtures. It is in (0, 1] and 1 only for
    equal histograms. The value here is 1 - MAUVE, so that 0 is equal and less is better; `score` is MAUVE
    itself and `curve` its points. With nothing in common the limit is MAUVE = c B(c + 1, c), 1 / 252 at c = 5, where
    25 mixtures give 0.0041.

    Released settings: c = 5; rows divided by their length, then the principal axes that hold nine tenths of the
    variance; a tenth as many clusters as the smaller cloud has points, best of 5 starts of 500 rounds. Dividing by
    the length takes a cloud of few dimensions its radius, so that "auto" takes the points as they are up to three
    dimensions and does as released above. Here there are 500 clusters at most, and their starts come from rng
    instead of seed 25. c larger: far clouds are told apart better, near ones less. It needs thousands of points: few
    points a cluster make equal laws differ. `smoothed` adds half a point to every cluster, against empty ones. It
    only judges, since clusters are hard.

    Pillutla et al. 2021 and 2023.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [0.1], [9.0]]), torch.tensor([[0.1], [9.0], [0.0]])
    >>> abs(round(Mauve()(here, Cloud(there), seeded(0)).item(), 6))  # the same points in another order
    0.0

    ```
    """

    title = "MAUVE"
    family = "evaluation"
    source = ("pillutla2021mauve", "pillutla2023mauve")
    needs = "samples"
    drives = False
    cost = "K (N + M) D time a round of k-means for K clusters, (N + M) D memory"
    degree = 0.0
    root = 1.0

    clusters: Annotated[
        int,
        Range(0, 500, help="Few: only coarse shape counts; many: few points in each; 0: a tenth of the points"),
    ] = 0
    scaling: Annotated[
        float,
        Range(0.1, 50, log=True, help="c: small forgives a divergence, large is strict with it"),
    ] = 5.0
    space: Annotated[
        Space, Help("raw: points as they are; released: divided by length, main axes; auto: raw up to three dimensions")
    ] = "auto"
    smoothed: Annotated[bool, Help("Add half a point to every cluster, as in the starred variant")] = False

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = {"zero_at_target", "nonnegative", "rotation_free"}
        return frozenset(found | {"shift_free"} if self.space == "raw" else found)

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        found = histograms(x, target, weight, rng, self.clusters, self.space, self.smoothed)
        return x.new_tensor(math.nan) if found is None else (1.0 - self.score(found.p, found.q)).to(x.dtype)

    def score(self, p: Tensor, q: Tensor) -> Tensor:
        """MAUVE of two histograms (K,): 1 where they are equal, near 0 where they share nothing."""
        points = self.curve(p, q)
        return 0.5 * (_area(points) + _area(points.flip(1)))

    def curve(self, p: Tensor, q: Tensor, mixtures: int = 25) -> Tensor:
        """(mixtures + 2, 2) the divergence curve of two histograms (K,), from corner to corner."""
        w = torch.linspace(1e-6, 1 - 1e-6, mixtures, dtype=torch.float64, device=p.device)[:, None]
        mixed = w * p + (1 - w) * q  # (mixtures, K)
        points = (-self.scaling * torch.stack((kl(q, mixed), kl(p, mixed)), 1)).exp()
        return torch.cat((points.new_tensor([[1.0, 0.0]]), points, points.new_tensor([[0.0, 1.0]])))


def _area(points: Tensor) -> Tensor:
    """Trapezoid sum over points in order of their first coordinate; of equal ones the highest comes first."""
    high_first = points[(-points[:, 1]).argsort(stable=True)]
    x, y = high_first[high_first[:, 0].argsort(stable=True)].unbind(1)
    return torch.trapezoid(y, x)
