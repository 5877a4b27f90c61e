"""What the player's benchmark looks at: a run, a widget beside it, and one that changes a parameter of the run."""

from dataclasses import replace

import streamlit as st

from dmviz.run import from_link, query, simulate, start
from dmviz.ui.player import player
from dmviz.ui.stage import Stage

st.set_page_config(layout="wide")
chosen = from_link(st.query_params["link"])
stage = st.session_state.setdefault("stage", Stage())


@st.fragment
def live() -> None:
    value = st.slider("A widget", 0, 100, 50)
    dt = st.slider("Step size", 0.05, 1.0, 0.1, 0.05)
    setup = replace(chosen, flow=replace(chosen.flow, dt=dt))

    def factory():
        begun = start(setup)
        return begun.scene, simulate(begun)

    stage.load(query(setup), factory)
    player("player", stage, height=540)
    st.text(f"w={value}")


live()
