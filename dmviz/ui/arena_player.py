"""The arena's player: the browser component of one run, mounted for several that share a clock."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dmviz.ui import player as one
from dmviz.ui.player import Events, wire
from dmviz.ui.stage import Stage

PATIENCE = 0.04  # seconds that a request waits at most for frames that are not there yet
FIRST = 24  # frames of each lane in the message that brings a new run


def arena_player(
    key: str,
    stages: Sequence[Stage],
    *,
    lanes: Sequence[str],
    height: int = 560,
    speed: float = 30.0,
    colors: Mapping[str, Any] | None = None,
    metrics: Mapping[str, tuple[str, str]] | None = None,
    title: str = "",
    view: Mapping[str, Any] | None = None,
) -> Events:
    """Mount the player of `stages`; call it inside an `st.fragment`.

    `lanes` are the titles of the lanes; the rest is as in `player`. The browser asks for the frames of all lanes at
    once, and paints a step only when every lane that goes on has it.
    """
    import streamlit as st

    component = one.component()
    kept = f"{key}.message"

    def need() -> None:
        wanted = st.session_state[key].get("need")
        if wanted:
            st.session_state[kept] = (_generations(stages), int(wanted["id"]), answer(stages, wanted))

    generations, reply, chunks = st.session_state.get(kept, ((), 0, []))
    if generations != _generations(stages):
        chunks = beginning(stages, 0.35)
        st.session_state[kept] = (_generations(stages), reply, chunks)
    settings = {
        "key": key, "reply": reply, "height": height, "autoplay": False, "speed": speed, "colors": dict(colors or {}),
        "metrics": {name: list(words) for name, words in (metrics or {}).items()}, "title": title,
        "view": dict(view or {}), "lanes": list(lanes), "pos": stages[0].pos,
    }  # fmt: skip
    data = wire.bundle(settings, chunks)
    result = component(key=key, data=data, on_need_change=need, on_seed_change=one.nothing)
    seed = one.once(f"{key}.seed", result.get("seed"))
    return Events(round(stages[0].pos), stages[0].playing, None, bool(seed))


def _generations(stages: Sequence[Stage]) -> tuple[tuple[int, str], ...]:
    """Changes with every run put on any stage, and with their number."""
    return tuple((stage.generation, stage.link) for stage in stages)


def beginning(stages: Sequence[Stage], wait: float) -> list[bytes]:
    """What each lane is and its first frames; waits so many seconds, all lanes together, for those that begin."""
    until = time.monotonic() + wait
    return [
        stage.chunk(int(stage.pos), FIRST, scene=True, since=0, wait=max(0.0, until - time.monotonic()))
        for stage in stages
    ]


def answer(stages: Sequence[Stage], wanted: Mapping[str, Any]) -> list[bytes]:
    """A chunk a lane that answers a request of the browser; the same request always gets the same frames.

    A request for lanes that are not the present ones is answered with the beginning of those, and moves nothing.
    """
    asked = wanted.get("lanes", [])
    present = [stage.generation for stage in stages]
    if [one_lane.get("gen") for one_lane in asked] != present:
        return beginning(stages, PATIENCE)
    for stage in stages:
        stage.poke(float(wanted["pos"]), bool(wanted["play"]), float(wanted["speed"]))
    until = time.monotonic() + PATIENCE
    return [_chunk(stage, request, until) for stage, request in zip(stages, asked, strict=True)]


def _chunk(stage: Stage, request: Mapping[str, Any], until: float) -> bytes:
    parts, most = request.get("parts", ["x"]), int(request.get("most", 64))
    return stage.chunk(
        int(request["k0"]),
        most,
        x="x" in parts,
        arrows="arrows" in parts,
        speed="speed" in parts,
        scene=bool(request.get("scene")),
        since=request.get("since"),
        wait=max(0.0, until - time.monotonic()) if most else 0.0,
    )
