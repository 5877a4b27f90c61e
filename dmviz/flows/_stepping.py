"""What the flows that follow a loss share: their state, and a step that will not let the loss explode."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import mass_of
from dmviz.field import steady
from dmviz.protocols import Field, Info, Velocity

SMALLEST = 2.0**-12  # of the step size asked for
PROMISE = 0.05
GROWTH = 1.25  # after a step that was accepted at once
HALVINGS = 4  # a step; what is still too long then is halved further in the next


class Moving(NamedTuple):
    """State of a flow: particles, the velocity and loss at them, and what the loss and the flow remember."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D)
    value: Tensor  # ()
    carry: Any
    time: float
    dt: float  # step size that the next step tries first
    memory: Any = None


def started(x: Tensor, field: Field, rng: Generator, dt: float, memory: Any = None) -> Moving:
    """The state at the start, with the velocity already known, so that frame 0 has its loss and arrows."""
    x = field.hold(x)
    answer = field(x, rng)
    return Moving(x, answer.v, answer.value, answer.carry, 0.0, dt, memory)


def rises(new: Tensor, old: Tensor, slack: float, due: float = 0.0) -> bool:
    """Whether the loss is no longer a number, rose by more than `slack` of itself, or fell by less than `due`."""
    after, before = float(new), float(old)
    if not math.isfinite(after):
        return True
    rounding = 64 * torch.finfo(new.dtype).eps * abs(before)
    return after > before + slack * abs(before) - due + rounding + 1e-12


def due_from(state: Moving, x: Tensor, field: Field) -> float:
    """A twentieth of the fall that the velocity promised for the way to x (Armijo's rule).

    Without it a giant step is welcome wherever the loss is bounded: an MMD is lower with its particles flung away.
    """
    mass = mass_of(x, field.weight)
    return PROMISE * max(0.0, float((mass * ((x - state.x) * state.v).sum(1)).sum()))


def guarded(
    state: Moving, field: Field, rng: Generator, propose: Callable[[float], Tensor], slack: float, most: float
) -> tuple[Tensor, Velocity, Info, float]:
    """Try a step; halve it while it makes the loss rise. Returns the place, the answer there, Info and the next dt.

    `slack` is how much of its value the loss may rise in one step: 0 for a descent that must descend (by Armijo's
    rule), 0.5 where fresh directions or momentum make it waver.
    """
    dt, tries = state.dt, 0
    while True:
        x = field.hold(propose(dt))
        answer = field(x, rng, state.carry)
        tries += 1
        due = due_from(state, x, field) if slack == 0 else 0.0
        rose = rises(answer.value, state.value, slack, due)
        if not rose or tries > HALVINGS or dt <= most * SMALLEST:
            break
        dt /= 2
    note = ""
    if tries > 1:
        note = f"Step size halved to {dt:.3g}: a longer step made the loss rise or gained nothing."
    grown = min(dt * GROWTH, most) if tries == 1 else dt
    return x, answer, Info(dt, tries, note), grown


def plain(
    state: Moving, field: Field, rng: Generator, propose: Callable[[float], Tensor]
) -> tuple[Tensor, Velocity, Info, float]:
    """Take the step as asked, whatever the loss does."""
    x = field.hold(propose(state.dt))
    return x, field(x, rng, state.carry), Info(state.dt), state.dt


def slack_of(field: Field) -> float:
    """No rise at all where the loss is the same number each time it is asked; half of itself where it is drawn, and
    where its velocity is not the slope of its value.
    """
    return 0.0 if steady(field.loss) else 0.5  # type: ignore[attr-defined]
