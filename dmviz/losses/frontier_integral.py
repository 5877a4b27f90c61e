"""Frontier integral: the mean of two divergences over all mixtures of two clouds."""

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._clusters import Space, histograms
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law


@entry
class FrontierIntegral:
    r"""Mix the two clouds in every proportion, and average how much of each is lost in the mixture.

    $$ F = 2 \int_0^1 \bigl[w\,KL(P \| R_w) + (1 - w)\,KL(Q \| R_w)\bigr]\,dw, \qquad R_w = w P + (1 - w) Q $$

    P of the target and Q of the particles are histograms over k-means clusters of both clouds together. In closed form,
    with p and q the shares of one cluster,

    $$ F = 2 \sum \Bigl[\frac{p + q}{4} - \frac{p\,q\,(\log p - \log q)}{2\,(p - q)}\Bigr], $$

    where a term is 0 for p = q and p / 4 for q = 0. In [0, 1]: 0 only for equal histograms, 1 where the clouds share no
    cluster. It is the one-number summary of the curve that MAUVE takes the area of, without its constant c. Few
    points a cluster make equal laws differ, by about the number of clusters over the number of points; the space,
    the number of clusters and `smoothed` are as for MAUVE. It only judges, since clusters are hard.

    Liu et al. 2021; as a variant of MAUVE, Pillutla et al. 2023.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [0.1]]), torch.tensor([[9.0], [9.1]])
    >>> FrontierIntegral()(here, Cloud(there), seeded(0)).item()  # two clusters, nothing shared
    1.0

    ```
    """

    title = "Frontier integral"
    family = "evaluation"
    source = ("liu2021frontiers", "pillutla2023mauve")
    needs = "samples"
    drives = False
    cost = "K (N + M) D time a round of k-means for K clusters, (N + M) D memory"
    degree = 0.0
    root = 1.0

    clusters: Annotated[
        int,
        Range(0, 500, help="Few: only coarse shape counts; many: few points in each; 0: a tenth of the points"),
    ] = 0
    space: Annotated[
        Space, Help("raw: points as they are; released: divided by length, main axes; auto: raw up to three dimensions")
    ] = "auto"
    smoothed: Annotated[bool, Help("Add half a point to every cluster, against empty ones")] = False

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = {"zero_at_target", "nonnegative", "rotation_free"}
        return frozenset(found | {"shift_free"} if self.space == "raw" else found)

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        found = histograms(x, target, weight, rng, self.clusters, self.space, self.smoothed)
        return x.new_tensor(math.nan) if found is None else self.of(found.p, found.q).to(x.dtype)

    def of(self, p: Tensor, q: Tensor) -> Tensor:
        """The integral of two histograms (K,), in closed form."""
        high, low = torch.maximum(p, q), torch.minimum(p, q)
        t = (high - low) / high.clamp_min(1e-300)  # 0 for equal shares, 1 where one is empty
        near = t < 1e-4
        far = torch.where(near | (low <= 0), 0.5, t)
        log_mean = torch.where(near, 1.0 + t / 2 + t.square() / 3, -torch.log1p(-far) / far)
        return 2.0 * ((high + low) / 4 - 0.5 * low * log_mean).sum().clamp(0.0, 0.5)
