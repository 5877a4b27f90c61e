"""Pictures without a browser: svg and png of a frame beside its curves, and thumbnails."""

import html
import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import MaxNLocator
from PIL import Image

from dmviz.plot import theme, words
from dmviz.plot.cloud import MOST_DRAWN, Group, groups, left_out, paths_of
from dmviz.plot.curve import curves_of, log_scale, span
from dmviz.plot.thinning import box, even
from dmviz.run import Frame, Run

DPI = 96
INCHES = (10.0, 6.0)
_POINT = 72 / DPI  # points a pixel
_DASH = {
    "solid": "-", "dash": (0, (5, 2.5)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)), "longdashdot": (0, (9, 3, 1, 3)),
}  # fmt: skip
_WIDE = {1: 48, 2: 26, 3: 18}  # letters of a name that fit into so many columns of a legend
_DRAWING = threading.Lock()  # matplotlib's settings are global; two sessions must not mix theirs


class Stage(NamedTuple):
    """A figure and the artists in it that change from frame to frame."""

    figure: Figure
    axes: Any
    groups: tuple[Group, ...]
    dots: tuple[Any, ...]
    cursor: Any
    now: Any
    caption: Any
    reach: tuple[float, float]  # from where to where the cursor runs


@contextmanager
def drawing() -> Iterator[None]:
    """One drawing at a time, with the fonts of the theme and text that stays text in svg."""
    size = theme.SIZE["small"] * _POINT
    look: Any = {"font.family": fonts(), "font.size": size, "svg.fonttype": "none", "svg.hashsalt": "dmviz"}
    with _DRAWING, matplotlib.rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)  # a script that no font here has: boxes
        yield


@cache
def fonts() -> list[str]:
    """Those fonts of the theme that this machine has."""
    have = {font.name for font in fontManager.ttflist}
    return [name for name in theme.STILL_FONTS if name in have]


def svg(run: Run, k: int = -1, dark: bool = False) -> str:
    """One frame beside its curves, as svg with its alt text."""
    with drawing():
        figure = stage(run, run.frames[k], dark).figure
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "dmviz", "Title": words.title(run)})
    alt = html.escape(words.alt_text(run))
    return out.getvalue().replace("</title>", f"</title>\n <desc>{alt}</desc>", 1)


def png(run: Run, k: int = -1, dark: bool = False, scale: float = 2.0) -> bytes:
    """One frame beside its curves, as png of 960 by 576 pixels times `scale`."""
    with drawing():
        figure = stage(run, run.frames[k], dark).figure
        out = io.BytesIO()
        about = {"Title": words.title(run), "Description": words.alt_text(run), "Software": "dmviz"}
        figure.savefig(out, format="png", dpi=DPI * scale, metadata=about)
    return out.getvalue()


def stage(run: Run, frame: Frame, dark: bool, most: int = MOST_DRAWN) -> Stage:
    """The whole figure at one frame. Call it inside `drawing`."""
    look = theme.theme(dark)
    figure = Figure(figsize=INCHES, dpi=DPI, facecolor=look.background)
    FigureCanvasAgg(figure)
    flat = run.scene.dims == 2
    axes: Any = figure.add_axes((0.07, 0.27, 0.42, 0.60), projection=None if flat else "3d")
    _dress_cloud(axes, run, dark)
    dots = _clouds(axes, run, dark, most)
    side: Any = figure.add_axes((0.60, 0.27, 0.375, 0.60))
    cursor, now = _curves(side, run, dark)
    _legends(axes, side, [group.rank for group in groups(run, dark, most)], look)
    _say(figure, 0.07, 0.955, words.title(run), look.text, theme.SIZE["title"])
    caption = _say(figure, 0.07, 0.905, "", look.muted, theme.SIZE["small"] + 1)
    _say(figure, 0.07, 0.02, left_out(run, most), look.muted, theme.SIZE["small"])
    made = Stage(figure, axes, groups(run, dark, most), dots, cursor, now, caption, span(run))
    place(made, run, frame)
    return made


def place(at: Stage, run: Run, frame: Frame) -> None:
    """Move everything that moves to another frame."""
    cloud = frame.clouds["particles"]
    for group, dots in zip(at.groups, at.dots, strict=True):
        here = cloud[group.rows]
        if run.scene.dims == 2:
            dots.set_offsets(here)
        else:
            dots._offsets3d = tuple(here.T)
    at.cursor.set_data([frame.step, frame.step], at.reach)
    at.now.set_data([frame.step], [frame.metrics["loss"]])
    at.caption.set_text(words.caption(run, frame))


def _dress_cloud(axes: Any, run: Run, dark: bool) -> None:
    middle, half = box(run)
    titles = words.axis_titles(run)
    for name, title, m in zip("xyz", titles, middle, strict=False):
        getattr(axes, f"set_{name}lim")(m - half, m + half)
        getattr(axes, f"set_{name}label")(title, parse_math=False)
    if run.scene.dims == 3:
        axes.set_box_aspect((1, 1, 1), zoom=1.0)
        for side in (axes.xaxis, axes.yaxis, axes.zaxis):
            side.set_pane_color(theme.theme(dark).background)
            side._axinfo["grid"]["color"] = theme.theme(dark).grid
            side.line.set_color(theme.theme(dark).axis)
    else:
        axes.set_aspect("equal", adjustable="box")
    _dress(axes, dark)


def _dress(axes: Any, dark: bool) -> None:
    look = theme.theme(dark)
    axes.set_facecolor(look.background)
    axes.set_axisbelow(True)
    axes.grid(True, color=look.grid, linewidth=0.8)
    axes.tick_params(which="both", colors=look.muted, labelcolor=look.muted)
    for name in ("xaxis", "yaxis", "zaxis"):
        if hasattr(axes, name):
            getattr(axes, name).label.set_color(look.text)
    for side, spine in axes.spines.items():
        spine.set_color(look.axis)
        spine.set_visible(side in ("left", "bottom"))


def _clouds(axes: Any, run: Run, dark: bool, most: int) -> tuple[Any, ...]:
    look = theme.theme(dark)
    target = run.scene.target[even(len(run.scene.target), most)]
    count = {"target": len(target), "particles": min(most, len(run.frames[0].x))}
    grow = 1.2 if run.scene.dims == 3 else 1.0
    size = {name: (grow * theme.dot(name, n, run.scene.dims) * _POINT) ** 2 for name, n in count.items()}
    axes.scatter(*target.T, s=size["target"], c=look.target, alpha=theme.TARGET_ALPHA, lw=0, label="target")
    edge = {"linewidths": 0.5, "edgecolors": look.outline}
    return tuple(
        axes.scatter(*np.zeros((len(target.T), 1)), s=size["particles"], c=g.color, label=g.name, alpha=0.95, **edge)
        for g in groups(run, dark, most)
    )


def _curves(axes: Any, run: Run, dark: bool) -> tuple[Any, Any]:
    look = theme.theme(dark)
    for curve in curves_of(run):
        color, dash, width = theme.curve_line(curve.name, dark)
        stroke: Any = {"color": color, "linestyle": _DASH[dash], "linewidth": width * _POINT}
        few = {"marker": "o", "markersize": 3} if len(curve.steps) <= 40 else {}
        axes.plot(curve.steps, curve.values, label=curve.title, **stroke, **few)
    axes.set_yscale("log" if log_scale(run) else "linear")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("value (unit beside each name)")
    _dress(axes, dark)
    (cursor,) = axes.plot([], [], color=look.cursor, lw=1)
    (now,) = axes.plot([], [], "o", color=look.particles, markersize=7, markeredgecolor=look.background)
    return cursor, now


def _legends(cloud: Any, side: Any, ranks: list[int], look: theme.Theme) -> None:
    for axes in (cloud, side):
        handles, names = axes.get_legend_handles_labels()
        if axes is cloud:  # drawn from below, listed by rank
            order = [0, *sorted(range(1, len(names)), key=lambda i: ranks[i - 1])]
            handles, names = [handles[i] for i in order], [names[i] for i in order]
        columns = 1 if axes is side else 2 if len(names) <= 6 else 3
        spot = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.15)}
        legend = axes.legend(
            handles, [_short(name, _WIDE[columns]) for name in names], ncols=columns, frameon=False,
            labelcolor=look.text, borderaxespad=0.0, columnspacing=1.0,
            handletextpad=0.4 if columns > 1 else 0.8, **spot,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)


def _short(name: str, most: int) -> str:
    name = name.lstrip("_") or "label"  # matplotlib hides names that start with _
    return name if len(name) <= most else name[: most - 1] + "…"


def _say(figure: Figure, x: float, y: float, text: str, color: str, pixels: float) -> Any:
    return figure.text(x, y, text, color=color, fontsize=pixels * _POINT, va="center", parse_math=False)


def thumbnail(run: Run, width: int = 360, height: int = 240) -> bytes:
    """A small webp with a clear ground, for pages light and dark: paths from start to end over the target."""
    start, end, target, paths = _flattened(run)
    look = theme.LIGHT
    dot = 9 * min(4.0, max(1.0, 300 / len(end)))  # fewer particles are drawn larger
    with drawing():
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        canvas: Any = FigureCanvasAgg(figure)
        figure.patch.set_alpha(0.0)
        axes: Any = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.scatter(*target.T, s=5, c=look.target, alpha=0.75, lw=0)
        axes.add_collection(LineCollection(list(paths), colors=look.particles, linewidths=0.7, alpha=_trail(paths)))
        axes.scatter(*start.T, s=3, c=theme.DARK.blue, alpha=0.9, lw=0)
        axes.scatter(*end.T, s=dot, c=look.particles, alpha=0.95, lw=0)
        _fit(axes, np.concatenate([start, end, target]), width / height)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba()).copy())
    out = io.BytesIO()
    image.save(out, format="WEBP", quality=78, method=4)
    return out.getvalue()


def _trail(paths: np.ndarray) -> float:
    """Opacity of trails (R, T, 2): long and winding ones lie on top of each other and must let more through."""
    size = float(np.ptp(paths, axis=(0, 1)).max()) or 1.0
    ink = float(np.linalg.norm(np.diff(paths, axis=1), axis=-1).sum()) / size
    return float(np.clip(theme.TRAIL_ALPHA * 200 / max(ink, 1.0), 0.07, theme.TRAIL_ALPHA))


def _flattened(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Start, end, target and paths (R, T, 2) as seen from one side; at most 400 particles."""
    paths = paths_of(run, even(len(run.frames[0].x), 400), most=60)
    paths, target = paths[np.isfinite(paths).all((1, 2))], run.scene.target[even(len(run.scene.target), 1_500)]
    if target.shape[1] == 3:
        turn, tilt = np.radians(35.0), np.radians(20.0)
        right = np.array([np.cos(turn), np.sin(turn), 0.0])
        up = np.array([np.sin(turn) * np.sin(tilt), -np.cos(turn) * np.sin(tilt), np.cos(tilt)])
        view = np.stack([right, up], 1)
        paths, target = paths @ view, target @ view
    return paths[0], paths[-1], target, paths.swapaxes(0, 1)


def _fit(axes: Any, points: np.ndarray, wide: float) -> None:
    """Limits that hold 99 % of the points on each axis, one length the same along both."""
    low, high = np.quantile(points, [0.005, 0.995], axis=0)
    middle = (low + high) / 2
    half = 1.1 * max(float(high[1] - low[1]) / 2, float(high[0] - low[0]) / 2 / wide, 1e-6)
    axes.set_xlim(middle[0] - half * wide, middle[0] + half * wide)
    axes.set_ylim(middle[1] - half, middle[1] + half)
