"""A loss aimed at a target: the one place where a gradient becomes a velocity."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.protocols import Loss, Velocity

Hold = Literal["free", "box", "sphere"]


def drives(loss: Loss | type[Loss]) -> bool:
    """Whether particles can follow it; a loss that only judges has no gradient."""
    return bool(getattr(loss, "drives", True))


def steady(loss: Loss) -> bool:
    """Whether it is the same number each time it is asked, and its velocity is that number's slope."""
    return "deterministic" in loss.laws and bool(getattr(loss, "descends", True))


def dims_of(loss: Loss | type[Loss]) -> tuple[int, int | None]:
    """Least and most dimensions that it can be asked in."""
    least, most = getattr(loss, "dims", (1, None))
    return least, most


def velocity_of(
    loss: Loss, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
) -> Velocity:
    """The Wasserstein velocity of each particle: minus the gradient of the loss over that particle's weight.

    In closed form where the loss has one, by autograd elsewhere.
    """
    closed = getattr(loss, "velocity", None)
    if closed is not None:
        with torch.no_grad():
            return closed(x, target, rng, weight, carry)  # type: ignore[no-any-return]
    return autograd_velocity(loss, x, target, rng, weight)


def autograd_velocity(loss: Loss, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Velocity:
    """The same by autograd, for losses without a closed form and for the test that compares the two."""
    leaf = x.detach().requires_grad_(True)
    value = loss(leaf, target, rng, weight)
    (grad,) = torch.autograd.grad(value, leaf)
    mass = mass_of(x, weight)[:, None]  # (N, 1)
    # A particle without weight has no gradient and no velocity.
    return Velocity(
        torch.where(mass > 0, -grad / mass.clamp_min(1e-300 if x.dtype == torch.float64 else 1e-30), 0.0),
        value.detach(),
    )


@dataclass(frozen=True, eq=False)
class AimedField:
    """`protocols.Field` for one loss and one target. Build it with `aim`, which prepares the target."""

    loss: Loss
    target: Cloud
    weight: Tensor | None = None
    holding: Hold = "free"
    radius: float = 1.0

    def __call__(self, x: Tensor, rng: Generator, carry: Any = None) -> Velocity:
        answer = velocity_of(self.loss, x, self.target, rng, self.weight, carry)
        return answer._replace(v=self.tangent(x, answer.v))

    def value(self, x: Tensor, rng: Generator) -> Tensor:
        with torch.no_grad():
            return self.loss(x, self.target, rng, self.weight)

    def probe(self, at: Tensor, x: Tensor, rng: Generator) -> Tensor:
        pull: Tensor = self.loss.probe(at, x, self.target, rng, self.weight)  # type: ignore[attr-defined]
        return self.tangent(at, pull)

    def score(self, x: Tensor) -> Tensor:
        assert self.target.score is not None  # `Setup` refuses a score flow on a target without one
        return self.tangent(x, self.target.score(x).detach())

    def hold(self, x: Tensor) -> Tensor:
        """Particles back where they must stay: the box [-radius, radius]^D or the sphere of that radius."""
        if self.holding == "box":
            return x.clamp(-self.radius, self.radius)
        if self.holding == "sphere":
            return torch.nn.functional.normalize(x, dim=1) * self.radius
        return x

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        if self.holding != "sphere":
            return v
        normal = torch.nn.functional.normalize(x, dim=1)
        return v - (v * normal).sum(1, keepdim=True) * normal


def aim(
    loss: Loss, target: Cloud, weight: Tensor | None = None, hold: Hold = "free", radius: float = 1.0
) -> AimedField:
    """A field with the target's own work done once."""
    prepare = getattr(loss, "prepare", None)
    return AimedField(loss, target if prepare is None else prepare(target), weight, hold, radius)
