"""What the page Arena is made of: choices, a sweep, files to take away."""

from functools import partial
from typing import Any

import streamlit as st

from dmviz import arena_export
from dmviz.arena import MOST_LANES, OWN, Arena, Lane, Lap, lane_titles, setups, sweep, sweep_values, sweepable
from dmviz.catalog import entry_class
from dmviz.params import params_of, to_text
from dmviz.plot import theme
from dmviz.run import PARTS, Setup, machine
from dmviz.ui import arena_session, exporting, menu, session
from dmviz.ui.arena_session import PLACE, lane_place
from dmviz.ui.stage import Stage

GROUPS = {
    "This step": ("frame_csv", "frame_parquet", "frame_npz"),
    "All steps": ("trajectory_csv", "trajectory_parquet", "trajectory_npz"),
    "Curves and table": ("curve_csv", "curve_parquet", "table_csv"),
    "To run or open again": ("script", "session"),
}
OPENED = "dmviz.arena.opened"
ALL = "All lanes"


# ---------------------------------------------------------------------------------------------------- choices


def choose() -> Arena:
    """All menus, drawn to the end whatever is wrong with one of them.

    Raises ValueError, one sentence, for choices that do not fit each other.
    """
    problems: list[ValueError] = []
    clouds, dim = menu.choose_clouds(problems, PLACE)
    rest = menu.choose_rest(problems, dim, PLACE)
    lanes = _lanes(problems)
    if problems:
        raise problems[0]
    arena = Arena(Setup(**clouds, **rest), lanes)
    _sweep(arena)
    return arena


def _lanes(problems: list[ValueError]) -> tuple[Lane, ...]:
    """How many lanes, and the menus of one of them; the others keep what was chosen."""
    key = session.widget("arena", "lanes", default=MOST_LANES)
    numbers = list(range(1, MOST_LANES + 1))
    count = st.segmented_control("Lanes", numbers, key=key, required=True, width="stretch") or MOST_LANES
    at = min(chosen_lane(), count - 1)
    session.put("arena", "lane", value=at + 1)
    st.segmented_control("Settings of lane", numbers[:count], key="w.arena.lane", required=True, width="stretch")
    found = []
    for i in range(count):
        draw = menu.choose_part if i == at else _kept_part
        found.append({part: menu.tried(problems, partial(draw, part, place=lane_place(i))) for part in OWN})
    return tuple(Lane(**parts) for parts in found) if not problems else ()


def chosen_lane() -> int:
    """The lane whose settings are on screen, counted from 0."""
    return int(session.value("arena", "lane", default=1) or 1) - 1


def _kept_part(part: str, place: str) -> Any:
    """A part of a lane whose menus are not drawn now."""
    where = place + part
    name = session.value(where, default=None)
    cls = entry_class(PARTS[part][0], name) if name else type(getattr(Lane(), part))
    return cls(**{p.name: session.value(where, name or "", p.name, default=p.default) for p in params_of(cls)})


def _sweep(arena: Arena) -> None:
    """One parameter of the lane on screen, and a button that fills the lanes with its values."""
    lane = arena.lanes[min(chosen_lane(), len(arena.lanes) - 1)]
    titles = {(part, name): f"{part}: {_spaced(name)}" for part in OWN for name in sweepable(getattr(lane, part))}
    if not titles:
        return
    picked = st.selectbox("Sweep", list(titles), format_func=titles.__getitem__, key="arena.sweep")
    part, name = picked if picked in titles else next(iter(titles))
    values = sweep_values(getattr(lane, part), name)
    st.button(
        "Fill the lanes", width="stretch", key="arena.fill", icon=":material/stacked_line_chart:",
        help="one lane for each value, all with the loss and flow of the lane above",
        on_click=_fill, args=(arena, part, name, values),
    )  # fmt: skip
    st.caption(f"{_spaced(name)}: {', '.join(to_text(value) for value in values)}")


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _fill(arena: Arena, part: str, name: str, values: tuple[Any, ...]) -> None:
    arena_session.adopt_later(sweep(arena, min(chosen_lane(), len(arena.lanes) - 1), part, name, values))


# ---------------------------------------------------------------------------------------------------- the picture


def colors() -> dict[str, Any]:
    """The theme's colours as the player wants them: (light, dark) pairs."""
    light, dark = theme.palette(False), theme.palette(True)
    both = {
        "lanes": "lanes", "none": "none", "target": "target", "labels": "labels", "time": "sequential",
        "speed": "sequential", "arrow": "arrows",
    }  # fmt: skip
    return {mine: [light[its], dark[its]] for mine, its in both.items()}


def measures(arena: Arena) -> dict[str, tuple[str, str]]:
    """Title and unit of every measure that the picker offers."""
    found = {name: (entry_class("losses", name).title, "") for name in arena.shared.judges()}
    return {"loss": ("Own loss", ""), **found}


def title(arena: Arena) -> str:
    return f"{arena.shared.source.title} → {arena.shared.target.title}: {' / '.join(lane_titles(arena))}"


# ---------------------------------------------------------------------------------------------------- files


def export_panel(arena: Arena, stages: list[Stage]) -> None:
    """Files of all lanes together, or of one, with its figures and film."""
    whose = [ALL, *(f"Lane {i + 1}" for i in range(len(stages)))]
    picked = st.segmented_control("Files of", whose, key=session.widget("arena", "files", default=ALL), required=True)
    at = whose.index(picked) if picked in whose else 0
    if at:
        exporting.panel(setups(arena)[at - 1], stages[at - 1])
    else:
        _all_lanes(arena, stages)


def _all_lanes(arena: Arena, stages: list[Stage]) -> None:
    """Download buttons for the frames computed so far; nothing is made before it is asked for."""
    if any(stage.scene is None or not stage.available for stage in stages):
        st.caption("Nothing to export yet: the first frames are being computed.")
        return
    at = int(stages[0].pos)
    counts = ", ".join(f"{stage.available:,}" for stage in stages)
    st.caption(f"Frame {at:,} is on screen; computed so far, lane by lane: {counts}.")
    for column, (heading, names) in zip(st.columns(len(GROUPS)), GROUPS.items(), strict=True):
        with column:
            st.markdown(f"**{heading}**")
            for name in names:
                item = arena_export.EXPORTS[name]
                st.download_button(
                    _words(name),
                    partial(_made, name, arena, stages, at), item.name(arena), item.mime,
                    key=f"arena.export.{name}", on_click="ignore", help=item.title, width="stretch",
                )  # fmt: skip


def _words(name: str) -> str:
    special = {"script": "Python script", "session": "Session file"}
    what = {"frame": "Coordinates", "trajectory": "Coordinates", "curve": "Curves", "table": "Table"}
    kind, _, form = name.partition("_")
    return special.get(name) or f"{what[kind]}, {form}"


def _made(name: str, arena: Arena, stages: list[Stage], at: int) -> bytes:
    try:
        return arena_export.made(name, arena, laps(arena, stages), at)
    except ValueError as problem:
        return str(problem).encode()  # the file says why it is not what was asked for


def laps(arena: Arena, stages: list[Stage]) -> tuple[Lap, ...]:
    """The lanes as far as they were computed. Four workers share one memory, so its peak is not theirs to tell."""
    return tuple(
        Lap(setup, stage.scene, stage.frames, machine(), stage.ms / setup.steps_per_frame)
        for setup, stage in zip(setups(arena), stages, strict=True)
        if stage.scene is not None
    )


def open_panel() -> None:
    """Open a session file: its arena becomes the arena, its frames the runs, and they go on from there."""
    sent = st.file_uploader("Arena session", [arena_export.SUFFIX.lstrip(".")], key="arena.file")
    opened, problem = st.session_state.get(OPENED, ("", ""))
    if sent is None:
        return
    if sent.file_id != opened:
        try:
            arena, runs = arena_export.load(sent.getvalue())
        except ValueError as error:
            problem = str(error)
        st.session_state[OPENED] = (sent.file_id, problem)
        if not problem:
            arena_session.adopt_later(arena)
            arena_session.reopen(arena, runs)
            st.rerun()
    if problem:
        st.error(problem, icon=":material/error:")
