"""The catalogue as widgets: a menu for each part of a setup, a slider for each parameter."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import streamlit as st

from dmviz.catalog import entry_class, menu
from dmviz.laws import Family
from dmviz.params import Param, Range, params_of
from dmviz.run import PARTS, Setup, dim_of, setup_params
from dmviz.ui import own_data, session

TITLES = {"source": "Source", "target": "Target", "loss": "Loss", "flow": "Flow", "projection": "Projection"}
NICE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
ALWAYS = ("n", "m", "seed", "target_seed")


def choose_setup() -> Setup:
    """All menus and sliders, drawn to the end whatever is wrong with one of them.

    Raises ValueError, one sentence, for choices that do not fit each other.
    """
    problems: list[ValueError] = []
    clouds, dim = choose_clouds(problems)
    motion = {part: tried(problems, partial(choose_part, part)) for part in ("loss", "flow")}
    rest = choose_rest(problems, dim)
    if problems:
        raise problems[0]
    return Setup(**clouds, **motion, **rest)


def choose_clouds(problems: list[ValueError], place: str = "") -> tuple[dict[str, Any], int]:
    """Target and source, and their dimension; 0 where that is not known."""
    target = tried(problems, lambda: choose_part("target", place=place))
    dim = (target and tried(problems, lambda: dim_of(target))) or 0
    source = tried(problems, lambda: choose_part("source", dim or None, place))
    return {"source": source, "target": target}, dim


def choose_rest(problems: list[ValueError], dim: int, place: str = "") -> dict[str, Any]:
    """The projection, where there is something to project, and the plain values of a setup."""
    found: dict[str, Any] = {}
    if dim > 3:
        found["projection"] = tried(problems, lambda: choose_part("projection", place=place))
    where = f"{place}setup"
    found |= {p.name: session.value(where, p.name, default=p.default) for p in setup_params()}
    now = SimpleNamespace(**found)
    for title, always in (("Particles and seeds", True), ("Run", False)):
        mine = [p for p in setup_params() if (p.name in ALWAYS) == always and p.shown_in(now)]
        with drawer(title, place + title) as is_open:
            if is_open:
                found |= {p.name: widget(p, where) for p in mine}
    return found


def tried(problems: list[ValueError], draw: Callable[[], Any]) -> Any:
    """What `draw` gives; None, and its sentence among the problems, where it cannot give anything."""
    try:
        return draw()
    except ValueError as problem:
        problems.append(problem)
        return None


def choose_part(part: str, dim: int | None = None, place: str = "") -> Any:
    """One part of a setup: its menu, and its parameters in an expander. `place` tells apart what is chosen twice."""
    where = place + part
    folders = {name: folder for folder in PARTS[part] for name in menu(folder)}
    titles = {name: entry_class(folder, name).title for name, folder in folders.items()}
    if part == "loss":  # family by family; those that only judge come last, for flows that follow a score
        families = {name: entry_class("losses", name).family for name in folders}
        titles = {name: f"{titles[name]} · {families[name]}" for name in families}
        names = sorted(folders, key=lambda name: (get_args(Family).index(families[name]), titles[name]))
    else:
        names = sorted(folders, key=lambda name: (PARTS[part].index(folders[name]), titles[name]))
    first = "gaussian" if part == "source" else names[0]
    name = st.selectbox(TITLES[part], names, format_func=titles.__getitem__, key=session.widget(where, default=first))
    cls = entry_class(folders[name], name)
    params = [p for p in params_of(cls) if not own_data.draws(name, p)]
    if dim is not None and any(p.name == "dim" for p in params):
        session.put(where, name, "dim", value=dim)  # the source follows the target
    current = SimpleNamespace(**{p.name: session.value(where, name, p.name, default=p.default) for p in params_of(cls)})
    values = {p.name: getattr(current, p.name) for p in params_of(cls)}
    own = len(params) < len(params_of(cls))  # a file to choose, points to draw: nothing goes on without
    with drawer(f"{TITLES[part]} settings", f"{where}.{own}", part == "loss" or own) as is_open:
        if is_open:
            values |= own_data.widgets(where, name, current)
            for param in params:
                if param.shown_in(current) and not (param.name == "dim" and dim is not None):
                    values[param.name] = widget(param, where, name)
            if not params:
                st.caption("Nothing to set.")
    return cls(**values)


@contextmanager
def drawer(title: str, key: str, expanded: bool = False) -> Iterator[bool]:
    """An expander that tells whether it is open: widgets behind a closed one are not made, and keep their values."""
    box = st.expander(title, expanded=expanded, key=f"drawer.{key}", on_change="rerun")
    with box:
        yield bool(box.open)


def widget(param: Param, *path: str) -> Any:
    key = session.widget(*path, param.name, default=param.default)
    words: dict[str, Any] = {"key": key, "help": param.hint.help or None}
    if param.kind == "bool":
        return st.toggle(param.label, **words)
    if param.kind == "choice":
        return st.selectbox(param.label, param.choices, format_func=lambda c: str(c).replace("_", " "), **words)
    if param.kind == "text":
        return st.text_input(param.label, **words)
    hint = param.hint
    assert isinstance(hint, Range)
    whole = param.kind == "int"
    if hint.log:
        options = _nice(hint, whole, session.value(*path, param.name, default=param.default))
        return st.select_slider(param.label, options, format_func=lambda v: f"{v:,g}", **words)
    if hint.high - hint.low > 10_000:
        low, high = (int(hint.low), int(hint.high)) if whole else (hint.low, hint.high)
        return st.number_input(param.label, low, high, step=1 if whole else None, **words)
    if whole:
        return st.slider(param.label, int(hint.low), int(hint.high), step=1, **words)
    step = 10.0 ** math.floor(math.log10((hint.high - hint.low) / 100))
    return st.slider(param.label, float(hint.low), float(hint.high), step=step, **words)


def _nice(hint: Range, whole: bool, current: Any) -> list[Any]:
    """Round numbers from low to high, a few a decade, and the current value among them."""
    found = {hint.low, hint.high, current}
    for decade in range(math.floor(math.log10(hint.low)), math.ceil(math.log10(hint.high)) + 1):
        for digit in NICE:
            number = float(f"{digit * 10.0**decade:.6g}")
            if hint.low <= number <= hint.high and (not whole or number == int(number)):
                found.add(number)
    return sorted({int(v) if whole else float(v) for v in found})
