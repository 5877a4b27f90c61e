"""Sliced characteristic functions: the Epps-Pulley statistic with a cloud in place of the normal law."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._slicing import Kind, centre_of, fixed_unit_vectors, unit_vectors
from dmviz.losses._waves import Waves, follow_lines, line_gap, line_slope, line_waves, pull_lines
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle"})


@entry
class EppsPulley:
    r"""Look along many lines, and compare the waves that the two clouds' shadows send out there.

    $$ F = \frac1K \sum_{k=1}^K \int |\phi_{X,k}(t/\ell) - \phi_{Y,k}(t/\ell)|^2 e^{-t^2/2}\,dt,\qquad
       \phi_{X,k}(t) = \sum_i a_i e^{i t\,\theta_k\cdot x_i} $$

    with bandwidth $\ell$ and K unit directions: SIGReg with the target's characteristic function in place of the
    normal one, by the same 17 knots on [0, 3], a trapezoid doubled by symmetry. On the whole line it would be
    $\sqrt{2\pi}$ times the Gaussian MMD squared of the shadows. Unit: none; at most 10. A small bandwidth feels only
    close neighbours, a large one only means.

    It fails for clouds more than about 16 bandwidths wide, which 17 knots can not resolve: points so far apart look
    near again. Few fixed directions leave others unseen.

    Epps and Pulley 1983; slices and knots as in Balestriero and LeCun 2025.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    >>> exact = 1.973  # on the whole line sqrt(2 pi) (2 - 2 exp(-1/2))
    >>> abs(EppsPulley()(here, Cloud(there), seeded(0)).item() - exact) < 0.05
    True

    ```
    """

    title = "Sliced characteristic functions"
    family = "characteristic functions"
    source = ("epps1983test", "balestriero2025lejepa")
    needs = "samples"
    cost = "K (N + M) (D + 17) time, N + M memory"
    degree = 0.0
    root = 2.0

    bandwidth: Annotated[
        float,
        Range(1e-3, 1e3, unit="length", log=True, help="Small: only close neighbours; large: only means"),
    ] = 1.0
    slices: Annotated[
        int, Range(1, 4096, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 64
    directions: Annotated[Kind, Help("how the lines are spread; auto takes the most exact for the dimension")] = "auto"
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new lines at every step, right on average; fixed: the same all along")
    ] = "fresh"
    direction_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed lines", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        there = self._there(target, rng)
        return line_gap(line_waves(x - there.centre, weight, there.lines), there.waves).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: one sine and cosine for each point and line, turned on to the other knots."""
        there = self._there(target, rng)
        return Velocity(*follow_lines(x - there.centre, weight, there.lines, there.waves))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D), the particles x themselves unmoved."""
        there = self._there(target, rng)
        here = line_waves(x - there.centre, weight, there.lines)
        return pull_lines(at - there.centre, there.lines, line_slope(here, there.waves, len(there.lines)))

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed directions: the target's waves along each of them."""
        if self.draw == "fresh":
            return target
        return replace(target, memo={**(target.memo or {}), repr(self): self._fixed(target)})

    def _there(self, target: Cloud, rng: Generator) -> "_There":
        if self.draw == "fresh":
            return self._heard(target, unit_vectors(self.directions, self.slices, target.dim, rng))
        kept = (target.memo or {}).get(repr(self))
        return kept if isinstance(kept, _There) and kept.of is target.x else self._fixed(target)

    def _fixed(self, target: Cloud) -> "_There":
        return self._heard(target, fixed_unit_vectors(self.directions, self.slices, target.dim, self.direction_seed))

    def _heard(self, target: Cloud, theta: Tensor) -> "_There":
        centre, y = centre_of(target.x), target.x.detach()
        lines = (theta / self.bandwidth).to(y)
        return _There(target.x, centre, lines, line_waves(y - centre, target.weight, lines))


class _There(NamedTuple):
    """What the target says along each line."""

    of: Tensor  # (M, D) the target's points
    centre: Tensor  # (1, D) taken off both clouds
    lines: Tensor  # (K, D) directions over the bandwidth
    waves: Waves  # (K, 17) of the target
