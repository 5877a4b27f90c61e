import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._box import box_law
from dmviz.shapes._law import gauss, has_density, in_blocks, uniform


@entry
class Checkerboard:
    r"""The dark fields of a checkerboard: sharp edges, and empty fields that touch full ones.

    Uniform on the fields with even row + column number, $g$ on a side, plus round noise of standard deviation s:

    $$ p(x) = \frac1C \sum_c \prod_{i=1}^{2} \frac{\Phi((x_i - c_i + g/2)/s) - \Phi((x_i - c_i - g/2)/s)}{g} $$

    Labels are the fields. Without noise the density is flat and its score says nothing, so only the density is given.

    >>> from dmviz.cloud import seeded
    >>> law = Checkerboard(fields=4, side=4.0, noise=0.0).sample(10, seeded(0))
    >>> law.log_prob(torch.tensor([[-1.5, -1.5], [-0.5, -1.5]])).exp().tolist()  # 8 full fields of area 1
    [0.125, 0.0]
    """

    title: ClassVar[str] = "Checkerboard"
    source: ClassVar[tuple[str, ...]] = ()

    fields: Annotated[int, Range(2, 10, help="fields along a side")] = 4
    side: Annotated[float, Range(0.1, 20, unit="length", help="side of the board")] = 4.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"field {i + 1}" for i in range(len(self.middles())))

    def sample(self, n: int, rng: Generator) -> Cloud:
        middles, gap = self.middles(), self.side / self.fields
        label = (uniform((n,), rng) * len(middles)).long()
        x = middles[label] + gap * (uniform((n, 2), rng) - 0.5) + self.noise * gauss((n, 2), rng)
        score = in_blocks(self._score, 1 << 14) if has_density(self.noise) else None
        return Cloud(x.float(), label=label, score=score, log_prob=in_blocks(self._log_prob, 1 << 14))

    def middles(self) -> Tensor:
        """(C, 2) centres of the full fields."""
        place = torch.cartesian_prod(torch.arange(self.fields), torch.arange(self.fields))
        full = place[place.sum(1) % 2 == 0].double()
        return self.side * ((full + 0.5) / self.fields - 0.5)

    def _fields(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(K, C) log densities of the fields and (K, C, 2) their scores."""
        log_prob, score = box_law(x[:, None] - self.middles().to(x), self.side / self.fields / 2, self.noise)
        return log_prob.sum(2), score

    def _log_prob(self, x: Tensor) -> Tensor:
        terms, _ = self._fields(x)
        return torch.logsumexp(terms, 1) - math.log(terms.shape[1])

    def _score(self, x: Tensor) -> Tensor:
        terms, score = self._fields(x)
        return (torch.softmax(terms, 1)[:, :, None] * score).sum(1)
