"""Mean and standard deviation of each coordinate, matched; and AdaIN, which does so in one step."""

from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._moments import Columns, columns, deviation
from dmviz.losses._waves import weighed
from dmviz.params import Help, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset(
    {"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle", "deterministic"}
)


@entry
class MeanStd:
    r"""Match where each coordinate lies and how far it spreads, and look at nothing else.

    $$ F = |m_X - m_Y|^2 + |s_X - s_Y|^2 $$

    with weighted means m and standard deviations s of each coordinate (divided by N). Unit: length squared. Each
    coordinate is shifted and stretched as a whole,

    $$ v(x) = 2 (m_Y - m_X) + 2 \Bigl(\frac{s_Y}{s_X} - 1\Bigr) (x - m_X), $$

    and arrives at the style transfer AdaIN, `adain` in this file. Fails: blind to correlations and shapes, so that
    turning the target may change nothing. A coordinate in which the particles do not spread at all never begins to.
    With `deviations` off only means are matched, as distribution matching for data set distillation does.

    Huang and Belongie 2017.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [5.0]])
    >>> MeanStd()(here, Cloud(there), seeded(0)).item()  # means 0 and 3, deviations 1 and 2
    10.0

    ```
    """

    title = "Mean and deviation"
    family = "moments and order"
    source = ("huang2017arbitrary",)
    needs = "samples"
    cost = "(N + M) D time and memory"
    degree = 2.0
    root = 2.0

    deviations: Annotated[bool, Help("Match standard deviations too; off: means alone")] = True

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS if self.deviations else _LAWS | {"rotation_free"}

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there = columns(x, weight), columns(target.x.detach(), target.weight)
        return self._value(here, there).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """A shift and a stretch of each coordinate."""
        here, there = columns(x, weight), columns(target.x, target.weight)
        v = self._pull(here.z, here, there).to(x.dtype)
        return Velocity(weighed(v, weight), self._value(here, there).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same shift and stretch, at any points (K, D)."""
        here, there = columns(x, weight), columns(target.x, target.weight)
        return self._pull(at - here.mean, here, there).to(at.dtype)

    def _value(self, here: Columns, there: Columns) -> Tensor:
        value = (here.mean - there.mean).square().sum()
        return value + (deviation(here) - deviation(there)).square().sum() if self.deviations else value

    def _pull(self, z: Tensor, here: Columns, there: Columns) -> Tensor:
        shift = 2 * (there.mean - here.mean)
        if not self.deviations:
            return shift.expand_as(z)
        mine, other = deviation(here), deviation(there)
        return shift + torch.where(mine > 0, 2 * (other / torch.where(mine > 0, mine, 1.0) - 1), 0.0) * z


def adain(content: Tensor, style: Tensor, eps: float = 1e-5) -> Tensor:
    """(N, D) content with each column's mean and standard deviation replaced by the style's.

    Unbiased variances, with `eps` added inside the root, as released.
    """
    mine, other = ((z.var(0, correction=1) + eps).sqrt() for z in (content, style))
    return (content - content.mean(0)) / mine * other + style.mean(0)
