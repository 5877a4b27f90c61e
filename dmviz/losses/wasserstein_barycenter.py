"""Barycentre objective: the mean squared transport distance to every labelled part of the target."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses.wasserstein import LARGEST, Wasserstein
from dmviz.params import Help, entry
from dmviz.protocols import Velocity

_W2 = Wasserstein()


@entry
class WassersteinBarycenter:
    r"""Become the shape halfway between the target's labelled parts, each of which pulls on all particles.

    $$ F = \sum_s \lambda_s\, W_2^2(\mu, \nu_s) $$

    where $\nu_s$ is the part of the target with label s, scaled to a mass of 1; a target without labels is one part,
    and F is the squared exact distance to it. The weights $\lambda_s$ are equal or the parts' masses. Unit: length
    squared. A particle moves to the mean of where the exact plans send it,

    $$ v_i = 2 \sum_s \lambda_s \Bigl(\frac{1}{a_i} \sum_j P^s_{ij} y^s_j - x_i\Bigr), $$

    so Euler with a step of 1/2 is the fixed-point iteration for a barycentre with free support. F does not end at
    zero: what is left is the spread of the parts about their barycentre. A flow along W2 to the target as a whole
    would split the particles among the parts instead.

    Fails: not convex in the particles, so it depends on the start which of several barycentres is found; at most
    3,000 particles and points a part (on a line there is no limit), in a time of about their number cubed for each
    part.

    Cuturi and Doucet 2014; Alvarez-Esteban et al. 2016.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, ends = torch.tensor([[0.0, 0.0]]), torch.tensor([[-3.0, 1.0], [3.0, 1.0]])
    >>> loss, target = WassersteinBarycenter(), Cloud(ends, label=torch.tensor([0, 1]))
    >>> loss(here, target, seeded(0)).item(), loss.velocity(here, target, seeded(0)).v.tolist()  # (10 + 10) / 2
    (10.0, [[0.0, 2.0]])

    ```
    """

    title = "Wasserstein barycentre"
    family = "transport"
    source = ("cuturi2014fast", "alvarezesteban2016fixed")
    needs = "samples"
    cost = "about N^3 time for each label, N M memory, at most 3,000 points a side; on a line N log N and no limit"
    laws = frozenset({"nonnegative", "shift_free", "rotation_free", "deterministic"})
    degree = 2.0
    root = 2.0

    share: Annotated[
        Literal["equal", "mass"], Help("How much each label counts: all alike, or by its part of the target's mass")
    ] = "equal"

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        total = x.new_zeros(())
        for share, part in self._checked(x, target):
            total = total + share * _W2(x, part, rng, weight)
        return total

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Twice the way to the mean of where the plans to all parts send a particle."""
        v, value = torch.zeros_like(x), x.new_zeros(())
        for share, part in self._checked(x, target):
            pull = _W2.velocity(x, part, rng, weight)
            v, value = v + share * pull.v, value + share * pull.value
        return Velocity(v, value)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's parts, once a run."""
        return replace(target, memo={"parts": self.parts(target), "loss": self, "of": target.x})

    def parts(self, target: Cloud) -> list[tuple[float, Cloud]]:
        """Weight and points of every label that has mass."""
        if target.label is None:
            return [(1.0, Cloud(target.x, target.weight))]
        mass, found = target.mass(), []
        for label in target.label.unique():  # type: ignore[no-untyped-call]
            mine = target.label == label
            total = float(mass[mine].double().sum())
            if total > 0:
                weight = None if target.weight is None else target.weight[mine] / total
                found.append((1.0 if self.share == "equal" else total, Cloud(target.x[mine], weight)))
        whole = sum(share for share, _ in found)
        return [(share / whole, part) for share, part in found]

    def _checked(self, x: Tensor, target: Cloud) -> list[tuple[float, Cloud]]:
        memo = target.memo
        known = memo and memo.get("loss") == self and memo.get("of") is target.x
        parts: list[tuple[float, Cloud]] = memo["parts"] if memo and known else self.parts(target)
        most = max(len(x), *(len(part) for _, part in parts))
        if target.dim > 1 and most > LARGEST:
            raise ValueError(
                f"Wasserstein barycentre: at most {LARGEST:,} particles, and points in each label, got {most:,}: exact "
                "plans take a time of their number cubed. Take fewer points."
            )
        return parts
