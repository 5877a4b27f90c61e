"""What the Hamiltonian flows share: frictionless motion that can be run backwards, in a box and on a sphere too."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.protocols import Field


def momenta(x: Tensor, field: Field, rng: Generator) -> Tensor:
    """(N, D) standard normal momenta, on the sphere in its tangent plane."""
    return field.tangent(x, normal(tuple(x.shape), x, rng))


def drift(x: Tensor, p: Tensor, time: float, field: Field) -> tuple[Tensor, Tensor]:
    """Free motion: straight on, off the walls of the box as light is, or along great circles of the sphere."""
    holding, radius = getattr(field, "holding", "free"), getattr(field, "radius", 1.0)
    if holding == "box":
        way = torch.remainder(x + time * p + radius, 4 * radius)  # unfolded: there and back is one period
        back = way > 2 * radius
        return torch.where(back, 4 * radius - way, way) - radius, torch.where(back, -p, p)
    if holding == "sphere":
        turn = p.norm(dim=1, keepdim=True) / radius  # angle per time
        cos, sin = (turn * time).cos(), (turn * time).sin()
        along = time * torch.sinc(turn * time / torch.pi)  # sin(turn t) / turn, also where nothing turns
        return field.hold(x * cos + p * along), p * cos - x * (turn * sin)
    return x + time * p, p


def leapfrog(
    x: Tensor, p: Tensor, force: Tensor, pull: Callable[[Tensor], Tensor], dt: float, leaps: int, field: Field
) -> tuple[Tensor, Tensor, Tensor]:
    """Half a kick, drifts with kicks between them, half a kick. Returns place, momentum, and the force there.

    With the momentum turned round the same call leads back to where it began.
    """
    p = p + 0.5 * dt * force
    for leap in range(leaps):
        x, p = drift(x, p, dt, field)
        force = pull(x)
        p = field.tangent(x, p + (dt if leap < leaps - 1 else 0.5 * dt) * force)
    return x, p, force


def accepted(rise: Tensor, rng: Generator) -> Tensor:
    """(N,) whether each proposal is taken, by Metropolis' rule, where energy rises by `rise`; never if it is nan."""
    chance = torch.rand(len(rise), generator=rng, device=rng.device, dtype=torch.float64).to(rise.device)
    return chance.log() < -rise
