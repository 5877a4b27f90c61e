"""Soft-histogram KL: the two clouds' histograms, made smooth, compared bin by bin."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._bins import (
    Bins,
    Bump,
    floored,
    histogram,
    kl,
    normalised,
    pull,
    spread_of,
    through_floor,
)
from dmviz.losses._lines import accurate
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "deterministic"})


@entry
class SoftHistogramKl:
    r"""Count the points in soft bins along each coordinate, and compare the two histograms.

    $$ F = \frac1D \sum_d \sum_k p_{dk} \log \frac{p_{dk}}{q_{dk}}, \qquad
       p_{dk} \propto \sum_i a_i\, \phi_k(x_{id}) + 10^{-6} $$

    for the particles' shares p and the target's q ("reverse"); "forward" exchanges them, "both" is the mean of the two.
    K centres lie evenly on [-reach, reach], or on the target's own range, `widen` times as wide. A point shares its
    mass out by phi: "triangular" between its two neighbouring centres; "gaussian" by a bell of `softness` bin widths,
    normalised for each point; "sigmoid" by a box with soft edges. Unit: nats. The reverse direction keeps particles
    out of bins that the target leaves empty; the forward one sends some to every bin that the target fills.

    Fails: it sees each coordinate alone, so a square and its diagonal are the same; a point beyond the outer centres
    counts as if it stood on them and feels nothing; narrow bumps feel only the next bin, wide ones are blind to
    detail; and moving both clouds past the bins changes the value. Where distance has a meaning, Cramer or Wasserstein
    distances say more. After Ustinova and Lempitsky 2016, whose histograms are triangular; the floor of 1e-6 is ours.

    ```python
    >>> from dmviz.cloud import seeded
    >>> loss = SoftHistogramKl(bump="triangular", bins=2, reach=1.0)  # two bins, at -1 and at 1
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[0.5]])  # shares (1/2, 1/2) and (1/4, 3/4)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # log(4/3) / 2
    0.1438

    ```
    """

    title = "Soft-histogram KL"
    family = "moments and order"
    source = ("ustinova2016histogram",)
    needs = "samples"
    cost = "(N + M) D K time, N + M memory"
    degree = 0.0
    root = 1.0

    bins: Annotated[int, Range(2, 256, log=True, help="few see the rough shape, many see detail and need points")] = 32
    span: Annotated[
        Literal["fixed", "target"], Help("fixed: bins over [-reach, reach]; target: over the target's own range")
    ] = "fixed"
    reach: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="outermost centre: points beyond it feel nothing")
    ] = 4.0
    widen: Annotated[
        float,
        Range(1.0, 10.0, help="1: bins end at the target's last point; more: further out", when={"span": ("target",)}),
    ] = 2.0
    bump: Annotated[Bump, Help("how a point shares its mass: a bell, its two neighbours, or a box with soft edges")] = (
        "gaussian"
    )
    softness: Annotated[
        float,
        Range(
            0.1,
            20.0,
            log=True,
            help="in bin widths: small feels the next bin, large is blind to detail",
            when={"bump": ("gaussian", "sigmoid")},
        ),
    ] = 1.0
    direction: Annotated[
        Literal["reverse", "forward", "both"],
        Help("reverse: leave bins that the target leaves empty; forward: fill all bins that it fills; both: the mean"),
    ] = "reverse"

    @property
    def laws(self) -> frozenset[Law]:
        found = set(_LAWS)
        if self.span == "target":
            found.add("shift_free")
        elif self.direction == "both":
            found.add("symmetric")
        return frozenset(found)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        bins, q = self._there(target)
        p = floored(normalised(self._histogram(x, mass_of(x, weight), bins)))
        return self._compared(p, q).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Down the slope of the bins' derivative, as the particle's bump sees it."""
        bins, q = self._there(target)
        h = self._histogram(x, mass_of(x, weight), bins)
        p = floored(normalised(h))
        slope = through_floor(self._slope(p, q), h) / x.shape[1]
        v = -pull(x, slope, bins, self.bump, self.softness).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, self._compared(p, q).mean().to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same slope at any points (K, D)."""
        bins, q = self._there(target)
        h = self._histogram(x, mass_of(x, weight), bins)
        slope = through_floor(self._slope(floored(normalised(h)), q), h) / x.shape[1]
        return -pull(at, slope, bins, self.bump, self.softness).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The bins and the target's histogram."""
        return replace(target, memo={"of": target.x, "loss": self, "there": self._made(target)})

    def _there(self, target: Cloud) -> tuple[Bins, Tensor]:
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["there"]  # type: ignore[no-any-return]
        return self._made(target)

    @torch.no_grad()
    def _made(self, target: Cloud) -> tuple[Bins, Tensor]:
        if self.span == "target":
            bins = Bins.around(*spread_of(target.x, self.reach, self.widen), self.bins)
        else:
            reach = target.x.new_full((target.dim,), self.reach, dtype=accurate(target.x))
            bins = Bins.around(torch.zeros_like(reach), reach, self.bins)
        return bins, floored(normalised(self._histogram(target.x, target.mass(), bins)))

    def _histogram(self, x: Tensor, mass: Tensor, bins: Bins) -> Tensor:
        return histogram(x, mass, bins, self.bump, self.softness)

    def _compared(self, p: Tensor, q: Tensor) -> Tensor:
        """(D,) divergence on each axis."""
        if self.direction == "both":
            return 0.5 * (kl(p, q) + kl(q, p))
        return kl(p, q) if self.direction == "reverse" else kl(q, p)

    def _slope(self, p: Tensor, q: Tensor) -> Tensor:
        """(D, K) derivative of the divergence in p."""
        reverse, forward = (p / q).log() + 1.0, -q / p
        if self.direction == "both":
            return 0.5 * (reverse + forward)
        return reverse if self.direction == "reverse" else forward
