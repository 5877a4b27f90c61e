"""KL to a density, with the particles smoothed into bumps: the blob method."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, LogProb, Score, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kde import Bumps, log_density
from dmviz.params import Range, entry
from dmviz.protocols import Law, Velocity


@entry
class BlobKl:
    r"""Climb the target's density, and push neighbours away so that the particles spread as the density does.

    $$ F = \sum_i a_i \log q_h(x_i) - \sum_i a_i \log p(x_i), \qquad
       q_h(z) = \sum_j a_j\, \mathcal N(z; x_j, h^2 I) $$

    KL(q | p) with the particles' own density blurred inside the logarithm, each particle's own bump counted in. It
    needs the target's log density and score, and no samples. Unit: nats. The particles follow its true gradient flow,

    $$ v(x) = \nabla\log p(x) - \nabla \log q_h(x) - \sum_j a_j \frac{\nabla_x k(x, x_j)}{q_h(x_j)}, $$

    in closed form, so that F goes down at every small step, as it does not under the difference of scores alone.

    Small h: a particle hears no neighbour and climbs to the nearest peak; large h: particles push without seeing where
    they are too many, and gather too closely, since a blurred density is wider than its particles. F is above or below
    0 and its least value is not 0: the blur shifts it by about h^2. Fails where modes are far apart, since nothing
    carries mass across a gap with no density, and where h is under the distance to the next particle. A step
    of at most h^2 / 2, and of 1 over the largest slope of the score, is safe. Where a density is known only up to a
    factor, F is so up to a constant, and the flow is the same.

    Carrillo, Craig and Patacchini 2019.

    ```python
    >>> import math
    >>> from dmviz.cloud import seeded
    >>> here = torch.tensor([[3.0, 4.0]])
    >>> law = Cloud(here, score=lambda x: -x, log_prob=lambda x: -x.square().sum(1) / 2 - math.log(2 * math.pi))
    >>> BlobKl(bandwidth=1.0)(here, law, seeded(0)).item()  # the two logs of 2 pi cancel: |(3, 4)|^2 / 2
    12.5

    ```
    """

    title = "KL by blobs"
    family = "densities"
    source = ("carrillo2019blob",)
    needs = "score"
    cost = "N^2 D time and one score a particle, N memory"
    degree = float("nan")
    root = 1.0

    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far particles push each other. Small: each climbs to a peak alone; large: they huddle too close",
        ),
    ] = 0.2

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({"deterministic"})

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        log_prob, _ = _law(target)
        a, near = mass_of(x, weight), x - x.detach().mean(0)
        if torch.is_grad_enabled() and x.requires_grad:
            log_q = log_density(near, near, a, self.bandwidth)
        else:
            log_q = self._bumps(near, a, target).log(near)
        return (a.double() @ (log_q - log_prob(x).double())).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The target's score, less the particles' own, less what the particle does to its neighbours' density."""
        log_prob, score = _law(target)
        a, near = mass_of(x, weight), x - x.mean(0)
        bumps = self._bumps(near, a, target)
        here, wide = bumps(near), a.double()
        v = score(x).double() - here.score + bumps.pull(-wide, here.log, near)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        value = wide @ (here.log - log_prob(x).double())
        return Velocity(v.to(x.dtype), value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        _, score = _law(target)
        a, middle = mass_of(x, weight), x.mean(0)
        bumps = self._bumps(x - middle, a, target)
        log_q, there = bumps.log(bumps.x), bumps._replace(x=at - middle)
        push = there.pull(-a.double(), log_q, bumps.x)
        return (score(at).double() - bumps(at - middle).score + push).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing of the target to work out; only which kernels the run will use."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    def _bumps(self, x: Tensor, a: Tensor, target: Cloud) -> Bumps:
        return Bumps(x, a, self.bandwidth, chosen(target.memo, x))


def _law(target: Cloud) -> tuple[LogProb, Score]:
    if target.score is None or target.log_prob is None:
        raise ValueError(
            "BlobKl needs the log density and the score of its target, and this one lacks them. "
            "Pick a shape with a known density."
        )
    return target.log_prob, target.score
