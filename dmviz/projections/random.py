from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.params import Help, entry
from dmviz.projections._linear import Linear


@entry
class Random:
    r"""A flat picture in a direction drawn by chance: it favours nothing, and hides most things.

    $$ z = (x - \bar x)\, Q, \qquad Q^\top Q = I, \quad Q \text{ uniform} $$

    In many dimensions almost every such picture of almost any data looks like one round Gaussian (Diaconis and
    Freedman): what looks mixed here need not be. Spread shrinks as $\sqrt{2/D}$.

    >>> from dmviz.cloud import seeded
    >>> fitted = Random().fit(torch.zeros(1, 5), seeded(0))
    >>> (fitted.way.T @ fitted.way).round(decimals=6).abs().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    title: ClassVar[str] = "Random plane"
    source: ClassVar[tuple[str, ...]] = ("diaconis1984",)

    dims: Annotated[Literal["2", "3"], Help("flat or in space")] = "2"

    def fit(self, x: Tensor, rng: Generator) -> Linear:
        dims, dim = int(self.dims), x.shape[1]
        draw = normal((dim, min(dims, dim)), torch.empty(0, dtype=torch.float64), rng)
        way, upper = torch.linalg.qr(draw)
        way = way * upper.diagonal().sign()  # makes the law uniform, whatever signs the factorisation prefers
        way = torch.nn.functional.pad(way, (0, dims - way.shape[1]))
        axes = tuple(f"random direction {i + 1}" for i in range(dims))
        return Linear(x.double().mean(0).cpu(), way, axes)
