"""Session state and address bar of the page Arena: what `session.py` is for one run."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import streamlit as st

from dmviz.arena import FIRST, MOST_LANES, OWN, SHARED, Arena, Lane, begin, query, read_link, setups, to_link
from dmviz.catalog import entry_class, name_of
from dmviz.params import params_of
from dmviz.run import Frame, Run, Scene, setup_params, threads_for
from dmviz.run import query as link_of
from dmviz.ui import session
from dmviz.ui.stage import Stage

PLACE = "arena."
LINK, SHOWN, NOTES, STAGES, LATER = (f"dmviz.arena.{name}" for name in ("link", "shown", "notes", "stages", "later"))
MOST_BYTES = 256 << 20  # of frames a lane


def lane_place(i: int) -> str:
    """Where the widgets of lane i keep their values."""
    return f"{PLACE}lane{i + 1}."


# ---------------------------------------------------------------------------------------------------- links


def arrive() -> None:
    """On a full run of the page: take up the link in the address bar, or the arena kept from before."""
    take_later()
    words = {key: st.query_params[key] for key in st.query_params}
    if words and words != st.session_state.get(SHOWN):
        arena, notes = read_link(words)
        adopt(arena)
        st.session_state[NOTES] = (notes, "")
    elif session.value("arena", "lanes", default=None) is None:  # back from another page: its widgets' values are gone
        adopt(read_link(st.session_state.get(LINK, ""))[0])


def take_later() -> None:
    """Adopt what `adopt_later` left; call it before any widget is drawn."""
    session.hold()
    if LATER in st.session_state:
        adopt(read_link(st.session_state.pop(LATER))[0])
        st.session_state[SHOWN] = {key: st.query_params[key] for key in st.query_params}


def adopt_later(arena: Arena) -> None:
    """Adopt an arena at the start of the next run, when the widgets of this one are drawn already."""
    st.session_state[LATER] = query(arena)


def adopt(arena: Arena) -> None:
    """Set every widget to an arena; call it before the widgets are drawn."""
    for part in SHARED:
        _put(PLACE + part, getattr(arena.shared, part))
    for param in setup_params():
        session.put(f"{PLACE}setup", param.name, value=getattr(arena.shared, param.name))
    session.put("arena", "lanes", value=len(arena.lanes))
    spare = (Lane(entry_class("losses", name)()) for name in FIRST)
    for i, lane in enumerate([*arena.lanes, *list(spare)[len(arena.lanes) :]][:MOST_LANES]):
        for part in OWN:
            if i < len(arena.lanes) or session.value(lane_place(i) + part, default=None) is None:
                _put(lane_place(i) + part, getattr(lane, part))
    st.session_state[LINK] = query(arena)
    st.session_state[NOTES] = ((), "")


def _put(where: str, entry: object) -> None:
    name = name_of(entry)
    session.put(where, value=name)
    for param in params_of(type(entry)):
        session.put(where, name, param.name, value=getattr(entry, param.name))


def keep(arena: Arena) -> None:
    """The arena on screen is the link in the address bar, and the one found on coming back."""
    found, link = st.session_state.get(NOTES, ((), ""))
    st.session_state[NOTES] = (found if not link or link == query(arena) else (), query(arena))
    st.session_state[LINK] = query(arena)
    words = to_link(arena)
    st.session_state[SHOWN] = words
    if {key: st.query_params[key] for key in st.query_params} != words:
        st.query_params.from_dict(words)


def kept() -> Arena:
    """The arena that was on screen last."""
    return read_link(st.session_state.get(LINK, ""))[0]


def notes() -> tuple[str, ...]:
    """Sentences about what the link got wrong, until something else is chosen."""
    found: tuple[str, ...] = st.session_state.get(NOTES, ((), ""))[0]
    return found


def with_new_seed(arena: Arena) -> Arena:
    return replace(arena, shared=session.with_new_seed(arena.shared))


# ---------------------------------------------------------------------------------------------------- stages


def stages(count: int) -> list[Stage]:
    """A stage a lane; those of lanes that are gone stop."""
    found: list[Stage] = st.session_state.setdefault(STAGES, [])
    while len(found) > count:
        found.pop().close()
    while len(found) < count:
        found.append(Stage(most_bytes=MOST_BYTES))
        found[-1].poke(0.0, found[0].playing, found[0].speed)
    return found


def show(arena: Arena) -> list[Stage]:
    """Put the run of each lane on its stage, unless it is there. Where one begins, all of them go back to the start."""
    found = stages(len(arena.lanes))
    begun = []
    for i, (stage, setup) in enumerate(zip(found, setups(arena), strict=True)):
        if stage.link.split("#")[0] == link_of(setup):
            continue
        stage.threads = _threads(arena)
        stage.pos = 0.0
        stage.load(link_of(setup), partial(begin, arena, i))
        begun.append(stage)
    if begun:
        _rewind(found)
    return found


def reopen(arena: Arena, runs: Iterable[Run]) -> None:
    """Put saved runs on the stages with the frames they have; each goes on after its last one."""
    found = stages(len(arena.lanes))
    for i, (stage, run) in enumerate(zip(found, runs, strict=True)):
        stage.threads = _threads(arena)
        stage.pos = 0.0
        stage.load(f"{link_of(run.setup)}#session", partial(_resumed, arena, i, run), again=True)
    _rewind(found)


def _resumed(arena: Arena, i: int, run: Run) -> tuple[Scene, Iterator[Frame]]:
    """The frames of a saved run, then those after them."""

    def frames() -> Iterator[Frame]:
        yield from run.frames
        if not run.ended:
            yield from begin(arena, i, run.frames[-1])[1]

    return run.scene, frames()


def _threads(arena: Arena) -> int:
    """Threads of one lane: what its size can use, shared among the lanes, so that workers do not fight."""
    return max(1, threads_for(arena.shared.n, 1) // len(arena.lanes))


def _rewind(found: Iterable[Stage]) -> None:
    for stage in found:
        stage.poke(0.0, stage.playing, stage.speed)
