"""The smallest app around the player: one setup from the address bar, and what the tests need to see of Python."""

from dataclasses import replace
from hashlib import blake2b

import streamlit as st

from dmviz.run import from_link, query, simulate, start
from dmviz.ui.player import player
from dmviz.ui.stage import Stage

DEFAULT = "loss=energy_distance&flow.dt=0.1&n=300&m=300&referees=sliced_wasserstein"

st.set_page_config(layout="wide")
setup = from_link(st.query_params.get("link", DEFAULT))
stage = st.session_state.setdefault("stage", Stage())


def factory():
    begun = start(setup)
    return begun.scene, simulate(begun)


def branched(frame):
    """The run goes on from a frame, twice as fast."""
    begun = start(replace(setup, flow=replace(setup.flow, dt=2 * setup.flow.dt)))
    frames = simulate(begun, frame.x, frame.step, frame.time)
    next(frames)
    return begun.scene, frames


def digest(frames: int) -> str:
    if stage.available < frames:
        return "-"
    return blake2b(b"".join(stage.frame(k).x.tobytes() for k in range(frames)), digest_size=8).hexdigest()


@st.fragment
def live() -> None:
    if st.button("Again"):
        stage.load(query(setup), factory, again=True)
    if st.button("Branch"):
        frame = stage.frame(int(stage.pos))
        stage.load(f"{stage.link}+", lambda: branched(frame), keep=int(stage.pos) + 1)
    value = st.slider("A widget", 0, 100, 50)
    if st.checkbox("Show the player", value=True):
        events = player("player", stage, height=460, metrics={"loss": ("Energy distance", "length")})
        if events.drawn is not None:
            st.session_state["drawn"] = events.drawn
        if events.new_seed:
            st.session_state["seeds"] = st.session_state.get("seeds", 0) + 1
            st.rerun(scope="fragment")  # a page that answers an event so must not see it again
        drawn = ";".join(f"{x:.4f},{y:.4f}" for x, y in st.session_state.get("drawn", ()))
        st.text(f"python pos={events.pos} playing={events.playing} seeds={st.session_state.get('seeds', 0)} w={value}")
        st.text(f"drawn {drawn}")
        st.text(f"digest {digest(21)}")


st.session_state["runs"] = st.session_state.get("runs", 0) + 1
st.text(f"runs={st.session_state['runs']}")
if "began" not in st.session_state:
    st.session_state["began"] = stage.load(query(setup), factory)
live()
