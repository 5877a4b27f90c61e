"""Loss and referees against the steps of a run."""

from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dmviz.plot import theme, words
from dmviz.plot.thinning import even
from dmviz.run import Run

MOST_KNOTS = 2_000  # of one curve in a figure


class Curve(NamedTuple):
    name: str
    title: str
    steps: np.ndarray
    values: np.ndarray


def curves_of(run: Run) -> tuple[Curve, ...]:
    """Each measure with its title and unit, thinned evenly where it is long; the loss first."""
    found = []
    for name, (steps, values) in sorted(run.metrics.items(), key=lambda item: item[0] != "loss"):
        keep = even(len(steps), MOST_KNOTS)
        role = "loss: " if name == "loss" else "referee: "
        found.append(Curve(name, role + str(words.measure(run, name)), steps[keep], values[keep]))
    return tuple(found)


def log_scale(run: Run) -> bool:
    """Whether a logarithmic axis shows more: every value above 0, and the largest 20 times the smallest."""
    values = np.concatenate([curve.values for curve in curves_of(run)])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() > 0 and values.max() > 20 * values.min())


def span(run: Run) -> tuple[float, float]:
    """Lowest positive and highest value on the curves: where the line of the current step starts and ends."""
    values = np.concatenate([curve.values for curve in curves_of(run)])
    values = values[np.isfinite(values) & (values > 0)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def curve_traces(run: Run, dark: bool) -> list[Any]:
    return [_trace(curve, dark) for curve in curves_of(run)]


def _trace(curve: Curve, dark: bool) -> Any:
    look = theme.curve_line(curve.name, dark)
    few = len(curve.steps) <= 40
    return go.Scatter(
        x=curve.steps, y=curve.values, name=words.safe(curve.title), mode="lines+markers" if few else "lines",
        line={"color": look.color, "dash": look.dash, "width": look.width}, marker={"size": 5}, legendrank=2000,
        hovertemplate="step %{x}: %{y:.4g}",
    )  # fmt: skip


def scale_buttons(axis: str, x: float, y: float, dark: bool) -> dict[str, Any]:
    """Two buttons that switch an axis between logarithmic and linear."""
    look = theme.theme(dark)
    choices = [{"label": name, "method": "relayout", "args": [{f"{axis}.type": name}]} for name in ("log", "linear")]
    return {
        "type": "buttons", "direction": "right", "buttons": choices, "showactive": False,
        "x": x, "y": y, "xanchor": "right", "yanchor": "bottom", "pad": {"b": 6}, "bgcolor": look.surface,
        "bordercolor": look.axis, "font": {"color": look.text, "size": theme.SIZE["small"]},
    }  # fmt: skip


def curves(run: Run, dark: bool = False) -> Any:
    """Loss and referees over the run, with a switch between logarithmic and linear."""
    log, values = log_scale(run), theme.axis("value (unit beside each name)", dark)
    figure = go.Figure(curve_traces(run, dark))
    figure.update_layout(
        theme.layout(dark), height=420, xaxis=theme.axis("step", dark),
        yaxis={**values, "type": "log" if log else "linear", "exponentformat": "power"},
        updatemenus=[scale_buttons("yaxis", 1.0, 1.0, dark)],
        title={"text": words.safe(words.title(run))},
        legend={"orientation": "h", "y": -0.22, "x": 0, "xanchor": "left"},
    )  # fmt: skip
    return words.named(figure, run)
