"""Distance between empirical characteristic functions: a cloud as the sum of its waves."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses import _compiled
from dmviz.losses._slicing import centre_of
from dmviz.losses._waves import Spread, Waves, fixed_frequencies, follow, frequencies, pull, waves
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle"})


@entry
class Ecf:
    r"""Let every point send out waves, and compare what the two clouds sum to at many frequencies.

    $$ F = \frac1L \sum_{l=1}^{L} |\phi_X(t_l) - \phi_Y(t_l)|^2,\qquad \phi_X(t) = \sum_i a_i e^{i t\cdot x_i},
       \qquad t_l \sim N(0, I / \ell^2) $$

    with bandwidth $\ell$. The mean over all frequencies is the Gaussian MMD squared of the same bandwidth, and fresh
    frequencies are right on average, at a cost that grows with N and not with N squared. Unit: none; at most 4. A small
    bandwidth means fast waves, which see only noise (of about 1/N + 1/M) where points are sparse; a large one sees only
    the means. A particle moves with

    $$ v(x) = \frac2L \sum_l t_l \bigl[\operatorname{Re}\Delta_l \sin(t_l\cdot x)
       - \operatorname{Im}\Delta_l \cos(t_l\cdot x)\bigr],\qquad \Delta_l = \phi_X(t_l) - \phi_Y(t_l). $$

    `spread`: "random" frequencies are independent; "orthogonal" ones come in right-angled frames with the lengths of
    normal vectors; "quasi_random" ones are Sobol points, shifted as a whole by chance; "auto" is quasi-random up to
    three dimensions and orthogonal above. It fails as the Gaussian MMD does, where clouds are far apart in bandwidths,
    and a few fixed frequencies can be matched by clouds that differ.

    Epps and Singleton 1986; as random features, Rahimi and Recht 2007; orthogonal ones, Yu et al. 2016.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[1000.0]])
    >>> loss = Ecf(frequencies=4096)  # two points far apart: 2 - 2 exp(-1000^2 / 2)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 1)
    2.0

    ```
    """

    title = "Characteristic function distance"
    family = "characteristic functions"
    source = ("epps1986omnibus", "rahimi2007random", "yu2016orthogonal")
    needs = "samples"
    cost = "L (N + M) D time, N + M memory"
    degree = 0.0
    root = 2.0

    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: fast waves, only close neighbours; large: slow waves, only means",
        ),
    ] = 0.5
    frequencies: Annotated[
        int, Range(1, 16384, log=True, help="waves to compare: few are quick and rough, many slow and smooth")
    ] = 512
    spread: Annotated[Spread, Help("how the frequencies are spread; auto takes the most exact for the dimension")] = (
        "auto"
    )
    draw: Annotated[
        Literal["fresh", "fixed"],
        Help("fresh: new frequencies at every step, right on average; fixed: the same all along"),
    ] = "fresh"
    frequency_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed frequencies", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        there = self._there(target, rng)
        here = waves(x - there.centre, weight, there.t, there.compiled)
        gap = (here.re - there.waves.re).square() + (here.im - there.waves.im).square()
        return gap.mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: each wave's sine and cosine once, then two matrix products."""
        there = self._there(target, rng)

        def slope(here: Waves, part: slice) -> tuple[Tensor, Waves]:
            re, im = here.re - there.waves.re[part], here.im - there.waves.im[part]
            scale = 2.0 / len(there.t)
            return (re.square() + im.square()) / len(there.t), Waves(scale * re, scale * im)

        return Velocity(*follow(x - there.centre, weight, there.t, slope, there.compiled))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same waves' pull at any points (K, D), the particles x themselves unmoved."""
        there = self._there(target, rng)
        here, scale = waves(x - there.centre, weight, there.t, there.compiled), 2.0 / len(there.t)
        by = Waves(scale * (here.re - there.waves.re), scale * (here.im - there.waves.im))
        return pull(at - there.centre, there.t, by, there.compiled)

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed frequencies: the target's characteristic function."""
        memo = {**(target.memo or {}), "compiled": _compiled.chosen(target.memo, target.x)}
        if self.draw == "fixed":
            memo[repr(self)] = self._fixed(replace(target, memo=memo))
        return replace(target, memo=memo)

    def _there(self, target: Cloud, rng: Generator) -> "_There":
        if self.draw == "fresh":
            return self._heard(target, frequencies(self.spread, self.frequencies, target.dim, rng))
        kept = (target.memo or {}).get(repr(self))
        return kept if isinstance(kept, _There) and kept.of is target.x else self._fixed(target)

    def _fixed(self, target: Cloud) -> "_There":
        return self._heard(target, fixed_frequencies(self.spread, self.frequencies, target.dim, self.frequency_seed))

    def _heard(self, target: Cloud, standard: Tensor) -> "_There":
        centre, y = centre_of(target.x), target.x.detach()
        t = (standard / self.bandwidth).to(y)
        compiled = _compiled.chosen(target.memo, y)
        return _There(target.x, centre, t, waves(y - centre, target.weight, t, compiled), compiled)


class _There(NamedTuple):
    """What the target says at each frequency."""

    of: Tensor  # (M, D) the target's points
    centre: Tensor  # (1, D) taken off both clouds: a common shift turns both waves alike
    t: Tensor  # (L, D)
    waves: Waves  # of the target
    compiled: bool
