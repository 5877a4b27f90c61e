"""The player: one browser component that draws particles, curves and transport, and asks Python for frames.

Plotly draws axes, zoom and curves; a canvas above its plot area draws the particles. The browser holds the clock: it
asks for frames by index whenever its lead grows short, and Python answers (`Stage.chunk`). See frontend/index.js.
"""

import gc
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dmviz.ui.player import wire

if TYPE_CHECKING:
    from dmviz.ui.stage import Stage

__all__ = ["Events", "player"]

NAME = "dmviz.player"
HERE = Path(__file__).parent
FRONTEND = HERE / "frontend"


class Events(NamedTuple):
    """What the viewer did since the last run of the script."""

    pos: int  # the frame on screen, as of the last request
    playing: bool
    drawn: tuple[tuple[float, ...], ...] | None  # points of "Use as target", in data coordinates
    new_seed: bool  # "New seed" was pressed


def vendored() -> Path:
    """plotly.min.js beside the player, copied once from the installed plotly; no page ever loads a script from afar.

    Raises RuntimeError with one sentence if it is missing and cannot be written.
    """
    source = Path(str(find_spec("plotly").origin)).parent / "package_data" / "plotly.min.js"  # type: ignore[union-attr]
    copy = FRONTEND / "vendor" / "plotly.min.js"
    if copy.exists() and copy.stat().st_size == source.stat().st_size:
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        part = copy.with_suffix(f".{os.getpid()}")
        shutil.copyfile(source, part)
        part.replace(copy)  # a second process never sees half a file
    except OSError as error:
        raise RuntimeError(
            f"The player needs a copy of plotly.min.js in '{copy.parent}' and cannot write there ({error.strerror}). "
            "Make that folder writable, or copy the file there from the plotly package."
        ) from None
    return copy


def _declare() -> None:
    """Tell the running Streamlit where the player's files are, if it has not found them by itself.

    Streamlit finds `dmviz/pyproject.toml` of an installed package; a plain checkout on the path is declared here.
    """
    from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager
    from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest

    manager = get_bidi_component_manager()
    root = manager.get_component_asset_root(NAME)
    if root is None or root.resolve() != FRONTEND.resolve():
        component = ComponentConfig(name="player", asset_dir="frontend")
        manager.register_from_manifest(ComponentManifest("dmviz", "0", [component]), HERE)


def component() -> Callable[..., Any]:
    """The component, known to the Streamlit that runs now; it shows one run or, given a bundle, several."""
    made = _component()
    _declare()
    return made


@lru_cache(maxsize=1)
def _component() -> Callable[..., Any]:
    import streamlit as st

    vendored()
    _declare()
    # After each script run Streamlit collects garbage; with torch loaded that holds the interpreter for 0.3 s.
    # What is loaded by now stays for good: leave it out of the search.
    gc.collect()
    gc.freeze()
    return st.components.v2.component(NAME, js="index.js", css="style.css", isolate_styles=False)


def player(
    key: str,
    stage: "Stage",
    *,
    height: int = 560,
    autoplay: bool = False,
    speed: float = 30.0,
    colors: Mapping[str, Any] | None = None,
    metrics: Mapping[str, tuple[str, str]] | None = None,
    drawable: bool = True,
    title: str = "",
    view: Mapping[str, Any] | None = None,
) -> Events:
    """Mount the player of `stage`; call it inside an `st.fragment`.

    `metrics` maps a metric's name to its title and unit. `colors` overrides the palette: particles, target, time,
    speed, labels, curves (colours as '#rrggbb' or lists of them; a pair (light, dark) where the themes differ).
    `view` sets what is on at first: trails "off" | "short" | "long", arrows, target, color, log.
    `speed` is the number of frames a second at 1x.
    """
    import streamlit as st

    mount = component()
    kept = f"{key}.message"

    def need() -> None:
        wanted = st.session_state[key].get("need")
        if wanted:
            st.session_state[kept] = (stage.generation, int(wanted["id"]), answer(stage, wanted))

    generation, reply, chunk = st.session_state.get(kept, (-1, 0, b""))
    if generation != stage.generation:
        k0 = int(stage.pos)
        chunk = stage.chunk(k0, scene=True, since=0, wait=0.35)
        st.session_state[kept] = (stage.generation, reply, chunk)
    settings = {
        "key": key,
        "reply": reply,
        "height": height,
        "autoplay": autoplay,
        "speed": speed,
        "colors": dict(colors or {}),
        "metrics": {name: list(words) for name, words in (metrics or {}).items()},
        "drawable": drawable,
        "title": title,
        "view": dict(view or {}),
        "pos": stage.pos,
    }
    result = mount(
        key=key,
        data=wire.envelope(settings, chunk),
        on_need_change=need,
        on_drawn_change=nothing,
        on_seed_change=nothing,
    )
    drawn, seed = (once(f"{key}.{name}", result.get(name)) for name in ("drawn", "seed"))
    return Events(round(stage.pos), stage.playing, points(drawn.get("points")), bool(seed))


def nothing() -> None:
    """Streamlit reports an event only if it has a callback."""


def once(place: str, event: Any) -> Mapping[str, Any]:
    """An event the first time it is seen, {} afterwards: `st.rerun` shows the script the same event again."""
    import streamlit as st

    if not isinstance(event, Mapping) or st.session_state.get(place) == event.get("token"):
        return {}
    st.session_state[place] = event.get("token")
    return event


def answer(stage: "Stage", wanted: Mapping[str, Any]) -> bytes:
    """The chunk that answers a request of the browser; the same request always gets the same frames.

    A request for a run that left the stage is answered with the start of the present one.
    """
    if wanted.get("gen") != stage.generation:
        return stage.chunk(int(stage.pos), scene=True, since=0, wait=0.05)
    stage.poke(float(wanted["pos"]), bool(wanted["play"]), float(wanted["speed"]))
    parts = wanted.get("parts", ["x"])
    return stage.chunk(
        int(wanted["k0"]),
        int(wanted.get("most", 64)),
        x="x" in parts,
        arrows="arrows" in parts,
        speed="speed" in parts,
        scene=bool(wanted.get("scene")),
        since=wanted.get("since"),
        wait=0.04,
    )


def points(drawn: Any) -> tuple[tuple[float, ...], ...] | None:
    """Drawn points as the browser sent them, checked; None if there are none."""
    if not isinstance(drawn, Sequence) or isinstance(drawn, str) or not drawn:
        return None
    return tuple(tuple(float(value) for value in point) for point in drawn)
