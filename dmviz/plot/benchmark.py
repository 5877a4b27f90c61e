"""Measurements as figures: how time and memory grow with the number of points, and how peers compare."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from dmviz.plot import theme, words

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon")
LIVE_MS = 16.0  # a step within it keeps up with a screen


class Growth(NamedTuple):
    """One measure of one loss at several sizes. `look` is its place in the family: one hue in every chart."""

    title: str
    look: int
    sizes: tuple[int, ...]
    values: tuple[float, ...]


class Ratio(NamedTuple):
    """How many times the time of dmviz a peer takes, on one problem."""

    problem: str
    peer: str
    times: float
    note: str = ""


def growth(lines: Sequence[Growth], axis: str, alt: str, dark: bool = False, live: bool = False) -> Any:
    """Both axes logarithmic: a straight line is a power of n. `live` marks 16 ms."""
    figure = go.Figure([_line(line, dark) for line in lines])
    sizes = sorted({n for line in lines for n in line.sizes})
    figure.update_layout(
        _layout(dark), height=430, hovermode="closest", meta={"alt": alt},
        xaxis={**theme.axis("points on each side, n = m", dark), "type": "log", "tickvals": sizes,
               "ticktext": [f"{n:,}" for n in sizes]},
        yaxis={**theme.axis(axis, dark), "type": "log", "exponentformat": "none", "dtick": 1, "tickformat": ",.4~g"},
        legend={"orientation": "h", "y": -0.24, "x": 0, "xanchor": "left", "yanchor": "top"},
    )  # fmt: skip
    if live:
        look = theme.theme(dark)
        place = {"xref": "paper", "xanchor": "right", "yanchor": "bottom", "showarrow": False}
        figure.add_hline(LIVE_MS, line={"color": look.muted, "width": 1, "dash": "dot"})
        figure.add_annotation(  # on a logarithmic axis an annotation, unlike a line, is placed by its logarithm
            x=1,
            y=math.log10(LIVE_MS),
            text="16 ms: live",
            font={"color": look.muted, "size": theme.SIZE["small"]},
            **place,
        )
    return figure


def _line(line: Growth, dark: bool) -> Any:
    hues = theme.theme(dark).labels
    color, dash = hues[line.look % len(hues)], _DASHES[line.look % len(_DASHES)]
    return go.Scatter(
        x=line.sizes, y=line.values, name=words.safe(line.title), mode="lines+markers",
        line={"color": color, "dash": dash, "width": 2}, marker={"size": 8, "symbol": _MARKS[line.look % len(_MARKS)]},
        hovertemplate="%{x:,} points: %{y:.3g}",
    )  # fmt: skip


def ratios(found: Sequence[Ratio], alt: str, dark: bool = False) -> Any:
    """A dot for each peer; right of 1 dmviz is the faster one."""
    look = theme.theme(dark)
    peers = list(dict.fromkeys(ratio.peer for ratio in found))
    figure = go.Figure([_dots(peer, i, [r for r in found if r.peer == peer], dark) for i, peer in enumerate(peers)])
    problems = list(dict.fromkeys(ratio.problem for ratio in found))
    figure.update_layout(
        _layout(dark), height=170 + 34 * len(problems), hovermode="closest", meta={"alt": alt},
        xaxis={**theme.axis("time of the peer over time of dmviz", dark), "type": "log", "dtick": 1,
               "tickformat": ",.3~g", "ticksuffix": "×"},
        yaxis={**theme.axis("", dark), "categoryorder": "array", "categoryarray": problems[::-1], "automargin": True},
        legend={"orientation": "h", "y": 1.0, "x": 0, "xanchor": "left", "yanchor": "bottom"},
    )  # fmt: skip
    figure.add_vline(1.0, line={"color": look.axis, "width": 1})
    return figure


def _dots(peer: str, place: int, found: Sequence[Ratio], dark: bool) -> Any:
    hues = theme.theme(dark).labels
    return go.Scatter(
        x=[r.times for r in found], y=[r.problem for r in found], name=words.safe(peer), mode="markers",
        marker={"size": 11, "color": hues[place % len(hues)], "symbol": _MARKS[place % len(_MARKS)]},
        text=[words.safe(r.note) for r in found], hovertemplate="%{y}: %{x:.3g} times<br>%{text}",
    )  # fmt: skip


def _layout(dark: bool) -> dict[str, Any]:
    """On a page, so that the page's own background shows."""
    margin = {"l": 70, "r": 20, "t": 30, "b": 60}
    return theme.layout(dark) | {"paper_bgcolor": theme.CLEAR, "plot_bgcolor": theme.CLEAR, "margin": margin}
