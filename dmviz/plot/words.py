"""Sentences and titles of a run: what its figures say to those who see them and to those who do not."""

import html
from typing import Any, NamedTuple

import numpy as np

from dmviz.catalog import entry_class
from dmviz.run import Frame, Run


class Measure(NamedTuple):
    title: str
    unit: str  # "length²", or "no unit"

    def __str__(self) -> str:
        return f"{self.title} ({self.unit})"


def measure(run: Run, name: str) -> Measure:
    """Title and unit of the loss or of a referee.

    Losses are powers: the unit follows from how they answer to a change of scale.
    """
    loss = run.setup.loss if name == "loss" else entry_class("losses", name)()
    return Measure(loss.title, _unit(float(getattr(loss, "degree", float("nan")))))


def _unit(degree: float) -> str:
    if degree == 1.0:
        return "length"
    if not np.isfinite(degree) or degree == 0.0:
        return "no unit"
    power = f"{degree:g}".translate(str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·"))
    return f"length{power}"


def title(run: Run) -> str:
    """Source, target, loss and flow in one line."""
    setup = run.setup
    return f"{setup.source.title} → {setup.target.title}: {setup.loss.title}, {setup.flow.title}"


def caption(run: Run, frame: Frame) -> str:
    """Step, time and loss of one picture."""
    return f"step {frame.step} · time {frame.time:.3g} · loss {number(frame.metrics['loss'])}"


def axis_titles(run: Run) -> tuple[str, ...]:
    """Titles of the axes of a picture, with their unit."""
    names = run.scene.axes[: run.scene.dims]
    return tuple(f"{name}, length" if name.endswith(")") else f"{name} (length)" for name in names)


def number(value: float) -> str:
    """A value as people read it: three digits."""
    return f"{value:.3g}" if np.isfinite(value) else "not a number"


def safe(text: str) -> str:
    """Words of a user as Plotly shows them: letters, never tags."""
    return html.escape(text, quote=False)


def takeaway(run: Run) -> str:
    """What a run showed, in a sentence or two.

    "Energy distance fell from 2.1 to 0.003 length in 200 steps (time 20)."
    """
    first, last = run.frames[0], run.frames[-1]
    if last.step == first.step:
        value = number(first.metrics["loss"])
        return f"{measure(run, 'loss').title} is {value} at step {first.step}, before any other."
    when = f"in {last.step - first.step} steps (time {last.time - first.time:.3g})"
    said = [_moved(run, "loss", when)]
    judges = [name for name in run.metrics if name != "loss"]
    if judges:
        said.append(_moved(run, judges[0], ""))
        leader = {"score": "the score", "samples": "the target itself"}.get(run.setup.flow.needs)
        said.append(
            f"The flow minimises neither: it follows {leader}." if leader else "It is not what the flow minimises."
        )
    if run.ended:
        said.append(run.ended)
    return " ".join(said)


def _moved(run: Run, name: str, when: str) -> str:
    what, (_, values) = measure(run, name), run.metrics[name]
    first, last = float(values[0]), float(values[-1])
    unit = f" {what.unit}" if what.unit != "no unit" else ""
    if not np.isfinite(last):
        return f"{what.title} was {number(first)}{unit} at the start and is not a number at the end."
    verb = "stayed at" if number(first) == number(last) else "fell from" if last < first else "rose from"
    change = number(first) if verb == "stayed at" else f"{number(first)} to {number(last)}"
    return f"{what.title} {verb} {change}{unit} {when}".rstrip() + "."


def alt_text(run: Run) -> str:
    """The takeaway and what is drawn, for readers who do not see the figure."""
    scene, frame = run.scene, run.frames[0]
    space = f"{frame.x.shape[1]} dimensions" + (
        f" seen in {scene.dims}" if frame.x.shape[1] not in (1, scene.dims) else ""
    )
    return (
        f"{takeaway(run)} {len(frame.x):,} particles from {run.setup.source.title} over "
        f"{len(scene.target):,} points of {run.setup.target.title}, in {space}."
    )


def named(figure: Any, run: Run) -> Any:
    """The figure with its alt text where exports and pages find it: `figure.layout.meta["alt"]`."""
    return figure.update_layout(meta={"alt": alt_text(run)})
