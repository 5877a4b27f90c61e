"""Every colour and font of dmviz: pages, player, figures and films take theirs from here.

Hues are those of Okabe and Ito, chosen to stay apart for colour-blind readers; five more were picked by search, the
farthest from all others for normal, protan and deutan eyes (tests/test_plot.py holds the distances).
Particles are loud, the target is quiet, and one thing has one hue on every page and in both themes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dmviz.items import MISSING_LABEL

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
STILL_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari", "Yu Gothic", "Hiragino Sans", "Nirmala UI")
"""For pictures made without a browser: the first comes with matplotlib, the others serve scripts it does not have."""
SIZE = {"base": 14, "small": 12, "title": 17}  # pixels
DOT = {"particles": 7.0, "target": 4.5}  # diameters, pixels
TARGET_ALPHA, PARTICLE_ALPHA, TRAIL_ALPHA = 0.55, 0.9, 0.35
MOST_LABELS = 12
CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Theme:
    background: str
    surface: str  # panels and controls
    text: str
    muted: str  # captions, ticks
    grid: str
    axis: str
    particles: str
    outline: str  # thin line around each particle, so that neighbours stay apart
    target: str
    start: str  # where particles came from
    arrows: str
    cursor: str  # the current step on a curve
    blue: str
    sky: str
    labels: tuple[str, ...]
    other: str  # labels beyond the first twelve
    none: str  # rows whose label is empty
    sequential: tuple[str, ...]  # low to high: time, speed
    lanes: tuple[str, ...]  # of a race, in their order


LIGHT = Theme(
    background="#FFFFFF", surface="#F4F6F8", text="#1B2430", muted="#5B6673", grid="#E6EAEE", axis="#8A94A0",
    particles="#D55E00", outline="#FFFFFF", target="#8C96A3", start="#0072B2", arrows="#1B2430", cursor="#1B2430",
    blue="#0072B2", sky="#56B4E9",
    labels=("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00",
            "#4B2BE0", "#183030", "#603000", "#001890", "#7A60F0", "#003D60"),
    other="#9AA3AD", none="#C3C9D0",
    sequential=("#440154", "#482979", "#3E4C8A", "#2F6B8E", "#24868E", "#1FA287", "#3FBC73", "#7FD34E", "#CAE11F"),
    lanes=("#D55E00", "#0072B2", "#009E73", "#5A1FD6"),
)  # fmt: skip
DARK = Theme(
    background="#0E1117", surface="#1A202A", text="#E8ECF1", muted="#A3ADB9", grid="#262D38", axis="#6B7683",
    particles="#D55E00", outline="#0E1117", target="#97A2AF", start="#3D9BDC", arrows="#E8ECF1", cursor="#E8ECF1",
    blue="#3D9BDC", sky="#8CCBF2",
    labels=("#3D9BDC", "#E69F00", "#009E73", "#CC79A7", "#8CCBF2", "#D55E00",
            "#F0E442", "#6A3DF0", "#F2F0B0", "#C8143C", "#BFF0D6", "#0060C0"),
    other="#8A929C", none="#C4C9D0",
    sequential=("#375A8C", "#2D718E", "#24868E", "#1E9C89", "#2CB17E", "#52C569", "#86D549", "#C2DF23", "#FDE725"),
    lanes=("#D55E00", "#3D9BDC", "#1FBF8F", "#8355FF"),
)  # fmt: skip


def theme(dark: bool = False) -> Theme:
    return DARK if dark else LIGHT


class Line(NamedTuple):
    """How a curve looks: hue and dash both tell it apart. Dashes are Plotly's words."""

    color: str
    dash: str
    width: float


_MEASURES = {  # name -> place among the label hues, dash
    "wasserstein": (0, "dash"),
    "energy_distance": (2, "dot"),
    "sliced_wasserstein": (3, "dashdot"),
    "mmd": (1, "longdash"),
    "sinkhorn": (4, "longdashdot"),
}
_REST = (6, 7, 8, 9, 10, 11)
_DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")


def curve_line(name: str, dark: bool = False) -> Line:
    """Line of a measure: "loss" is as loud as the particles, each referee keeps one hue everywhere."""
    look = theme(dark)
    if name == "loss":
        return Line(look.particles, "solid", 2.5)
    key = zlib.crc32(name.encode())
    place, dash = _MEASURES.get(name, (_REST[key % len(_REST)], _DASHES[key // 7 % len(_DASHES)]))
    return Line(look.labels[place], dash, 2.0)


class LabelColors(NamedTuple):
    """Rows -> what is drawn: `slot` (N,) points into names, colors and counts; a legend shows all of them."""

    slot: np.ndarray
    names: tuple[str, ...]
    colors: tuple[str, ...]
    counts: tuple[int, ...]


def label_colors(label: np.ndarray, names: Sequence[str] = (), dark: bool = False) -> LabelColors:
    """Colours of any number of labels: the twelve most frequent, then "other (k labels)" in grey, then the empty ones.

    With at most twelve labels the colour depends on the label's own number alone, so it is the same in every subset;
    beyond that, the twelve most frequent take their colours in the order of their numbers. Numbers below 0 and the
    name `(none)` are the empty ones. Labels that no row has take no colour.
    """
    look = theme(dark)
    label = np.asarray(label, dtype=np.int64)
    missing = (label < 0) | np.isin(label, [i for i, name in enumerate(names) if name == MISSING_LABEL])
    codes, counts = np.unique(label[~missing], return_counts=True)
    top = np.sort(codes[np.argsort(-counts, kind="stable")][:MOST_LABELS])
    own = bool(len(codes) and codes.max() < MOST_LABELS)
    shown = [names[c] if c < len(names) else f"label {c}" for c in top]
    colors = [look.labels[c if own else i] for i, c in enumerate(top)]
    slot = np.full(len(label), len(top), dtype=np.int16)
    found = np.searchsorted(top, label).clip(0, max(0, len(top) - 1))
    hit = ~missing & (top[found] == label) if len(top) else np.zeros(len(label), bool)
    slot[hit] = found[hit]
    rest = len(codes) - len(top)
    if rest:
        shown, colors = [*shown, f"other ({rest} labels)"], [*colors, look.other]
    if missing.any():
        slot[missing] = len(shown)
        shown, colors = [*shown, MISSING_LABEL], [*colors, look.none]
    return LabelColors(slot, tuple(shown), tuple(colors), tuple(np.bincount(slot, minlength=len(shown)).tolist()))


def dot(kind: str, n: int, dims: int = 2) -> float:
    """Diameter of a point in pixels: smaller in space, and where there are many."""
    crowd = min(1.0, max(0.5, (600 / max(n, 1)) ** 0.35))
    return float(DOT[kind] * crowd * (1.0 if dims == 2 else 0.6))


def palette(dark: bool = False) -> dict[str, Any]:
    """All of the above as plain values, for the player in the browser."""
    look = theme(dark)
    plain: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(look).items()
    }
    plain["metrics"] = {name: curve_line(name, dark)._asdict() for name in ("loss", *_MEASURES)}
    plain |= {"font": FONT, "mono": MONO, "size": dict(SIZE), "dot": dict(DOT), "dark": dark}
    return plain | {"target_alpha": TARGET_ALPHA, "particle_alpha": PARTICLE_ALPHA, "trail_alpha": TRAIL_ALPHA}


def layout(dark: bool = False) -> dict[str, Any]:
    """What every Plotly figure of dmviz shares."""
    look = theme(dark)
    return {
        "paper_bgcolor": look.background,
        "plot_bgcolor": look.background,
        "font": {"family": FONT, "size": SIZE["base"], "color": look.text},
        "title": {"font": {"size": SIZE["title"]}, "x": 0.0, "xref": "paper", "xanchor": "left"},
        "legend": {"bgcolor": CLEAR, "font": {"size": SIZE["small"]}},
        "hoverlabel": {"bgcolor": look.surface, "bordercolor": look.axis, "font": {"color": look.text}},
        "margin": {"l": 60, "r": 20, "t": 80, "b": 60},
        "uirevision": "dmviz",  # zoom and camera survive every frame
    }


def axis(title: str, dark: bool = False) -> dict[str, Any]:
    """One axis of a Plotly figure."""
    look = theme(dark)
    return {
        "title": {"text": title, "font": {"size": SIZE["base"]}},
        "gridcolor": look.grid,
        "zerolinecolor": look.grid,
        "linecolor": look.axis,
        "tickcolor": look.axis,
        "tickfont": {"color": look.muted, "size": SIZE["small"]},
        "ticks": "outside",
        "showline": True,
    }
