"""What the page Benchmarks is made of: results as tables and charts, goals, and a measurement of one's own."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

import streamlit as st

from dmviz.catalog import entry_class, menu
from dmviz.field import dims_of
from dmviz.laws import Family
from dmviz.plot import benchmark
from dmviz.plot.benchmark import Growth, Ratio
from dmviz.ui.job import Job

Record = Mapping[str, Any]
Measure = Callable[[str, Sequence[tuple[int, int]], Callable[[], object]], Iterator[dict[str, Any]]]
COLD, FLOW = "from nothing", "in a flow"
OWN_SIZES = (500, 2_000, 10_000)
JOB = "dmviz.benchmark"


class Goal(Protocol):
    """A goal in words, as the benchmarks judge it."""

    @property
    def id(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def wanted(self) -> str: ...
    @property
    def reached(self) -> str: ...
    @property
    def met(self) -> bool | None: ...


# ---------------------------------------------------------------------------------------------------- results as rows


def read(path: Path) -> Record:
    """A file of results; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "cases" in found else {}


def cases_of(record: Record) -> list[Record]:
    """The cases of losses that there still are, in the order of the menu."""
    families = get_args(Family)
    known = [case for case in record.get("cases", ()) if case["loss"] in menu("losses")]
    return sorted(known, key=lambda c: (families.index(_class(c).family), _class(c).title, c["d"], c["n"]))


def _class(case: Record) -> Any:
    return entry_class("losses", case["loss"])


def way_of(case: Record, way: str) -> Record | None:
    """Its times and memory one way; what is never different in a flow counts there as well."""
    found: Record | None = case.get(way, case.get(COLD) if f"{FLOW}, skipped" not in case else None)
    return found


def fits(case: Record, d: int) -> bool:
    """Whether a case is the one of a wish for d dimensions: those, or the nearest that the loss allows."""
    least, most = dims_of(_class(case))
    return bool(case["d"] == min(max(d, least), most or max(d, least)))


def table_rows(record: Record, way: str, d: int) -> list[dict[str, Any]]:
    """A row a loss: time at every size, slope, memory at the largest, and why sizes are missing."""
    slopes = {(s["loss"], s["d"]): s["slope"] for s in record.get("slopes", ())}
    cases = [case for case in cases_of(record) if fits(case, d)]
    sizes = sorted({case["n"] for case in cases})
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        cls = _class(case)
        empty = {"Loss": cls.title, "Family": cls.family.capitalize(), **{f"{n:,}": None for n in sizes}}
        row = rows.setdefault(case["loss"], {**empty, "Slope in n": slopes.get((case["loss"], case["d"]))})
        took = way_of(case, way)
        if took:
            row[f"{case['n']:,}"] = took["cpu_ms"]["median"]
            row["Memory, MB"], row["at n"] = took["peak_mb"], case["n"]
        else:
            row.setdefault("Left out", f"from {case['n']:,}: {case['skipped'] or case[f'{FLOW}, skipped']}")
        row["Measured"] = case["of"] + (f", {case['d']}-D" if case["d"] != d else "")
    order = ("Loss", "Family", *(f"{n:,}" for n in sizes), "Slope in n", "Memory, MB", "at n", "Measured", "Left out")
    return [{key: row.get(key) for key in order} for row in rows.values()]


def lines_of(record: Record, family: str, way: str, d: int, measure: str) -> list[Growth]:
    """Every loss of a family as a line over its sizes; `measure` is "time" or "memory"."""
    names = [name for name in menu("losses") if entry_class("losses", name).family == family]
    found = []
    for look, name in enumerate(sorted(names, key=lambda name: entry_class("losses", name).title)):
        pairs = []
        for case in cases_of(record):
            took = way_of(case, way) if case["loss"] == name and fits(case, d) else None
            if took:
                value = took["cpu_ms"]["median"] if measure == "time" else max(took["peak_mb"], 0.01)
                pairs.append((case["n"], value))
        if pairs:
            sizes, values = zip(*sorted(pairs), strict=True)
            found.append(Growth(entry_class("losses", name).title, look, sizes, values))
    return found


def takeaway(lines: Sequence[Growth], unit: str, verb: str) -> str:
    """One sentence: least and most at the largest size that most of them reach."""
    if not lines:
        return "Nothing of this family was measured."
    at = {n: [line for line in lines if n in line.sizes] for line in lines for n in line.sizes}
    n = max(size for size, there in at.items() if 2 * len(there) >= len(lines))
    ranked = sorted((line.values[line.sizes.index(n)], line.title) for line in at[n])
    (low, first), (high, last) = ranked[0], ranked[-1]
    if len(ranked) == 1:
        return f"At {n:,} points {first} {verb} {low:,.3g} {unit}."
    return f"At {n:,} points {first} {verb} {low:,.3g} {unit}, the least, and {last} {high:,.3g} {unit}, the most."


def ratio_rows(contests: Record) -> list[dict[str, Any]]:
    """A row for each peer on each problem, against each way of dmviz that solves it."""
    rows = []
    for case in contests.get("cases", ()):
        title = _any_title(case["loss"])
        for own, against in case.get("ratios", {}).items():
            for peer, times in against.items():
                mine, other = case["methods"][own], case["methods"][peer]
                rows.append({
                    "Loss": title, "n": case["n"], "d": case["d"], "dmviz": own, "Peer": peer, "Times as fast": times,
                    "ms, dmviz": mine["cpu_ms"]["min"], "ms, peer": other["cpu_ms"]["min"],
                    "Gradient error, dmviz": mine["gradient_error"], "Gradient error, peer": other["gradient_error"],
                    "MB, dmviz": mine["peak_mb"], "MB, peer": other["peak_mb"],
                })  # fmt: skip
    return rows


def _any_title(name: str) -> str:
    folder = next((folder for folder in ("losses", "flows") if name in menu(folder)), "")
    return str(entry_class(folder, name).title) if folder else name


def machine_words(record: Record) -> str:
    """Machine, date and versions in one line."""
    m = record.get("machine", {})
    versions = ", ".join(f"{name} {version}" for name, version in m.get("versions", {}).items())
    return (
        f"{m.get('date', 'no date')}, {m.get('cpu', 'a machine')}, {m.get('cores', '?')} cores, "
        f"{m.get('torch_threads', '?')} torch thread, load {m.get('load_at_start', 0):g} when it began; {versions}."
    )


# ---------------------------------------------------------------------------------------------------- the page's parts


def dark() -> bool:
    return bool(st.context.theme.type == "dark")


def chart(figure: Any, key: str) -> None:
    alt = figure.layout.meta["alt"]
    st.plotly_chart(figure, theme=None, key=key, alt=alt, config={"displaylogo": False, "displayModeBar": False})


def every(record: Record) -> None:
    """All losses: choices, two charts of one family, a table of all."""
    dims = st.columns([1, 1.4, 3], gap="medium", vertical_alignment="bottom")
    with dims[0]:
        d = st.segmented_control("Dimensions", [2, 64], default=2, required=True, key="benchmarks.d") or 2
    with dims[1]:
        way = st.segmented_control("Velocity", [FLOW, COLD], default=FLOW, required=True, key="benchmarks.way") or FLOW
    with dims[2]:
        family = st.selectbox("Family", get_args(Family), format_func=str.capitalize, key="benchmarks.family")
    st.caption(
        "*In a flow* the target is prepared and the step before is remembered; *from nothing* neither is. Losses that "
        "only judge are timed by their value. Times are processor milliseconds over all threads, the median of repeats."
    )
    for column, (measure, axis, unit, verb) in zip(
        st.columns(2, gap="medium"),
        (("time", "CPU ms", "ms", "takes"), ("memory", "peak growth of memory, MB", "MB", "needs")),
        strict=True,
    ):
        with column:
            lines = lines_of(record, family, way, d, measure)
            said = takeaway(lines, unit, verb)
            st.markdown(f"**{measure.capitalize()}.** {said}")
            if lines:
                alt = f"{measure.capitalize()} against n for {len(lines)} losses of the family {family}. {said}"
                chart(benchmark.growth(lines, axis, alt, dark(), measure == "time"), f"benchmarks.{measure}")
    _table(record, way, d)


def _table(record: Record, way: str, d: int) -> None:
    rows = table_rows(record, way, d)
    numbers = {key: st.column_config.NumberColumn(f"{key} (ms)", format="%.3g") for key in rows[0] if key[:1].isdigit()}
    config: dict[str, Any] = numbers | {
        "Loss": st.column_config.TextColumn(pinned=True, width="medium"),
        "Slope in n": st.column_config.NumberColumn(
            format="%.2f", help="exponent of n in the time from nothing, from 2,000 points on"
        ),
        "Memory, MB": st.column_config.NumberColumn(format="%.3g", help="peak growth in one call, at the size beside"),
        "at n": st.column_config.NumberColumn(format="localized"),
        "Left out": st.column_config.TextColumn(width="large"),
    }
    alt = f"Times of {len(rows)} losses at every size, slope and memory."
    st.dataframe(
        rows, hide_index=True, column_config=config, height=420, key="benchmarks.table", alt=alt, placeholder=""
    )


def peers(contests: Record) -> None:
    """Ratios of one size as dots, all of them as a table with the errors of both gradients."""
    rows = ratio_rows(contests)
    sizes = sorted({row["n"] for row in rows})
    if not rows:
        st.info("No peer was measured on a problem that dmviz was measured on.")
        return
    ways = list(dict.fromkeys(row["dmviz"] for row in rows))
    with st.container(horizontal=True, gap="large"):
        n = st.segmented_control(
            "Points", sizes, default=sizes[min(1, len(sizes) - 1)], required=True, format_func=lambda n: f"{n:,}",
            key="benchmarks.n",
        )  # fmt: skip
        own = st.segmented_control("Way of dmviz", ways, default=ways[0], required=True, key="benchmarks.own")
    shown = [row for row in rows if row["n"] == n and row["dmviz"] == own]
    if shown:
        found = [
            Ratio(f"{row['Loss']}, d = {row['d']}", row["Peer"], row["Times as fast"],
                  f"gradient error {row['Gradient error, peer']:.0e}, dmviz {row['Gradient error, dmviz']:.0e}")
            for row in shown
        ]  # fmt: skip
        said = ratio_words(found)
        st.markdown(said)
        chart(
            benchmark.ratios(found, f"Times of peers over those of dmviz at {n:,} points. {said}", dark()),
            "benchmarks.peers",
        )
    else:
        st.caption("dmviz was not measured this way at this size.")
    _peer_table(rows)
    chosen = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in contests.get("settings", {}).items())
    st.caption(
        f"Same points and settings for all: {chosen}. Errors are those of the float32 gradient against float64. "
        f"{machine_words(contests)}"
    )


def _peer_table(rows: Sequence[dict[str, Any]]) -> None:
    errors = {key: st.column_config.NumberColumn(format="%.0e") for key in rows[0] if key.startswith("Gradient")}
    rest = {
        key: st.column_config.NumberColumn(format="%.3g") for key in rows[0] if key.startswith(("ms", "MB", "Times"))
    }
    config: dict[str, Any] = {**errors, **rest, "n": st.column_config.NumberColumn(format="localized")}
    st.dataframe(
        rows, hide_index=True, column_config=config, height=320, key="benchmarks.ratios",
        alt=f"{len(rows)} comparisons of dmviz with peers, with times, gradient errors and memory.",
    )  # fmt: skip


def ratio_words(found: Sequence[Ratio]) -> str:
    """One sentence: how often dmviz is the faster one, and where it is not."""
    slower = [f"{r.peer} on {r.problem}" for r in found if r.times < 1]
    if not slower:
        least = min(found, key=lambda r: r.times)
        return (
            f"dmviz is faster than every peer on all {len(found)} comparisons, by {least.times:.3g} times at least "
            f"({least.peer}, {least.problem})."
        )
    faster = len(found) - len(slower)
    return f"dmviz is faster in {faster} of {len(found)} comparisons. Faster than it: {'; '.join(slower)}."


def goals(rows: Iterable[Goal]) -> None:
    """Every goal, met or missed or not measured."""
    found = list(rows)
    known = [row for row in found if row.met is not None]
    met = sum(bool(row.met) for row in known)
    st.markdown(f"Of {len(found)} goals {len(known)} were measured; **{met} are met, {len(known) - met} missed**.")
    marks = {True: "met", False: "missed", None: "not measured"}
    order = {False: 0, None: 1, True: 2}
    table = [
        {"Goal": row.id, "Verdict": marks[row.met], "What": row.what, "Wanted": row.wanted, "Reached": row.reached}
        for row in sorted(found, key=lambda row: order[row.met])
    ]
    config: dict[str, Any] = {"What": st.column_config.TextColumn(width="large")}
    alt = f"{len(table)} goals with what is wanted and what is reached."
    st.dataframe(table, hide_index=True, column_config=config, height=360, key="benchmarks.goals", alt=alt)


# ---------------------------------------------------------------------------------------------------- one's own numbers


@st.fragment
def own(record: Record, measure: Measure) -> None:
    """One loss measured here, beside the page, with progress and a way to stop."""
    job: Job | None = st.session_state.get(JOB)
    running = job is not None and job.running
    names = sorted(menu("losses"), key=lambda name: entry_class("losses", name).title)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "Loss", names, format_func=lambda name: str(entry_class("losses", name).title), key="benchmarks.loss",
            disabled=running, width=340,
        )  # fmt: skip
        st.button(
            "Measure on this machine", key="benchmarks.measure", disabled=running, icon=":material/timer:",
            on_click=_begin, args=(measure,),
        )  # fmt: skip
    st.caption(f"{', '.join(f'{n:,}' for n in OWN_SIZES)} points in a process of its own, within a minute.")
    if running:
        _progress()
    elif job is not None:
        _outcome(job, record)


def _begin(measure: Measure) -> None:
    name = st.session_state["benchmarks.loss"]
    st.session_state[JOB] = Job(lambda progress: measured(measure, name, progress))


def jobs_of(name: str) -> list[tuple[int, int]]:
    least, most = dims_of(entry_class("losses", name))
    dims = sorted({min(max(d, least), most or max(d, least)) for d in (2, 64)})
    return [(n, d) for n in OWN_SIZES for d in dims]


def measured(measure: Measure, name: str, progress: Callable[[float], object]) -> bytes:
    """The cases as JSON; `progress` is told often, so that what it raises ends the work soon."""
    jobs, found = jobs_of(name), list[dict[str, Any]]()
    for case in measure(name, jobs, lambda: progress(len(found) / len(jobs))):
        found.append(case)
        progress(len(found) / len(jobs))
    return json.dumps(found).encode()


@st.fragment(run_every=0.4)
def _progress() -> None:
    job: Job = st.session_state[JOB]
    st.progress(job.share, f"Measuring, {job.share:.0%}" if job.share else "Starting a process for it")
    st.button("Cancel", key="benchmarks.cancel", on_click=job.cancel)
    if not job.running:
        st.rerun()


def _outcome(job: Job, record: Record) -> None:
    if job.problem:
        st.caption(job.problem)
        return
    rows = own_rows(json.loads(job.result), record)
    config: dict[str, Any] = {
        key: st.column_config.NumberColumn(format="%.3g") for key in rows[0] if key.endswith((", ms", ", MB"))
    } | {"n": st.column_config.NumberColumn(format="localized")}
    alt = f"{len(rows)} sizes measured on this machine, beside the recorded times."
    st.dataframe(rows, hide_index=True, column_config=config, key="benchmarks.own.table", alt=alt, placeholder="")


def own_rows(cases: Sequence[Record], record: Record) -> list[dict[str, Any]]:
    """What was measured now beside what is on record, the same way."""
    kept = {(c["loss"], c["n"], c["d"]): c for c in record.get("cases", ())}
    rows = []
    for case in cases:
        before = kept.get((case["loss"], case["n"], case["d"]), {})
        row: dict[str, Any] = {"Loss": _class(case).title, "n": case["n"], "d": case["d"]}
        for way in (COLD, FLOW):
            row[f"{way}, ms"] = case[way]["cpu_ms"]["median"] if way in case else None
            row[f"on record, {way}, ms"] = before[way]["cpu_ms"]["median"] if way in before else None
        row["Peak, MB"] = case[COLD]["peak_mb"] if COLD in case else None
        rows.append(row | {"Left out": case["skipped"]})
    return rows
