"""READ FIRST: the words of dmviz.

An *entry* is one file in a menu folder: a frozen value with a title, a source and typed parameters (`params.py`).
These protocols say what each kind does; nothing is inherited. N particles or rows, D dimensions, M targets, K probes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.items import Items
from dmviz.laws import Family as Family  # what a loss looks at
from dmviz.laws import Law as Law  # what a loss claims, and a property test tries


class Entry(Protocol):
    title: ClassVar[str]
    source: ClassVar[tuple[str, ...]]  # keys in assets/references.bib


class Shape(Entry, Protocol):
    """A law that can be sampled and, where known, scored."""

    def sample(self, n: int, rng: Generator) -> Cloud: ...


class Dataset(Entry, Protocol):
    """Where real items come from."""

    def load(self, limit: int, rng: Generator) -> Items: ...


class Projection(Entry, Protocol):
    """A picture of many dimensions: fitted once a run, applied to every frame."""

    def fit(self, x: Tensor, rng: Generator) -> "Fitted": ...


class Fitted(Protocol):
    @property
    def axes(self) -> tuple[str, ...]: ...  # titles
    def __call__(self, x: Tensor) -> Tensor: ...  # (K, D) -> (K, 2 or 3)
    def turn(self, v: Tensor) -> Tensor: ...  # the same for velocities, which have no place


class Velocity(NamedTuple):
    """What a loss says to the particles: where to go, how far they are, and what to remember for the next step."""

    v: Tensor  # (N, D) minus the gradient over the particle's weight
    value: Tensor  # () the loss at x
    carry: Any = None  # warm start for the next call: potentials, sort orders; None where there is none


class Loss(Entry, Protocol):
    """How far particles are from a target: the power (W2 squared, MMD squared), never its root."""

    family: ClassVar[Family]
    needs: ClassVar[Literal["samples", "score", "nothing"]]  # what it reads of its target
    cost: ClassVar[str]  # time and memory, for example "N M D time, N + M memory"
    laws: ClassVar[frozenset[Law]]  # a property where parameters decide
    degree: ClassVar[float]  # F(sX) = s^degree F(X) when lengths among the parameters scale too; nan: none
    root: ClassVar[float]  # F^(1 / root) is the distance, where there is one

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor: ...

    # Optional: velocity(x, target, rng, weight=None, carry=None) -> Velocity   closed form, no autograd
    #   probe(at, x, target, rng, weight=None) -> (K, D)                 the pull felt at `at` among particles x
    #   prepare(target) -> Cloud                                         target-only work, once a run, kept in `memo`
    #   drives = False          it only judges: piecewise constant or not differentiable, so no flow can follow it
    #   descends = False        its velocity is not the slope of its value, which may rise at a good step
    #   dims = (1, 1)           dimensions that it can be asked in, least and most (None: no most)
    #   ordered = True          particle i belongs to target row i, so that the order of points matters


class Field(Protocol):
    """A loss aimed at one target: what a flow follows. Made in field.py."""

    @property
    def weight(self) -> Tensor | None: ...
    @property
    def target(self) -> Cloud: ...
    def __call__(self, x: Tensor, rng: Generator, carry: Any = None) -> Velocity: ...
    def value(self, x: Tensor, rng: Generator) -> Tensor: ...
    def probe(self, at: Tensor, x: Tensor, rng: Generator) -> Tensor: ...
    def score(self, x: Tensor) -> Tensor: ...
    def hold(self, x: Tensor) -> Tensor: ...  # back into the box or onto the sphere, where one is asked for
    def tangent(self, x: Tensor, v: Tensor) -> Tensor: ...  # the part of v that stays on the sphere, if there is one


class State(Protocol):
    """What the next step needs; each flow has its own, with at least these."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D) velocity at x, the one that arrows show
    value: Tensor  # () loss at x; nan where the flow does not follow the loss
    time: float


@dataclass(frozen=True)
class Info:
    """What one step tells us; never needed by the next."""

    dt: float  # time this step covered
    evaluations: int = 1  # how often the loss was asked
    note: str = ""  # one sentence where something happened: a step was halved, a start was far


class Flow(Entry, Protocol):
    """How particles answer a loss or a score."""

    needs: ClassVar[Literal["loss", "probe", "score", "samples"]]  # what drives it; the last two only watch the loss
    # Optional: steady = True   it compares the loss at past steps, so that the loss must not be drawn anew each time
    #   begins(x, field, rng) -> (N, D)   where a run starts instead of the source;   unfit(target) -> why not, or ""

    def init(self, x: Tensor, field: Field, rng: Generator) -> State: ...
    def step(self, state: Any, field: Field, rng: Generator) -> tuple[State, Info]: ...
