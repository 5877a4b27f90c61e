"""The only door to session state and the address bar."""

import importlib
import threading
from dataclasses import replace
from typing import Any

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from dmviz.catalog import name_of
from dmviz.params import params_of
from dmviz.run import PARTS, Setup, query, read_link, setup_params, to_link
from dmviz.ui.stage import Stage

LINK, SHOWN, NOTES, STAGE, LATER = "dmviz.link", "dmviz.shown", "dmviz.notes", "dmviz.stage", "dmviz.later"
BEGUN = "dmviz.begun"


def begin() -> None:
    """Before any page: less empty room above it, and in the background what a first run would otherwise wait for."""
    st.session_state[BEGUN] = True
    st.html("<style>.stMainBlockContainer{padding-top:4.2rem;padding-bottom:2rem}</style>")
    _warm()


def through_app() -> None:
    """First line of every page: a link to a page that is among the first things a new server hears goes through app.py.

    Until `st.navigation` has run once, Streamlit takes the folder pages/ for pages of its own and skips app.py.
    """
    if not st.session_state.pop(BEGUN, False):
        PagesManager.uses_pages_directory = False
        st.rerun()


@st.cache_resource
def _warm() -> bool:
    """Load in the background, once a process, what a first choice would otherwise wait for."""
    threading.Thread(target=_load, daemon=True, name="dmviz-warm").start()
    return True


def _load() -> None:
    from dmviz.losses._compiled import warm

    warm()
    for name in ("ot", "scipy.optimize", "sklearn.datasets", "sklearn.decomposition"):
        importlib.import_module(name)


def stage() -> Stage:
    """The run that this session looks at; its worker stops when the session goes."""
    if STAGE not in st.session_state:
        st.session_state[STAGE] = Stage()
    found: Stage = st.session_state[STAGE]
    return found


def arrive() -> None:
    """On a full run of a page: take up the link in the address bar, or the one kept from before."""
    take_later()
    words = {key: st.query_params[key] for key in st.query_params}
    if words and words != st.session_state.get(SHOWN):
        setup, notes = read_link(words)
        adopt(setup)
        st.session_state[NOTES] = (notes, "")
    elif _key("source") not in st.session_state:  # back from another page: its widgets' values are gone
        setup, _ = read_link(st.session_state.get(LINK, ""))
        adopt(setup)


def notes() -> tuple[str, ...]:
    """Sentences about what the link got wrong, until something else is chosen."""
    found: tuple[str, ...] = st.session_state.get(NOTES, ((), ""))[0]
    return found


def take_later() -> None:
    """Adopt what `adopt_later` left; call it before any widget is drawn."""
    hold()
    if LATER in st.session_state:
        adopt(read_link(st.session_state.pop(LATER))[0])
        st.session_state[SHOWN] = {key: st.query_params[key] for key in st.query_params}


def hold() -> None:
    """Hold the values of widgets that a run leaves out, such as the settings of a loss that is not chosen now.

    Streamlit would forget them. Call it before any widget is drawn.
    """
    for key in [key for key in st.session_state if str(key).startswith("w.") and not str(key).endswith(".upload")]:
        st.session_state[key] = st.session_state[key]


def adopt_later(setup: Setup) -> None:
    """Adopt a setup at the start of the next run, when the widgets of this one are drawn already."""
    st.session_state[LATER] = query(setup)


def adopt(setup: Setup) -> None:
    """Set every widget to a setup; call it before the widgets are drawn."""
    for part in PARTS:
        entry = getattr(setup, part)
        name = name_of(entry)
        st.session_state[_key(part)] = name
        for param in params_of(type(entry)):
            st.session_state[_key(part, name, param.name)] = getattr(entry, param.name)
    for param in setup_params():
        st.session_state[_key("setup", param.name)] = getattr(setup, param.name)
    st.session_state[LINK] = query(setup)
    st.session_state[NOTES] = ((), "")


def keep(setup: Setup) -> None:
    """The setup on screen is the link in the address bar and the one that other pages find."""
    found, link = st.session_state.get(NOTES, ((), ""))
    same = not link or link == query(setup)
    st.session_state[NOTES] = (found if same else (), query(setup))
    st.session_state[LINK] = query(setup)
    words = to_link(setup)
    st.session_state[SHOWN] = words
    if {key: st.query_params[key] for key in st.query_params} != words:
        st.query_params.from_dict(words)


def kept() -> Setup:
    """The setup that was on screen last."""
    return read_link(st.session_state.get(LINK, ""))[0]


def widget(*path: str, default: Any) -> str:
    """The key of a widget whose value is in session state from the start."""
    key = _key(*path)
    st.session_state.setdefault(key, default)
    return key


def value(*path: str, default: Any) -> Any:
    return st.session_state.get(_key(*path), default)


def put(*path: str, value: Any) -> None:
    """Set a widget that is not drawn yet in this run."""
    st.session_state[_key(*path)] = value


def with_new_seed(setup: Setup) -> Setup:
    return replace(setup, seed=(setup.seed + 1) % 2**31)


def _key(*path: str) -> str:
    return "w." + ".".join(path)
