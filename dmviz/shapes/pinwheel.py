import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss, length, score_of, uniform


@entry
class Pinwheel:
    r"""Long clouds that fan out from the middle and bend around it like the vanes of a pinwheel.

    A vane starts as a Gaussian at distance R, `long` along the ray and `wide` across it. Each point is then turned
    about the origin by $\varphi_k + q\,r$ with r its distance from it. A turn by an angle that depends on r alone
    keeps areas, so the density is exact:

    $$ p(x) = \tfrac1A \sum_k \mathcal N\big(T_{-\varphi_k - q r}\, x;\; (R, 0),\; \mathrm{diag}(l^2, w^2)\big) $$

    The usual pinwheel (Johnson et al. 2016) turns by an exponential of the position along the ray instead and has no
    closed density. Labels are the vanes.

    >>> from dmviz.cloud import seeded
    >>> law = Pinwheel(vanes=1, bend=0.0, radius=1.0, long=0.5, wide=0.1).sample(4, seeded(0))
    >>> law.score(torch.tensor([[1.5, 0.0]])).round(decimals=3).tolist()  # (1 - 1.5) / 0.5^2
    [[-2.0, 0.0]]
    """

    title: ClassVar[str] = "Pinwheel"
    source: ClassVar[tuple[str, ...]] = ("johnson2016svae",)

    vanes: Annotated[int, Range(1, 12, help="number of vanes")] = 5
    radius: Annotated[float, Range(0.1, 10, unit="length", help="distance of a vane's middle")] = 1.5
    long: Annotated[float, Range(0.01, 3, unit="length", log=True, help="standard deviation along a vane")] = 0.45
    wide: Annotated[float, Range(0.01, 3, unit="length", log=True, help="standard deviation across a vane")] = 0.12
    bend: Annotated[float, Range(-3, 3, unit="1/length", help="turn in radians for each length outwards")] = 0.6

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"vane {i + 1}" for i in range(self.vanes))

    def sample(self, n: int, rng: Generator) -> Cloud:
        label = (uniform((n,), rng) * self.vanes).long()
        y = gauss((n, 2), rng) * torch.tensor([self.long, self.wide], dtype=torch.float64)
        y[:, 0] += self.radius
        x = _turned(y, 2 * math.pi * label / self.vanes + self.bend * length(y))
        return Cloud(x.float(), label=label, score=score_of(self._log_prob), log_prob=self._log_prob)

    def _log_prob(self, x: Tensor) -> Tensor:
        upright = _turned(x, -self.bend * length(x))
        terms = []
        for k in range(self.vanes):
            y = _turned(upright, x.new_full((len(x),), -2 * math.pi * k / self.vanes))
            terms.append(-0.5 * (((y[:, 0] - self.radius) / self.long) ** 2 + (y[:, 1] / self.wide) ** 2))
        area = math.log(2 * math.pi * self.long * self.wide * self.vanes)
        return torch.logsumexp(torch.stack(terms, 1), 1) - area


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    return torch.stack([c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]], 1)
