"""Watch up to four losses race from one start, on one clock."""

from functools import partial

import streamlit as st

from dmviz.arena import Arena, lane_titles, query, setups
from dmviz.ui import about, arena, arena_session, session
from dmviz.ui.arena_player import arena_player
from dmviz.ui.stage import Stage


@st.fragment
def race() -> None:
    """Choices and picture in one fragment, so that a slider never disturbs the picture."""
    arena_session.take_later()
    notes = st.container()
    picture, choices = st.columns([3.4, 1], gap="medium")
    with choices:
        now, stages = chosen()
    with picture:
        watch(now, stages)
    for note in arena_session.notes():
        notes.warning(note, icon=":material/link_off:")


def chosen() -> tuple[Arena, list[Stage]]:
    """The arena of the widgets; where they do not fit each other, a sentence, and the last one that did."""
    problems = st.container()  # above the menus, where they are seen
    try:
        now = arena.choose()
        arena_session.keep(now)
    except ValueError as problem:
        problems.error(str(problem), icon=":material/error:")
        now = arena_session.kept()
    return now, arena_session.show(now)


def watch(now: Arena, stages: list[Stage]) -> None:
    events = arena_player(
        "arena",
        stages,
        lanes=lane_titles(now),
        height=600,
        colors=arena.colors(),
        metrics=arena.measures(now),
        title=arena.title(now),
    )
    if events.new_seed:
        arena_session.adopt_later(arena_session.with_new_seed(now))
        st.rerun(scope="fragment")
    panel = st.segmented_control(
        "More",
        ["Export", "About", "Open a session"],
        label_visibility="collapsed",
        key=session.widget("arena", "more", default=None),
    )
    panels = {
        "Export": partial(arena.export_panel, now, stages),
        "About": partial(about.panel, setups(now)[min(arena.chosen_lane(), len(now.lanes) - 1)]),
        "Open a session": arena.open_panel,
    }
    if panel:
        panels[panel]()
    st.caption(f"Link of this arena: `?{query(now)}`")


session.through_app()
arena_session.arrive()
race()
