"""Runs as figures, stills and films. `show(run)` is the one to start with."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmviz.plot.animation import show as show
    from dmviz.plot.cloud import picture as picture
    from dmviz.plot.cloud import trajectories as trajectories
    from dmviz.plot.curve import curves as curves
    from dmviz.plot.film import gif as gif
    from dmviz.plot.film import webp as webp
    from dmviz.plot.page import html as html
    from dmviz.plot.still import png as png
    from dmviz.plot.still import svg as svg
    from dmviz.plot.still import thumbnail as thumbnail
    from dmviz.plot.theme import label_colors as label_colors
    from dmviz.plot.theme import palette as palette
    from dmviz.plot.words import alt_text as alt_text

_WHERE = {
    "show": "animation",
    "picture": "cloud",
    "trajectories": "cloud",
    "curves": "curve",
    "palette": "theme",
    "label_colors": "theme",
    "alt_text": "words",
    "html": "page",
    "svg": "still",
    "png": "still",
    "thumbnail": "still",
    "gif": "film",
    "webp": "film",
}
__all__ = [
    "alt_text",
    "curves",
    "gif",
    "html",
    "label_colors",
    "palette",
    "picture",
    "png",
    "show",
    "svg",
    "thumbnail",
    "trajectories",
    "webp",
]


def __getattr__(name: str) -> Any:
    """Load each kind of figure when it is asked for: Plotly and Matplotlib take a second each."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"dmviz.plot.{_WHERE[name]}"), name)
    raise AttributeError(f"dmviz.plot has no {name!r}; it has {', '.join(__all__)}")
