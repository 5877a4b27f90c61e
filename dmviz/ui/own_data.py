"""Widgets for data that a person brings: a file to load, points to draw."""

from types import SimpleNamespace
from typing import Any

import streamlit as st

from dmviz.params import Param
from dmviz.ui import session

DRAWN_HERE = {("file", "path"), ("file", "columns"), ("file", "label"), ("file", "weight"), ("drawn", "points")}
KINDS = ["csv", "tsv", "txt", "parquet", "npy", "npz", "json", "jsonl", "ndjson"]


def draws(name: str, param: Param) -> bool:
    """Whether a parameter has a widget of its own kind here."""
    return (name, param.name) in DRAWN_HERE


def widgets(part: str, name: str, current: SimpleNamespace) -> dict[str, Any]:
    """The values chosen by those widgets, by parameter."""
    if name == "file":
        return _file(part, current)
    if name == "drawn":
        st.caption("Press *Draw target* in the picture, click or drag, then *Use as target*.")
        return {"points": st.text_input("Points", key=session.widget(part, name, "points", default=current.points))}
    return {}


def _file(part: str, current: SimpleNamespace) -> dict[str, Any]:
    from dmviz.datasets import _reading, _store

    path_key = session.widget(part, "file", "path", default=current.path)
    sent = st.file_uploader("Upload a table or an array", KINDS, key=f"{path_key}.upload", help="200 MB at most")
    if sent is not None and session.value(part, "file", "upload_id", default=None) != sent.file_id:
        session.put(part, "file", "upload_id", value=sent.file_id)
        session.put(part, "file", "path", value=_store.keep_upload(sent.name, sent.getvalue()))
        for field in ("columns", "label", "weight"):
            session.put(part, "file", field, value="")
    path = st.text_input("or a path on this machine", key=path_key)
    if not path:
        return {"path": path}
    names = _reading.column_names(path)
    return {
        "path": path,
        "columns": ",".join(_columns(part, names, current.columns)),
        "label": _one(part, "label", names, "colours the points"),
        "weight": _one(part, "weight", names, "mass of each row"),
    }


def _columns(part: str, names: tuple[str, ...], chosen: str) -> list[str]:
    st.session_state.setdefault(f"w.{part}.file.pick", [c for c in chosen.split(",") if c in names])
    picked: list[str] = st.multiselect(
        "Columns", names, key=f"w.{part}.file.pick", help="none chosen: all columns of numbers"
    )
    return picked


def _one(part: str, field: str, names: tuple[str, ...], help: str) -> str:
    key = session.widget(part, "file", field, default="")
    if st.session_state[key] not in names:
        st.session_state[key] = ""
    chosen: str = st.selectbox(
        field.capitalize(), ["", *names], key=key, help=help, format_func=lambda name: name or "none"
    )
    return chosen
