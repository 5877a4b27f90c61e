"""Everything of a run as files to take away, and a session file that opens again."""

from functools import partial

import streamlit as st

from dmviz import store
from dmviz.export import EXPORTS, export
from dmviz.run import Run, Setup, machine
from dmviz.ui import live, session
from dmviz.ui.job import Job
from dmviz.ui.stage import Stage

GROUPS = {
    "This frame": ("png", "svg", "frame_csv", "frame_parquet", "frame_npz"),
    "Whole run": ("html", "trajectory_csv", "trajectory_parquet", "trajectory_npz", "curve_csv"),
    "To run or open again": ("script", "session"),
}
JOB, OPENED = "dmviz.job", "dmviz.opened"


def panel(setup: Setup, stage: Stage) -> None:
    """Download buttons for the frames computed so far; nothing is made before it is asked for."""
    if stage.scene is None or not stage.available:
        st.caption("Nothing to export yet: the first frame is being computed.")
        return
    run = Run(setup, stage.scene, stage.frames, machine())
    at = min(int(stage.pos), len(run.frames) - 1)
    dark = st.context.theme.type == "dark"
    st.caption(f"Frame {at} (step {run.frames[at].step}) of {len(run.frames)} computed so far.")
    for column, (title, names) in zip(st.columns(len(GROUPS) + 1), [*GROUPS.items(), ("Film", ())], strict=True):
        with column:
            st.markdown(f"**{title}**")
            for name in names:
                _button(name, run, at, dark)
            if title == "Film":
                _film(run, dark)


def _button(name: str, run: Run, at: int, dark: bool) -> None:
    item = EXPORTS[name]
    st.download_button(
        _words(name), partial(_made, name, run, at, dark), item.name(run, at), item.mime,
        key=f"export.{name}", on_click="ignore", help=item.title, width="stretch",
    )  # fmt: skip


def _words(name: str) -> str:
    kind = EXPORTS[name].suffix.rsplit(".", 1)[-1]
    special = {
        "script": "Python script",
        "session": "Session file",
        "html": "Figure that plays, html",
        "curve_csv": "Curves, csv",
    }
    start = "Coordinates, " if name.startswith(("frame", "trajectory")) else "Figure, "
    return special.get(name, start + kind)


def _made(name: str, run: Run, at: int, dark: bool) -> bytes:
    try:
        return export(name, run, at, dark)
    except ValueError as problem:
        return str(problem).encode()  # the file says why it is not what was asked for


def _film(run: Run, dark: bool) -> None:
    """Films take seconds: made beside the page, with progress and a way to stop."""
    kind = st.radio("Kind", ["webp", "gif"], horizontal=True, label_visibility="collapsed", key="export.film")
    job: Job | None = st.session_state.get(JOB)
    if job is None or not job.running:
        if st.button("Make the film", width="stretch", key="export.make"):
            work = partial(export, kind, run, -1, dark)
            st.session_state[JOB] = Job(lambda progress: work(progress))
            st.session_state[f"{JOB}.name"] = (kind, EXPORTS[kind].name(run))
            st.rerun(scope="fragment")
        if job is not None:
            _film_done(job)
    else:
        _film_progress()


@st.fragment(run_every=0.4)
def _film_progress() -> None:
    job: Job = st.session_state[JOB]
    st.progress(job.share, f"Drawing frames, {job.share:.0%}")
    if st.button("Cancel", width="stretch", key="export.cancel"):
        job.cancel()
    if not job.running:
        st.rerun()


def _film_done(job: Job) -> None:
    if job.problem:
        st.caption(job.problem)
        return
    kind, name = st.session_state[f"{JOB}.name"]
    st.download_button(
        f"Save the {kind}", job.result, name, EXPORTS[kind].mime, on_click="ignore", width="stretch", key="export.save"
    )


def open_panel() -> None:
    """Open a session file: its setup becomes the setup, its frames the run, and it goes on from there."""
    sent = st.file_uploader("Session file", [store.SUFFIX.lstrip(".")], key="session.file")
    opened, problem = st.session_state.get(OPENED, ("", ""))
    if sent is None:
        return
    if sent.file_id == opened:
        if problem:
            st.error(problem, icon=":material/error:")
        return
    try:
        run = store.load(sent.getvalue())
    except ValueError as error:
        st.session_state[OPENED] = (sent.file_id, str(error))
        st.error(str(error), icon=":material/error:")
        return
    st.session_state[OPENED] = (sent.file_id, "")
    session.adopt_later(run.setup)
    live.reopen(session.stage(), run)
    st.rerun()
