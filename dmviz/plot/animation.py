"""`show`: a run with a play button and a slider, beside its curves, in a notebook or on a page of its own."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dmviz.plot import theme, words
from dmviz.plot.cloud import MOST_DRAWN, Group, coordinates, equal_axes, groups, left_out, particle_traces, target_trace
from dmviz.plot.curve import curve_traces, log_scale, scale_buttons, span
from dmviz.plot.thinning import even
from dmviz.run import Frame, Run

MOST_NUMBERS = 200_000  # drawn particles times frames
MOST_FRAMES = 400
SPLIT = (0.56, 0.66)  # where the picture ends and the curves begin


def show(run: Run, dark: bool = False) -> Any:
    """A run as one Plotly figure: particles over target with play and scrub, and its curves beside.

    At most 200,000 positions are kept: beyond it frames are left out evenly, and the figure says so.
    """
    frames = [run.frames[k] for k in shown_frames(run)]
    first = frames[0]
    flat = run.scene.dims == 2
    figure = make_subplots(1, 2, specs=[[{"type": "xy" if flat else "scene"}, {"type": "xy"}]])
    particles = particle_traces(run, first, dark)
    figure.add_traces([target_trace(run, dark), *particles], rows=1, cols=1)
    reach, parts = span(run), groups(run, dark)
    figure.add_traces([*curve_traces(run, dark), *_cursor(first, reach, dark)], rows=1, cols=2)
    last = len(figure.data)
    moving = [*range(1, 1 + len(particles)), last - 2, last - 1]
    figure.frames = [
        go.Frame(data=_moved(frame, parts, reach), traces=moving, name=str(frame.step)) for frame in frames
    ]
    _dress(figure, run, frames, dark)
    return words.named(figure, run)


def shown_frames(run: Run) -> np.ndarray:
    """Numbers of the frames that `show` keeps."""
    drawn = min(len(run.frames[0].x), MOST_DRAWN)
    return even(len(run.frames), int(max(2, min(MOST_FRAMES, MOST_NUMBERS // max(1, drawn)))))


def _moved(frame: Frame, parts: tuple[Group, ...], reach: tuple[float, float]) -> list[Any]:
    at = frame.clouds["particles"]
    kind = go.Scatter if at.shape[1] == 2 else go.Scatter3d
    drawn = [kind(**coordinates(at[group.rows])) for group in parts]
    line, dot = _marks(frame, reach)
    return [*drawn, go.Scatter(**line), go.Scatter(**dot)]


def _marks(frame: Frame, reach: tuple[float, float]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"x": [frame.step, frame.step], "y": list(reach)}, {"x": [frame.step], "y": [frame.metrics["loss"]]}


def _cursor(frame: Frame, reach: tuple[float, float], dark: bool) -> list[Any]:
    """The line of the current step and the dot on the loss: the last two traces of the figure."""
    line, dot = _marks(frame, reach)
    look = theme.theme(dark)
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    return [
        go.Scatter(**line, **quiet, mode="lines", name="step", line={"color": look.cursor, "width": 1}),
        go.Scatter(
            **dot, **quiet, mode="markers", name="now",
            marker={"size": 10, "color": look.particles, "line": {"color": look.background, "width": 2}},
        ),
    ]  # fmt: skip


def _dress(figure: Any, run: Run, frames: list[Frame], dark: bool) -> None:
    flat, log = run.scene.dims == 2, log_scale(run)
    steps, values = ("xaxis2", "yaxis2") if flat else ("xaxis", "yaxis")
    layout = equal_axes(run, dark)
    if flat:
        layout["xaxis"]["domain"] = [0, SPLIT[0]]
    else:
        layout["scene"]["domain"] = {"x": [0, SPLIT[0]], "y": [0, 1]}
    figure.update_layout(theme.layout(dark), **layout)
    curve_axis = {**theme.axis("value (unit beside each name)", dark), "type": "log" if log else "linear"}
    figure.update_layout({
        steps: {**theme.axis("step", dark), "domain": [SPLIT[1], 1]},
        values: {**curve_axis, "exponentformat": "power", "anchor": "x2" if flat else "x"},
    })  # fmt: skip
    thinned = f"{len(frames)} of {len(run.frames)} frames, evenly spaced." if len(frames) < len(run.frames) else ""
    kept = f"{left_out(run)} {thinned}".strip()
    below = "<br>".join(words.safe(part) for part in (words.takeaway(run), kept) if part)
    muted = {"color": theme.theme(dark).muted, "size": theme.SIZE["small"]}
    tall = 20 * ((len(figure.data) - 3) // 4)  # pixels for further lines of the legend
    figure.update_layout(
        title={"text": words.safe(words.title(run)), "subtitle": {"text": below, "font": muted}, "y": 0.98},
        title_yanchor="top",
        height=660 + tall, margin={"l": 60, "r": 20, "t": 125, "b": 170 + tall},
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        sliders=[_slider(frames, flat, dark)],
        updatemenus=[_play(flat, dark), scale_buttons(values, 1.0, 1.0, dark)],
    )  # fmt: skip


def _animate(flat: bool, duration: int) -> dict[str, Any]:
    # Scatter3d is repainted only with redraw; without it 2-D keeps zoom and runs faster.
    return {"frame": {"duration": duration, "redraw": not flat}, "transition": {"duration": 0}, "mode": "immediate"}


def _play(flat: bool, dark: bool) -> dict[str, Any]:
    look = theme.theme(dark)
    go_on = {**_animate(flat, 40), "fromcurrent": True}
    return {
        "type": "buttons", "direction": "right", "showactive": False, "x": 0, "y": 1.0, "xanchor": "left",
        "yanchor": "bottom", "pad": {"b": 6}, "bgcolor": look.surface, "bordercolor": look.axis,
        "font": {"color": look.text},
        "buttons": [
            {"label": "▶ Play", "method": "animate", "args": [None, go_on]},
            {"label": "❚❚ Pause", "method": "animate", "args": [[None], _animate(flat, 0)]},
        ],
    }  # fmt: skip


def _slider(frames: list[Frame], flat: bool, dark: bool) -> dict[str, Any]:
    look = theme.theme(dark)
    steps = [
        {"label": str(frame.step), "method": "animate", "args": [[str(frame.step)], _animate(flat, 0)]}
        for frame in frames
    ]
    return {
        "steps": steps, "active": 0, "x": 0, "len": SPLIT[0], "y": -0.14, "yanchor": "top", "pad": {"t": 8},
        "currentvalue": {"prefix": "step ", "font": {"color": look.text, "size": theme.SIZE["base"]}},
        "font": {"color": look.muted, "size": theme.SIZE["small"]}, "bgcolor": look.surface,
        "bordercolor": look.axis, "tickcolor": look.axis,
    }  # fmt: skip
