"""Between a setup and the stage: which run is on, and from where it goes on."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from dmviz.catalog import entry_class
from dmviz.plot import theme
from dmviz.run import Frame, Run, Scene, Setup, dim_of, query, read_link, simulate, start, threads_for
from dmviz.ui.stage import Stage


def show(stage: Stage, setup: Setup, branch: bool = False) -> None:
    """Put the run of `setup` on stage unless it is there already.

    With `branch`, a change of loss or flow alone goes on from the frame on screen instead of the start.
    """
    link = query(setup)
    on_stage = stage.link.split("#")[0]
    if link == on_stage:
        return
    stage.threads = threads_for(setup.n, 1)
    at = int(stage.pos)
    if branch and on_stage and at < stage.available and not stage.ended and _same_clouds(on_stage, setup):
        frame = stage.frame(at)
        before = ((at, read_link(on_stage)[0].loss.title), *(b for b in branches(stage) if b[0] < at))
        marks = "".join(f"#from={step}={title}" for step, title in before)
        stage.load(link + marks, lambda: _begun(setup, frame), keep=at + 1)
    else:
        stage.pos = 0.0
        stage.load(link, lambda: _begun(setup, None))


def _begun(setup: Setup, frame: Frame | None) -> tuple[Scene, Iterator[Frame]]:
    begun = start(setup)
    if frame is None:
        return begun.scene, simulate(begun)
    frames = simulate(begun, frame.x, frame.step, frame.time)
    next(frames)  # the frame on screen, which is kept as it was
    return begun.scene, frames


def _same_clouds(on_stage: str, setup: Setup) -> bool:
    before = read_link(on_stage)[0]
    return replace(before, loss=setup.loss, flow=setup.flow) == setup


def branches(stage: Stage) -> tuple[tuple[int, str], ...]:
    """Where the run on stage carried on under other settings, latest first: the last frame before, and its loss."""
    marks = (mark.split("=", 2) for mark in stage.link.split("#")[1:] if mark.startswith("from="))
    return tuple((int(at), title) for _, at, title in marks)


def metric_words(setup: Setup, stage: Stage) -> dict[str, tuple[str, str]]:
    """Title and unit of every curve: the loss, then the referees. The curve of a loss that was changed names both."""
    titles = [setup.loss.title]
    titles += [f"to frame {at} {title}" for at, title in branches(stage) if title != setup.loss.title]
    words = {"loss": ("; ".join(titles), "")}
    for name in setup.referee_names():
        words[name] = (entry_class("losses", name).title, "")
    return words


def with_drawn_target(setup: Setup, points: tuple[tuple[float, ...], ...]) -> Setup:
    """The same setup with points drawn by hand as its target; the source follows into the plane."""
    from dmviz.shapes.drawn import Drawn, encode

    target = Drawn(points=encode([(p[0], p[1]) for p in points]))
    source: Any = setup.source
    if dim_of(source) != 2:
        source = entry_class("shapes", "gaussian")()
    return replace(setup, source=source, target=target)


def notes(stage: Stage) -> tuple[str, ...]:
    """What a viewer should know about the run on stage besides what its player says."""
    return tuple(
        f"Frames up to {at} were made under other settings; the link alone gives a run of its own, and so does the "
        "exported script."
        for at, _ in branches(stage)[:1]
    )


def player_colors(setup: Setup) -> dict[str, Any]:
    """The theme's colours as the player wants them: (light, dark) pairs."""
    light, dark = theme.palette(False), theme.palette(True)
    names = ("loss", *setup.referee_names())
    both = {
        "particles": "particles", "none": "none", "target": "target", "labels": "labels",
        "time": "sequential", "speed": "sequential", "arrow": "arrows", "drawn": "start",
    }  # fmt: skip
    colors: dict[str, Any] = {mine: [light[its], dark[its]] for mine, its in both.items()}
    colors["curves"] = [[theme.curve_line(name, is_dark).color for name in names] for is_dark in (False, True)]
    return colors


def reopen(stage: Stage, run: Run) -> None:
    """Put a saved run on stage with the frames it has; it goes on after the last one."""

    def factory() -> tuple[Scene, Iterator[Frame]]:
        last = run.frames[-1]
        rest = simulate(run.setup, last.x, last.step, last.time)
        return run.scene, iter(run.frames) if last.ended else chain(run.frames, islice(rest, 1, None))

    stage.pos = 0.0
    stage.load(f"{query(run.setup)}#session", factory, again=True)
