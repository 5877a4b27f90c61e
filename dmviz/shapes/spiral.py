import math
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._curve import curve_law
from dmviz.shapes._law import gauss, uniform

_INNER = 0.15  # share of the radius at which an arm begins: a curve that began at 0 would pile up points there


@entry
class Spiral:
    r"""Arms that wind outwards: neighbours along an arm are close, neighbours across are not.

    $$ \gamma_a(u) = R\,w\,(\cos\varphi, \sin\varphi), \quad \varphi = 2\pi (T w + a / A), \quad
       w = \sqrt{0.15^2 + (1 - 0.15^2)\,u} $$

    u is uniform on [0, 1], which spreads points nearly evenly along an arm; round noise is added. Labels are the
    arms. The density is an integral over the arms, taken by quadrature to about 1e-6; without noise there is none.

    >>> from dmviz.cloud import seeded
    >>> cloud = Spiral(radius=2.0, noise=0.0).sample(200, seeded(0))
    >>> bool((cloud.x.norm(dim=1) <= 2.0001).all() and (cloud.x.norm(dim=1) >= 0.2999).all())
    True
    """

    title: ClassVar[str] = "Spiral"
    source: ClassVar[tuple[str, ...]] = ()

    arms: Annotated[int, Range(1, 6, help="number of arms")] = 2
    turns: Annotated[float, Range(0.1, 4, help="how often an arm goes round")] = 1.5
    radius: Annotated[float, Range(0.1, 10, unit="length", help="where the arms end")] = 2.5
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.08

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"arm {i + 1}" for i in range(self.arms))

    def sample(self, n: int, rng: Generator) -> Cloud:
        label = (uniform((n,), rng) * self.arms).long()
        x = self._arm(label, uniform((n,), rng)) + self.noise * gauss((n, 2), rng)
        arms = [partial(self._arm, torch.tensor(a)) for a in range(self.arms)]
        # Speed at w: R (1 - w0^2) / 2w |(1, 2 pi T w)|, largest at one of the ends.
        speed = max(math.hypot(1 / w, 2 * math.pi * self.turns) for w in (_INNER, 1)) * self.radius / 2
        score, log_prob = curve_law(arms, speed, self.noise)
        return Cloud(x.float(), label=label, score=score, log_prob=log_prob)

    def _arm(self, arm: Tensor, u: Tensor) -> Tensor:
        w = (_INNER**2 + (1 - _INNER**2) * u).sqrt()
        angle = 2 * math.pi * (self.turns * w + arm / self.arms)
        return self.radius * w[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
