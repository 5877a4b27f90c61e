"""Clouds as Plotly traces, and still figures of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dmviz.items import MISSING_LABEL
from dmviz.plot import theme, words
from dmviz.plot.thinning import box, even
from dmviz.run import Frame, Run

MOST_DRAWN = 5_000  # points of one cloud in a figure: beyond it browsers stutter and nothing more is seen


class Group(NamedTuple):
    """Particles that share a colour."""

    name: str
    color: str
    rows: np.ndarray
    rank: int = 0  # place in the legend


def groups(run: Run, dark: bool, most: int = MOST_DRAWN) -> tuple[Group, ...]:
    """The drawn particles by label, the grey ones beneath the others; one group where there are no labels."""
    rows = even(len(run.frames[0].x), most)
    if run.scene.label is None:
        return (Group("particles", theme.theme(dark).particles, rows),)
    found = theme.label_colors(run.scene.label, run.scene.label_names, dark)
    if len(found.names) == 1 and found.names[0] != MISSING_LABEL:  # one label tells nothing apart
        return (Group(found.names[0], theme.theme(dark).particles, rows),)
    parts = [rows[found.slot[rows] == i] for i in range(len(found.names))]
    made = [Group(*part, rank) for rank, part in enumerate(zip(found.names, found.colors, parts, strict=True))]
    greys = (theme.theme(dark).other, theme.theme(dark).none)
    return tuple(sorted(made, key=lambda group: (group.color not in greys, group.rank)))


def left_out(run: Run, most: int = MOST_DRAWN) -> str:
    """One sentence where not every point is drawn."""
    shown = [
        f"{most:,} of {n:,} {what}"
        for n, what in ((len(run.frames[0].x), "particles"), (len(run.scene.target), "target points"))
        if n > most
    ]
    return f"Drawn: {' and '.join(shown)}, evenly spaced." if shown else ""


def points(at: np.ndarray, mode: str = "markers", **look: Any) -> Any:
    """One trace of (K, 2 or 3) points."""
    kind = go.Scatter3d if at.shape[1] == 3 else go.Scatter
    return kind(**coordinates(at), mode=mode, **look)


def coordinates(at: np.ndarray) -> dict[str, np.ndarray]:
    return {name: at[:, i] for i, name in zip(range(at.shape[1]), "xyz", strict=False)}


def target_trace(run: Run, dark: bool) -> Any:
    rows = even(len(run.scene.target), MOST_DRAWN)
    size = theme.dot("target", len(rows), run.scene.dims)
    look = {"size": size, "color": theme.theme(dark).target, "opacity": theme.TARGET_ALPHA}
    where = _hover(run, "target point")
    return points(run.scene.target[rows], name="target", marker=look, customdata=rows, hovertemplate=where)


def particle_traces(run: Run, frame: Frame, dark: bool, most: int = MOST_DRAWN) -> list[Any]:
    """One trace a group, in the order of `groups`."""
    look = theme.theme(dark)
    flat = run.scene.dims == 2
    marker = {
        "size": _size(run),
        "opacity": theme.PARTICLE_ALPHA,
        "line": {"width": 0.7 if flat else 0, "color": look.outline},
    }
    at = frame.clouds["particles"]
    return [
        points(
            at[group.rows], name=words.safe(group.name), marker={**marker, "color": group.color},
            customdata=group.rows, hovertemplate=_hover(run, "particle"), legendrank=1001 + group.rank,
        )
        for group in groups(run, dark, most)
    ]  # fmt: skip


def _size(run: Run) -> float:
    return theme.dot("particles", min(MOST_DRAWN, len(run.frames[0].x)), run.scene.dims)


def _hover(run: Run, what: str) -> str:
    at = "<br>".join(
        f"{words.safe(title)}: %{{{name}:.4g}}" for title, name in zip(words.axis_titles(run), "xyz", strict=False)
    )
    return f"{what} %{{customdata}}<br>{at}"


def equal_axes(run: Run, dark: bool) -> dict[str, Any]:
    """Layout of a plane or a space in which one length is one length along every axis."""
    middle, half = box(run)
    titles = words.axis_titles(run)
    axes = [
        {**theme.axis(words.safe(title), dark), "range": [float(m - half), float(m + half)]}
        for title, m in zip(titles, middle, strict=True)
    ]
    if len(axes) == 3:
        plain = {"backgroundcolor": theme.theme(dark).background, "showbackground": True, "zeroline": False}
        space = {f"{name}axis": {**axis, **plain} for name, axis in zip("xyz", axes, strict=True)}
        look = {"eye": {"x": 1.4, "y": 1.4, "z": 0.8}, "center": {"x": 0, "y": 0, "z": -0.2}}
        return {"scene": {**space, "aspectmode": "cube", "camera": look}}
    return {
        "xaxis": {**axes[0], "zeroline": False, "constrain": "domain"},
        "yaxis": {**axes[1], "zeroline": False, "scaleanchor": "x", "scaleratio": 1, "constrain": "domain"},
    }


def picture(run: Run, k: int = -1, dark: bool = False, color: str = "label") -> Any:
    """One frame as a figure: particles over target. `color` is "label" or "speed"."""
    frame = run.frames[k]
    traces = particle_traces(run, frame, dark) if color == "label" else [_speed_trace(run, frame, dark)]
    figure = go.Figure([target_trace(run, dark), *traces])
    below = "<br>".join(words.safe(part) for part in (words.caption(run, frame), left_out(run), frame.ended) if part)
    return words.named(_dressed(figure, run, dark, below), run)


def _speed_trace(run: Run, frame: Frame, dark: bool) -> Any:
    rows = even(len(frame.x), MOST_DRAWN)
    scale = list(theme.theme(dark).sequential)
    marker = {
        "size": _size(run),
        "color": frame.speed[rows],
        "colorscale": scale,
        "colorbar": {"title": {"text": "speed (length / time)", "side": "right"}, "thickness": 14},
    }
    return points(
        frame.clouds["particles"][rows], name="particles", marker=marker, customdata=rows,
        hovertemplate=_hover(run, "particle") + "<br>speed: %{marker.color:.4g}", showlegend=False,
    )  # fmt: skip


def trajectories(run: Run, rows: Sequence[int] | None = None, dark: bool = False) -> Any:
    """The paths of some particles through all frames, from start (ring) to end (dot), over the target.

    `rows` are numbers of particles; 100 evenly spaced ones without it.
    """
    chosen = even(len(run.frames[0].x), 100) if rows is None else np.asarray(rows, dtype=np.int64)
    _check_rows(chosen, len(run.frames[0].x))
    paths = paths_of(run, chosen)  # (T, R, 2 or 3)
    look = theme.theme(dark)
    gap = np.full((1, *paths.shape[1:]), np.nan, paths.dtype)
    line = np.concatenate([paths, gap]).swapaxes(0, 1).reshape(-1, paths.shape[2])  # a gap ends each path
    size = theme.dot("particles", len(chosen), run.scene.dims)
    stroke = {"color": look.particles, "width": 1.5}
    ring = {"size": size, "color": look.start, "symbol": "circle-open"}
    figure = go.Figure(
        [
            target_trace(run, dark),
            points(line, "lines", name="path", opacity=0.6, hoverinfo="skip", line=stroke),
            points(paths[0], name="start", marker=ring, customdata=chosen, hovertemplate=_hover(run, "particle")),
            points(
                paths[-1], name="end", marker={"size": size, "color": look.particles},
                customdata=chosen, hovertemplate=_hover(run, "particle"),
            ),
        ]
    )  # fmt: skip
    steps = f"paths of {len(chosen):,} particles over {run.frames[-1].step - run.frames[0].step} steps"
    return words.named(_dressed(figure, run, dark, steps), run)


def paths_of(run: Run, rows: np.ndarray, most: int = 400) -> np.ndarray:
    """(T, R, 2 or 3) float32 places of some particles at no more than `most` evenly spaced frames."""
    return np.stack([run.frames[k].clouds["particles"][rows] for k in even(len(run.frames), most)])


def _check_rows(rows: np.ndarray, n: int) -> None:
    if rows.ndim != 1 or len(rows) == 0 or rows.min() < -n or rows.max() >= n:
        raise ValueError(f"trajectories: rows must be numbers of particles below {n}, got {rows.tolist()[:5]}")


def _dressed(figure: Any, run: Run, dark: bool, below: str) -> Any:
    figure.update_layout(theme.layout(dark), **equal_axes(run, dark), height=600)
    figure.update_layout(legend={"orientation": "h", "y": -0.14, "yanchor": "top", "x": 0, "xanchor": "left"})
    muted = {"color": theme.theme(dark).muted, "size": theme.SIZE["small"]}
    subtitle = {"text": below, "font": muted}
    return figure.update_layout(title={"text": words.safe(words.title(run)), "subtitle": subtitle})
