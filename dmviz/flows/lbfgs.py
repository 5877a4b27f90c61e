from collections.abc import Callable
from typing import Annotated, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import mass_of
from dmviz.flows._stepping import GROWTH, Moving, due_from, rises, started
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info, Velocity

HALVINGS = 12  # of one direction in one step
FLAT = 1e-8  # a turn of the gradient below this share of its size says nothing of curvature


class Past(NamedTuple):
    """The last steps, oldest first: how the particles moved, and how minus the velocity changed."""

    moves: tuple[Tensor, ...] = ()  # (N, D) each
    turns: tuple[Tensor, ...] = ()


class Found(NamedTuple):
    """What a search along one direction came to; `answer` is None where no step was low enough."""

    x: Tensor
    answer: Velocity | None
    size: float
    tries: int


@entry
class Lbfgs:
    r"""Particles learn from their last steps how the loss bends, and aim at the bottom of the bowl that they guess.

    $$ x \leftarrow x + t\, H v, \qquad H y_k = s_k, \quad s_k = x_k - x_{k-1}, \quad y_k = v_{k-1} - v_k $$

    Limited-memory BFGS: $H$ is the inverse curvature that agrees with the last `memory` steps, never written out. All
    products weigh particles by their mass, so that repeating a particle or giving it twice the weight is the same.
    The size $t$ starts at 1 and is halved until the loss falls by a twentieth of what the velocity promised. The first
    step, and any for which memory points uphill, goes along $v$ with `dt`, which halves and grows as it must; the step
    then says so. Time only counts steps: the path is no gradient flow, only the place where it rests is the same.

    Made for losses whose curvature differs by direction, such as KSD. Pairs of steps between which the slope did not
    rise are left out, as backtracking cannot promise that it does. Fails on losses that are drawn anew each time, which
    are refused, and at kinks (energy distance, exact W1), where past slopes mislead. On the sphere directions are
    projected, and past steps are not carried along.

    Liu and Nocedal 1989; for KSD descent Korba et al. 2021.
    """

    title = "L-BFGS"
    source = ("liu1989limited", "korba2021kernel")
    needs = "loss"
    steady = True

    memory: Annotated[
        int, Range(1, 50, unit="steps", help="past steps that shape the next: 1 is rough, 20 is fine")
    ] = 10
    dt: Annotated[
        float, Range(1e-4, 1e3, unit="time", log=True, help="how far along the velocity while nothing is remembered")
    ] = 0.1

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        return started(x, field, rng, self.dt, Past())

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        past, dt, note, tries = state.memory, state.dt, "", 0
        mass = mass_of(state.x, field.weight).double()
        found = None
        if past.moves:
            way = field.tangent(state.x, bent(state.v, past, mass))
            found = search(state, field, rng, lambda size: state.x + size * way, 1.0)
            tries = found.tries
        if found is None or found.answer is None:
            if found is not None:
                note, past = (
                    "Followed the plain velocity: the way that past steps suggested led to no lower loss.",
                    Past(),
                )
            found = search(state, field, rng, lambda size: state.x + size * state.v, dt)
            tries += found.tries
            dt = found.size * (GROWTH if found.tries == 1 else 1.0)
        if found.answer is None:
            note = "Stayed in place: no step lowers the loss. This is a resting place or a kink, or dt is too large."
            return state._replace(time=state.time + 1.0, dt=dt, memory=Past()), Info(1.0, tries, note)
        past = self._remembered(past, found.x - state.x, state.v - found.answer.v, mass)
        v, value, carry = found.answer
        return Moving(found.x, v, value, carry, state.time + 1.0, dt, past), Info(1.0, tries, note)

    def _remembered(self, past: Past, move: Tensor, turn: Tensor, mass: Tensor) -> Past:
        """The past with one more step, if along it the slope rose."""
        rose = product(move, turn, mass)
        if not rose > FLAT * (product(move, move, mass) * product(turn, turn, mass)) ** 0.5:
            return past
        return Past((*past.moves, move)[-self.memory :], (*past.turns, turn)[-self.memory :])


def search(state: Moving, field: Field, rng: Generator, propose: Callable[[float], Tensor], size: float) -> Found:
    """Halve a step until the loss falls by a twentieth of what the velocity promised (Armijo's rule)."""
    for tries in range(1, HALVINGS + 2):
        x = field.hold(propose(size))
        due = due_from(state, x, field)
        answer = field(x, rng, state.carry)
        if due > 0 and not rises(answer.value, state.value, 0.0, due):
            return Found(x, answer, size, tries)
        size /= 2
    return Found(state.x, None, size, tries)


def bent(v: Tensor, past: Past, mass: Tensor) -> Tensor:
    """H v by the two loops of Nocedal: the velocity bent by the remembered steps, newest first and back again."""
    way, shares = v, []
    for move, turn in zip(reversed(past.moves), reversed(past.turns), strict=True):
        share = product(move, way, mass) / product(turn, move, mass)
        shares.append(share)
        way = way - share * turn
    newest, turn = past.moves[-1], past.turns[-1]
    way = way * (product(newest, turn, mass) / product(turn, turn, mass))
    for move, turn, share in zip(past.moves, past.turns, reversed(shares), strict=True):
        way = way + (share - product(turn, way, mass) / product(turn, move, mass)) * move
    return way


def product(a: Tensor, b: Tensor, mass: Tensor) -> float:
    """The inner product of two velocity fields, each particle weighed by its mass."""
    return float(mass @ (a.double() * b.double()).sum(1))
