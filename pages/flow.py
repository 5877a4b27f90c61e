"""Watch particles flow onto a target under a loss."""

from functools import partial

import streamlit as st

from dmviz.run import Setup, query, setup_words
from dmviz.ui import about, exporting, live, menu, session
from dmviz.ui.player import player


@st.fragment
def flow() -> None:
    """Choices and picture in one fragment, so that a slider never disturbs the picture."""
    session.take_later()
    notes = st.container()
    picture, choices = st.columns([3.4, 1], gap="medium")
    with choices:
        setup = chosen()
    with picture:
        watch(setup)
    for note in session.notes():
        notes.warning(note, icon=":material/link_off:")


def chosen() -> Setup:
    """The setup of the widgets; where they do not fit each other, a sentence, and the last one that did."""
    branch = st.toggle(
        "Carry on when I change loss or flow",
        key=session.widget("branch", default=False),
        help="off: a change starts the run again, so the link tells all; on: particles go on from where they are",
    )
    problems = st.container()  # above the menus, where they are seen
    try:
        setup = menu.choose_setup()
        session.keep(setup)
    except ValueError as problem:
        problems.error(str(problem), icon=":material/error:")
        setup = session.kept()
    live.show(session.stage(), setup, branch)
    return setup


def watch(setup: Setup) -> None:
    stage = session.stage()
    events = player(
        "player",
        stage,
        height=600,
        colors=live.player_colors(setup),
        metrics=live.metric_words(setup, stage),
        title=setup_words(setup),
    )
    if events.drawn:
        session.adopt_later(live.with_drawn_target(setup, events.drawn))
        st.rerun(scope="fragment")
    if events.new_seed:
        session.adopt_later(session.with_new_seed(setup))
        st.rerun(scope="fragment")
    for sentence in live.notes(stage):
        st.caption(f":material/info: {sentence}")
    panel = st.segmented_control(
        "More",
        ["Export", "About", "Open a session"],
        label_visibility="collapsed",
        key=session.widget("more", default=None),
    )
    panels = {
        "Export": partial(exporting.panel, setup, stage),
        "About": partial(about.panel, setup),
        "Open a session": exporting.open_panel,
    }
    if panel:
        panels[panel]()
    st.caption(f"Link of this experiment: `?{query(setup)}`")


session.through_app()
session.arrive()
flow()
