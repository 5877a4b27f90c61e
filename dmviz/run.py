"""Setup, Frame, simulate, record, Run, links: the only loop of dmviz."""

import hashlib
import os
import platform
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dmviz.catalog import entry_class, menu, name_of, place_of
from dmviz.cloud import Cloud, seeded
from dmviz.field import AimedField, aim, dims_of, drives, steady
from dmviz.params import Help, Param, Range, params_of, settings
from dmviz.protocols import Dataset, Fitted, Flow, Loss, Projection, Shape, State

SCHEMA = "1"
PARTS: dict[str, tuple[str, ...]] = {
    "source": ("shapes", "datasets"),
    "target": ("shapes", "datasets"),
    "loss": ("losses",),
    "flow": ("flows",),
    "projection": ("projections",),
}
MOST_NUMBERS = 20_000_000  # in one cloud: n times D
REFEREE_POINTS = {"wasserstein": 600}  # above it the referee is left out; others thin to MOST_REFEREE_POINTS
MOST_REFEREE_POINTS = 2_000


def _start(folder: str, name: str) -> Any:
    return field(default_factory=lambda: entry_class(folder, name)(), metadata={"part": True})


@dataclass(frozen=True)
class Setup:
    """Everything that was chosen. Equal setups give equal runs on one machine.

    Raises ValueError, in one sentence, for a value out of range or parts that do not fit each other.
    """

    source: Shape | Dataset = _start("shapes", "gaussian")
    target: Shape | Dataset = _start("shapes", "two_moons")
    loss: Loss = _start("losses", "sliced_wasserstein")
    flow: Flow = _start("flows", "euler")
    projection: Projection = _start("projections", "pca")
    n: Annotated[int, Range(1, 200_000, unit="particles", log=True, help="particles that move")] = 500
    m: Annotated[int, Range(1, 200_000, unit="points", log=True, help="points drawn from the target")] = 500
    seed: Annotated[int, Range(0, 2**31 - 1, help="draws the source and the flow's noise")] = 0
    target_seed: Annotated[int, Range(0, 2**31 - 1, help="draws the target")] = 0
    steps_per_frame: Annotated[int, Range(1, 1_000, log=True, help="steps between two pictures")] = 1
    hold: Annotated[Literal["free", "box", "sphere"], Help("keep particles in a box or on a sphere")] = "free"
    radius: Annotated[
        float, Range(0.01, 1e4, unit="length", log=True, help="half side or radius", when={"hold": ("box", "sphere")})
    ] = 3.0
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], Help("auto takes CUDA, then MPS, then the CPU")] = "auto"
    precision: Annotated[Literal["float32", "float64"], Help("float64 is for checks: slower, 16 digits")] = "float32"
    referees: Annotated[str, Help("measures beside the loss, separated by commas", most=200)] = (
        "wasserstein,energy_distance,sliced_wasserstein"
    )
    referee_every: Annotated[int, Range(1, 1_000, unit="steps", log=True, help="steps between two referee values")] = 10

    def __post_init__(self) -> None:
        for param in setup_params():
            object.__setattr__(self, param.name, param.checked(getattr(self, param.name), "Setup"))
        for name, folders in PARTS.items():
            part = getattr(self, name)
            if not getattr(type(part), "__is_entry__", False) or place_of(part)[0] not in folders:
                raise ValueError(f"Setup: {name} must be an entry from {' or '.join(folders)}, got {part!r}")
        if follows(self.flow) and not drives(self.loss):
            raise ValueError(
                f"{self.loss.title} only judges: it has no gradient that particles could follow. Name it among the "
                "referees, and pick another loss to flow under"
            )
        if self.flow.needs == "probe" and not hasattr(self.loss, "probe"):
            able = [n for n in menu("losses") if hasattr(entry_class("losses", n), "probe")]
            raise ValueError(
                f"{self.flow.title} asks for the pull at places where no particle is, and {self.loss.title} has none "
                f"to offer. Pick one of {', '.join(able)}"
            )
        if getattr(self.flow, "steady", False) and not steady(self.loss):
            raise ValueError(
                f"{self.flow.title} compares past steps, and {self.loss.title}, as it is set, is drawn anew at each or "
                "moves particles otherwise than downhill. Fix its draw where it has that choice, or pick another flow"
            )
        self.referee_names()

    def judges(self) -> tuple[str, ...]:
        """Losses named as referees, the one that the flow minimises among them."""
        names = tuple(dict.fromkeys(n.strip() for n in self.referees.split(",") if n.strip()))
        for name in names:
            entry_class("losses", name)
        return names

    def referee_names(self) -> tuple[str, ...]:
        """Losses that judge the run; never the one that the flow minimises."""
        return tuple(n for n in self.judges() if n != name_of(self.loss))


def follows(flow: Flow) -> bool:
    """Whether a flow asks the loss; one that is driven by the target alone only has it watched."""
    return flow.needs in ("loss", "probe")


def setup_params() -> tuple[Param, ...]:
    """The fields of Setup that are plain values rather than entries."""
    return params_of(Setup)


# ---------------------------------------------------------------------------------------------------- links


def to_link(setup: Setup) -> dict[str, str]:
    """The text form of a setup: what differs from the defaults, and the version of the schema."""
    return {"v": SCHEMA} | part_words(setup, PARTS) | settings(setup)


def part_words(setup: Setup, parts: Iterable[str]) -> dict[str, str]:
    """Some parts of a setup as text: an entry's name and settings where they differ from the defaults."""
    found, start = {}, Setup()
    for part in parts:
        value = getattr(setup, part)
        if type(value) is not type(getattr(start, part)):
            found[part] = name_of(value)
        found |= {f"{part}.{key}": text for key, text in settings(value).items()}
    return found


def query(setup: Setup) -> str:
    """The link as it stands in an address bar."""
    return urllib.parse.urlencode(to_link(setup), quote_via=urllib.parse.quote)


def from_link(link: Mapping[str, str] | str) -> Setup:
    """The setup of a link. Raises ValueError with the first thing that is wrong."""
    setup, notes = read_link(link)
    if notes:
        raise ValueError(notes[0])
    return setup


def read_link(link: Mapping[str, str] | str) -> tuple[Setup, tuple[str, ...]]:
    """The setup of a link that may be old or mistyped: what is not understood falls back, with a sentence each."""
    notes: list[str] = []
    words = words_of(link, notes)
    chosen = {**read_parts(PARTS, words, notes), **read_values(words, notes)}
    notes += meaningless(words)
    try:
        return Setup(**chosen), tuple(notes)
    except ValueError as error:  # parts that do not fit each other: keep the clouds, go back to a flow that fits all
        kept = {k: v for k, v in chosen.items() if k not in ("flow", "referees")}
        if not drives(kept["loss"]):
            del kept["loss"]
        return Setup(**kept), (*notes, str(error))


def words_of(link: Mapping[str, str] | str, notes: list[str]) -> dict[str, str]:
    """The words of a link without its version; readers take theirs out, so that what is left means nothing."""
    words = dict(urllib.parse.parse_qsl(link, keep_blank_values=True)) if isinstance(link, str) else dict(link)
    if words.pop("v", SCHEMA) != SCHEMA:
        notes.append("This link was made by another version of dmviz; what is not understood keeps its default.")
    return words


def read_parts(parts: Iterable[str], words: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """The entries that some parts of a setup are, taken out of `words`; a sentence among `notes` for each mistake."""
    start = Setup()
    return {part: _read_part(part, PARTS[part], words, getattr(start, part), notes) for part in parts}


def read_values(words: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """The plain values of a setup that `words` names."""
    return {p.name: _read(p, words.pop(p.name), "Setup", notes) for p in setup_params() if p.name in words}


def meaningless(words: Mapping[str, str]) -> list[str]:
    return [f"{key!r} means nothing in a link; it is left out." for key in words]


def _read_part(part: str, folders: tuple[str, ...], words: dict[str, str], start: Any, notes: list[str]) -> Any:
    cls, name = type(start), words.pop(part, None)
    if name is not None:
        known = {entry: folder for folder in folders for entry in menu(folder)}
        if name in known:
            cls = entry_class(known[name], name)
        else:
            notes.append(f"no {part} named {name!r}; there are {', '.join(known)}")
    params = {p.name: p for p in params_of(cls)}
    mine = [key for key in words if key.startswith(f"{part}.")]
    values = {}
    for key in mine:
        text, short = words.pop(key), key[len(part) + 1 :]
        if short in params:
            values[short] = _read(params[short], text, cls.__name__, notes)
        else:
            notes.append(f"{cls.__name__} has no {short!r}; it has {', '.join(params) or 'no settings'}")
    try:
        return cls(**values)
    except ValueError as error:
        notes.append(str(error))
        return cls()


def _read(param: Param, text: str, owner: str, notes: list[str]) -> Any:
    try:
        return param.parsed(text, owner)
    except ValueError as error:
        notes.append(str(error))
        return param.default


def digest(setup: Setup) -> str:
    """Sixteen letters that stand for the link: cache key, file name, test id."""
    return hashlib.blake2b(query(setup).encode(), digest_size=8).hexdigest()


# ---------------------------------------------------------------------------------------------------- frames


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a run, on the CPU, never changed once made."""

    step: int
    time: float
    clouds: Mapping[str, np.ndarray]  # "particles": (N, 2 or 3) float32
    x: np.ndarray  # (N, D) float32, the particles themselves
    arrows: np.ndarray  # (N, 2 or 3) float32, their velocity as the picture shows it
    speed: np.ndarray  # (N,) float32, length of the velocity in all D dimensions
    metrics: Mapping[str, float]  # "loss", and referees at their stride
    note: str = ""
    ended: str = ""  # why the run stopped here by itself


@dataclass(frozen=True, eq=False)
class Scene:
    """What stays the same over a run: the target, labels, axes, and where it is computed."""

    target: np.ndarray  # (M, 2 or 3) float32
    target_x: np.ndarray  # (M, D) float32
    target_weight: np.ndarray | None
    target_label: np.ndarray | None
    weight: np.ndarray | None
    label: np.ndarray | None
    label_names: tuple[str, ...]
    dims: int
    axes: tuple[str, ...]
    device: str
    notes: tuple[str, ...]
    referees: Mapping[str, str]  # name -> title


@dataclass(frozen=True, eq=False)
class Start:
    """A setup turned into tensors: what the loop needs."""

    setup: Setup
    x: Tensor
    field: AimedField
    referees: Mapping[str, AimedField]
    look: Fitted
    scene: Scene


def device_of(choice: str) -> str:
    """Where a run computes: "auto" takes CUDA, then MPS, then the CPU.

    Raises ValueError when a device is asked for that this machine does not have.
    """
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if choice == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if have[name])
    if not have[choice]:
        raise ValueError(f"device {choice!r} was asked for, and this machine has none. Pick auto or cpu.")
    return choice


def draw(part: Shape | Dataset, n: int, seed: int, stream: int) -> tuple[Cloud, tuple[str, ...], tuple[str, ...]]:
    """A cloud from a shape or a dataset, with the names of its labels and what was left out on the way."""
    rng = seeded(seed, stream)
    if hasattr(part, "sample"):
        return part.sample(n, rng), tuple(getattr(part, "label_names", ())), ()
    items = part.load(n, rng)
    return items.cloud(), tuple(items.label_names), tuple(items.notes)


@lru_cache(maxsize=256)
def dim_of(part: Any) -> int:
    """Dimensions of the clouds that a shape or dataset gives. Raises its ValueError where it cannot give any."""
    return draw(part, 2, 0, 1)[0].dim


def start(setup: Setup, judges: tuple[str, ...] | None = None) -> Start:
    """Draw both clouds, put them on the device, prepare the losses and fit the picture.

    `judges` are the referees where they are others than `setup.referee_names()`, as in a race.
    Raises ValueError, in one sentence, when source, target, loss and flow do not fit each other.
    """
    device, dtype = device_of(setup.device), getattr(torch, setup.precision)
    source, names, notes = draw(setup.source, setup.n, setup.seed, 1)
    target, target_names, target_notes = draw(setup.target, setup.m, setup.target_seed, 2)
    _check_fit(setup, source, target)
    source, target = source.to(device, dtype), target.to(device, dtype)
    referees, left_out = _referees(setup.referee_names() if judges is None else judges, source, target)
    look = _look(setup, source, target)
    scene = Scene(
        target=_frozen(look(target.x)), target_x=_frozen(target.x), target_weight=_maybe(target.weight),
        target_label=_maybe(target.label), weight=_maybe(source.weight), label=_maybe(source.label),
        label_names=names or target_names, dims=_dims(look, source), axes=look.axes,
        device=_device_words(device), notes=(*notes, *target_notes, *left_out),
        referees={name: f.loss.title for name, f in referees.items()},
    )  # fmt: skip
    pull = aim(setup.loss, target, source.weight, setup.hold, setup.radius)
    begins = getattr(setup.flow, "begins", None)
    x = source.x if begins is None else begins(source.x, pull, seeded(setup.seed, 7))
    return Start(setup, x, pull, referees, look, scene)


def scene_of(setup: Setup) -> Scene:
    return start(setup).scene


def _check_fit(setup: Setup, source: Cloud, target: Cloud) -> None:
    if source.dim != target.dim:
        raise ValueError(
            f"the source has {source.dim} dimensions and the target {target.dim}; "
            f"give both the same, for example source.dim={target.dim}"
        )
    for name, cloud in (("source", source), ("target", target)):
        if cloud.x.numel() > MOST_NUMBERS:
            raise ValueError(
                f"the {name} has {cloud.x.numel():,} numbers, and {MOST_NUMBERS:,} is the most; take fewer"
            )
        if not torch.isfinite(cloud.x).all():
            raise ValueError(f"the {name} holds values that are not numbers; leave those rows out")
    if reason := _unfit(setup.loss, source.dim):
        raise ValueError(f"{reason} Pick other clouds or another loss.")
    wants = [part for part in (setup.loss, setup.flow) if part.needs == "score"]
    if wants and target.score is None:
        raise ValueError(
            f"{wants[0].title} needs the score of its target, and {setup.target.title} has only samples. "
            "Pick a shape with a known density, such as a Gaussian mixture."
        )
    if reason := getattr(setup.flow, "unfit", lambda _: "")(target):
        raise ValueError(f"{setup.flow.title} {reason}")


def _unfit(loss: Loss, dim: int) -> str:
    """One sentence where a loss cannot be asked in so many dimensions."""
    least, most = dims_of(loss)
    if least <= dim and (most is None or dim <= most):
        return ""
    wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
    return f"{loss.title} is for {wanted} dimension{'s' * (wanted != '1')}, and these clouds have {dim}."


def _referees(names: tuple[str, ...], source: Cloud, target: Cloud) -> tuple[dict[str, AimedField], tuple[str, ...]]:
    found, left_out = {}, []
    for name in names:
        loss = entry_class("losses", name)()
        most = REFEREE_POINTS.get(name)
        if reason := _unfit(loss, source.dim):
            left_out.append(f"Not shown: {reason}")
        elif loss.needs == "score" and target.score is None:
            left_out.append(f"{loss.title} is not shown: the target has no known score.")
        elif most is not None and source.dim > 1 and max(len(source), len(target)) > most:
            left_out.append(f"{loss.title} is not shown: it is computed up to {most} points.")
        else:
            found[name] = aim(loss, _thinned(target), _thinned(source).weight)
    if found and max(len(source), len(target)) > MOST_REFEREE_POINTS:
        left_out.append(f"Referees look at {MOST_REFEREE_POINTS:,} evenly spaced points of each cloud.")
    return found, tuple(left_out)


def _thinned(cloud: Cloud) -> Cloud:
    """At most MOST_REFEREE_POINTS evenly spaced points, weights renormalised."""
    if len(cloud) <= MOST_REFEREE_POINTS:
        return cloud
    rows = _rows(len(cloud), MOST_REFEREE_POINTS).to(cloud.x.device)
    weight = None if cloud.weight is None else cloud.weight[rows] / cloud.weight[rows].sum()
    return Cloud(cloud.x[rows], weight, None, cloud.score, cloud.log_prob)


def _rows(n: int, most: int) -> Tensor:
    return (torch.arange(min(n, most)) * n) // min(n, most)


@dataclass(frozen=True)
class AsIs:
    """The picture of a cloud that already has one to three dimensions; one dimension lies on a line."""

    axes: tuple[str, ...] = ("x", "y")

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1)) if x.shape[1] == 1 else x

    def turn(self, v: Tensor) -> Tensor:
        return self(v)


def _look(setup: Setup, source: Cloud, target: Cloud) -> Fitted:
    if source.dim <= 3:
        return AsIs(("x", "y", "z")[: max(2, source.dim)])
    return setup.projection.fit(torch.cat([target.x, source.x]), seeded(setup.seed, 4))


def _dims(look: Fitted, source: Cloud) -> int:
    return int(look(source.x[:1]).shape[1])


def _frozen(x: Tensor) -> np.ndarray:
    array = x.detach().to("cpu", torch.float32).contiguous().numpy()
    array.flags.writeable = False
    return array


def _maybe(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else x.cpu().numpy()


def _device_words(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    return {"mps": "Apple GPU", "cpu": "CPU"}[device]


# ---------------------------------------------------------------------------------------------------- the loop


def simulate(setup: Setup | Start, x: np.ndarray | None = None, step: int = 0, time: float = 0.0) -> Iterator[Frame]:
    """Frames of a run, without end, the first one at the start; it ends by itself when the particles break.

    `x` (N, D), `step` and `time` continue from a frame kept earlier instead of the source.
    """
    begun = setup if isinstance(setup, Start) else start(setup)
    setup = begun.setup
    at = begun.x if x is None else torch.tensor(x).to(begun.x)
    state = setup.flow.init(at, begun.field, _chance(setup, step, begun))
    elapsed = time - state.time
    note, every, highest = "", setup.steps_per_frame, None
    while True:
        frame = _frame(begun, state, step, elapsed + state.time, note)
        trouble = _trouble(begun, frame)
        if trouble:
            yield replace(frame, ended=trouble)
            return
        highest = _first(highest, frame)
        yield replace(frame, note=frame.note or _growth(highest, frame))
        notes = []
        for _ in range(every):
            step += 1
            new, info = setup.flow.step(state, begun.field, _chance(setup, step, begun))
            notes.append(info.note)
            if not bool(torch.isfinite(new.x).all()):
                yield replace(frame, ended=_cause(begun, step))
                return
            state = new
        note = next((n for n in reversed(notes) if n), "")


def _chance(setup: Setup, step: int, begun: Start) -> torch.Generator:
    """The chance of one step depends on the seed and the step alone: any frame can be computed again."""
    device = begun.x.device if begun.x.device.type == "cuda" else "cpu"
    return seeded(setup.seed, 3, step, device=device)


def _frame(begun: Start, state: State, step: int, time: float, note: str) -> Frame:
    particles = begun.look(state.x)
    shown = _frozen(particles)
    x = shown if particles is state.x else _frozen(state.x)
    speed = _frozen(state.v.norm(dim=1))
    return Frame(
        step,
        time,
        {"particles": shown},
        x,
        _frozen(begun.look.turn(state.v)),
        speed,
        _metrics(begun, state, step),
        note,
    )


def _metrics(begun: Start, state: State, step: int) -> dict[str, float]:
    setup = begun.setup
    value = state.value if follows(setup.flow) else begun.field.value(state.x, seeded(setup.seed, 5, step))
    found = {"loss": float(value)}
    if step % (setup.referee_every * setup.steps_per_frame) == 0:
        for name, judge in begun.referees.items():
            found[name] = float(judge.value(_seen(state.x), seeded(0, 6)))
    return found


def _seen(x: Tensor) -> Tensor:
    return x if len(x) <= MOST_REFEREE_POINTS else x[_rows(len(x), MOST_REFEREE_POINTS).to(x.device)]


def _first(first: Frame | None, frame: Frame) -> Frame:
    return frame if first is None else first


def _growth(first: Frame, frame: Frame) -> str:
    before, now = first.metrics["loss"], frame.metrics["loss"]
    if before > 0 and now > 100 * before:
        return f"The loss is {now / before:.3g} times its start: the step size is too large for it."
    return ""


def _trouble(begun: Start, frame: Frame) -> str:
    lost = int((~np.isfinite(frame.speed)).sum())
    if not lost and np.isfinite(frame.metrics["loss"]):
        return ""
    if float(np.abs(frame.x).max()) > 1e6 * max(1.0, float(begun.x.abs().max())):
        return _cause(begun, frame.step)
    what = f"the velocity of {lost:,} particles" if lost else begun.setup.loss.title
    return (
        f"Stopped at step {frame.step}: {what} is no longer a number, though the particles still are. "
        "A length among the settings is likely too small or too large for this cloud."
    )


def _for(begun: Start) -> str:
    setup = begun.setup
    if follows(setup.flow):
        return f"for {setup.loss.title}"
    return f"for {'the density of ' if setup.flow.needs == 'score' else ''}{setup.target.title}"


def _cause(begun: Start, step: int) -> str:
    flow = begun.setup.flow
    size = next((p.name for p in params_of(type(flow)) if p.name in ("dt", "lr")), "dt")
    return (
        f"Stopped at step {step}: particles left the range of numbers. The likely cause is {size} = "
        f"{getattr(flow, size):g}, too large {_for(begun)}; try {getattr(flow, size) / 10:g}."
    )


# ---------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True, eq=False)
class Run:
    """All frames of a run that were kept, with what made them."""

    setup: Setup
    scene: Scene
    frames: tuple[Frame, ...]
    machine: Mapping[str, str]

    @property
    def link(self) -> str:
        return query(self.setup)

    @property
    def metrics(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Each measure as (steps, values), where it was computed."""
        names = dict.fromkeys(name for frame in self.frames for name in frame.metrics)
        return {
            name: (
                np.array([f.step for f in self.frames if name in f.metrics]),
                np.array([f.metrics[name] for f in self.frames if name in f.metrics]),
            )
            for name in names
        }

    @property
    def ended(self) -> str:
        return self.frames[-1].ended


def machine() -> dict[str, str]:
    """What the numbers of a run depend on besides its link."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }


def record(setup: Setup, steps: int, every: int = 1) -> Run:
    """Run `steps` steps and keep every `every`-th frame, the first, and the last."""
    begun = start(setup)
    kept: list[Frame] = []
    for frame in simulate(begun):
        last = frame.step >= steps or bool(frame.ended)
        if last or frame.step % (every * setup.steps_per_frame) == 0:
            kept.append(frame)
        if last:
            break
    return Run(setup, begun.scene, tuple(kept), machine())


def threads_for(n: int, dim: int) -> int:
    """Threads worth using: on a busy machine two are many times slower than one for small clouds."""
    return 1 if n * dim < 100_000 else max(1, (os.cpu_count() or 1))


def setup_words(setup: Setup) -> str:
    """A setup in a few words, for titles: source to target under a loss."""
    return f"{setup.source.title} → {setup.target.title}, {setup.loss.title}"
