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
    from dmviz.datasets._store import keep_upload
    from dmviz.datasets.file import describe

    path_key = session.widget(part, "file", "path", default=current.path)
    sent = st.file_uploader("Upload a table or an array", KINDS, key=f"{path_key}.upload", help="200 MB at most")
    if sent is not None and session.value(part, "file", "upload_id", default=None) != sent.file_id:
        session.put(part, "file", "upload_id", value=sent.file_id)
        session.put(part, "file", "path", value=keep_upload(sent.name, sent.getvalue()))
        for field in ("columns", "label", "weight"):
            session.put(part, "file", field, value="")
    path = st.text_input("or a path on this machine", key=path_key)
    about = describe(path)
    st.caption(f"{about.name}: {about.rows:,} rows, {len(about.columns)} columns")
    return {
        "path": path,
        "columns": _columns(part, about.numeric, current.columns),
        "label": _one(part, "label", about.columns, "colours the points"),
        "weight": _one(part, "weight", about.numeric, "mass of each row"),
    }


def _columns(part: str, names: tuple[str, ...], chosen: str) -> str:
    """The columns as the link writes them. A pattern that came with a link stays until others are picked."""
    key = f"w.{part}.file.pick"
    known = [name.strip() for name in chosen.split(",") if name.strip() in names]
    if key not in st.session_state or any(name not in names for name in st.session_state[key]):
        st.session_state[key] = known
    picked: list[str] = st.multiselect("Columns", names, key=key, help="none chosen: every column of numbers")
    words = ", ".join(picked) if picked or known else chosen
    session.put(part, "file", "columns", value=words)
    return words


def _one(part: str, field: str, names: tuple[str, ...], help: str) -> str:
    key = session.widget(part, "file", field, default="")
    if st.session_state[key] not in names:
        st.session_state[key] = ""
    chosen: str = st.selectbox(
        field.capitalize(), ["", *names], key=key, help=help, format_func=lambda name: name or "none"
    )
    return chosen
