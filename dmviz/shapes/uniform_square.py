from typing import Annotated, ClassVar

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._box import box_law
from dmviz.shapes._law import gauss, has_density, uniform


@entry
class UniformSquare:
    r"""Every place in a square is equally likely, and nothing lies outside; a cube in more dimensions.

    $$ p(x) = \prod_i \frac{\Phi((x_i + a/2)/s) - \Phi((x_i - a/2)/s)}{a} $$

    with the side a, and round noise of standard deviation s. Without noise the density is flat, 1 / a^D inside, and
    its score says nothing, so only the density is given.

    >>> from dmviz.cloud import seeded
    >>> law = UniformSquare(side=2.0).sample(4, seeded(0))
    >>> law.log_prob(law.x[:1]).exp().item()
    0.25
    """

    title: ClassVar[str] = "Uniform square"
    source: ClassVar[tuple[str, ...]] = ()

    side: Annotated[float, Range(0.1, 20, unit="length", help="side of the square or cube")] = 4.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 2

    def sample(self, n: int, rng: Generator) -> Cloud:
        x = self.side * (uniform((n, self.dim), rng) - 0.5)
        if not has_density(self.noise):
            return Cloud(x.float(), log_prob=self._log_prob)
        x = x + self.noise * gauss((n, self.dim), rng)
        return Cloud(x.float(), score=self._score, log_prob=self._log_prob)

    def _log_prob(self, x: Tensor) -> Tensor:
        return box_law(x, self.side / 2, self.noise)[0].sum(1)

    def _score(self, x: Tensor) -> Tensor:
        return box_law(x, self.side / 2, self.noise)[1]
