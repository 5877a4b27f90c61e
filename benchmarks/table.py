"""`python -m benchmarks.table`: the results as tables, into README.md between its marks."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from benchmarks import every as sizes_of
from benchmarks._measure import RESULTS
from benchmarks.goals import COARSE, COLD, EAGER, FLOW, verdicts
from dmviz.catalog import entry_class, menu
from dmviz.laws import Family

Record = Mapping[str, Any]
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"
EVERY_START, EVERY_END = "<!-- every:start -->", "<!-- every:end -->"
PEERS = (
    "POT",
    "GeomLoss",
    "GeomLoss, scaling .9",
    "GeomLoss multiscale",
    "KeOps",
    "OTT-JAX",
    "by hand",
    "authors' formulation",
)


def title(name: str) -> str:
    folder = "losses" if name in menu("losses") else "flows"
    return str(entry_class(folder, name).title)


def speed(record: Record) -> list[str]:
    """One row a case at the largest size and 2,000, times in CPU milliseconds, errors in brackets."""
    sizes = sorted({case["n"] for case in record["cases"]} - {500})
    rows = [
        "| loss | n | d | dmviz | in a flow | not compiled | peers | fastest peer / dmviz | peak MB, dmviz and peers |"
    ]
    rows.append("|---|--:|--:|--:|--:|--:|---|--:|---|")
    for case in sorted(record["cases"], key=lambda c: title(c["loss"])):
        if case["n"] in sizes:
            rows.append(_speed_row(case, COLD))
            if COARSE in case["methods"]:
                rows.append(_speed_row(case, COARSE))
    return rows


def _speed_row(case: Record, way: str) -> str:
    methods = case["methods"]
    peers = [p for p in PEERS if "cpu_ms" in methods.get(p, {})]
    words = ", ".join(f"{p} {_cell(methods[p])}" for p in peers) or "none fits"
    best = min((methods[p]["cpu_ms"]["min"] for p in peers), default=None)
    ratio = f"**{best / methods[way]['cpu_ms']['min']:.3g}**" if best and "cpu_ms" in methods.get(way, {}) else ""
    peaks = [f"{methods[name]['peak_mb']:.3g}" for name in (way, *peers) if "peak_mb" in methods.get(name, {})]
    more = (FLOW, EAGER) if way == COLD else ("", "")
    ours = " | ".join(_cell(methods[w]) if "cpu_ms" in methods.get(w, {}) else "" for w in (way, *more))
    name = title(case["loss"]) + (", coarse" if way == COARSE else "")
    return f"| {name} | {case['n']:,} | {case['d']} | {ours} | {words} | {ratio} | {', '.join(peaks)} |"


def _cell(method: Record) -> str:
    return f"{method['cpu_ms']['min']:,.3g} ({method['gradient_error']:.0e})"


def machine_words(record: Record) -> str:
    m = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    return (
        f"{m['date']}, {m['cpu']}, {m['cores']} cores, {m['torch_threads']} torch thread, load {m['load_at_start']:g} "
        f"when it began; {versions}."
    )


def losses(record: Record) -> list[str]:
    s = record["settings"]
    lines = [
        "CPU milliseconds over all threads of one value and gradient in X, the least of interleaved repeats; in "
        "brackets the relative error of the float32 gradient. "
        f"{s['lines']} lines; {s['trees']} trees of {s['lines_a_tree']} lines; bandwidth {s['bandwidth']:g}; blur "
        f"{s['blur']:g}. *In a flow*: target prepared once, and what the last step left behind. *Not compiled*: before "
        "the kernels are ready, or without them. *Coarse*: annealed and swept once, "
        "as the peers do. *authors' formulation*: our rewriting of it in plain torch.",
        "",
        *speed(record),
        "",
        f"{machine_words(record)} All sizes, medians and wall times: `benchmarks/results/losses.json`.",
    ]
    return lines + _goals(record)


def _goals(record: Record) -> list[str]:
    found = [v for v in verdicts(record["cases"]) if v["met"] is not None]
    missed = [v for v in found if not v["met"]]
    lines = ["", f"Of {len(found)} goals of speed that were measured, {len(found) - len(missed)} are met."]
    if missed:
        lines += ["Missed:", ""]
        lines += [
            f"- {title(v['loss'])}, n = {v['n']:,}, d = {v['d']}: {v['way']} {v['reached']:g} times as fast as "
            f"{v['peer']}, wanted {v['times']:g} ({v['id']})"
            for v in missed
        ]
    return lines


def memory(record: Record) -> list[str]:
    rows = ["Growth of memory during one step in 2-D, each in a process of its own. Goal: "
            f"{record['goal_mb']:g} MB at 100,000 against 100,000 points.", "",
            "| loss | n | growth, MB | CPU s |", "|---|--:|--:|--:|"]  # fmt: skip
    for case in record["cases"]:
        chosen = ", ".join(f"{key} {value}" for key, value in case["settings"].items())
        words = f"{title(case['loss'])}{f' ({chosen})' if chosen else ''}"
        rows.append(f"| {words} | {case['n']:,} | {case['growth_mb']:.3g} | {case['cpu_ms'] / 1e3:.3g} |")
    return [*rows, "", machine_words(record)]


def directions(record: Record) -> list[str]:
    rows = ["Error of the gradient of sliced Wasserstein from few lines, against independent random lines.", "",
            "| d | lines | dmviz | Monte Carlo | share | goal |", "|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for c in record["cases"]:
        rows.append(
            f"| {c['d']} | {c['lines']} | {c['dmviz']:.2g} | {c['monte_carlo']:.2g} | {c['share']:.2g} "
            f"| {c['goal']:g} |"
        )
    return rows


def live(record: Record) -> list[str]:
    rows = [f"One step at {record['n']:,} particles in {record['d']}-D. Goal: {record['goal_ms']:g} ms for all but "
            f"exact transport; `simulate` adds {record['overhead']['median_ms']:.2g} ms a frame (goal "
            f"{record['overhead']['goal_ms']:g}).", "",
            "| loss | flow | CPU ms | wall ms | goal |", "|---|---|--:|--:|---|"]  # fmt: skip
    for c in record["cases"]:
        word = "exempt" if c["exempt"] else "met" if c["met"] else "missed"
        cpu, wall = c["cpu_ms"]["median"], c["wall_ms"]["median"]
        rows.append(
            f"| {title(c['loss'])} | {entry_class('flows', c['flow']).title} | {cpu:.3g} | {wall:.3g} | {word} |"
        )
    return [*rows, "", machine_words(record)]


def every(record: Record, n: int = 2_000, d: int = 2) -> list[str]:
    """Median CPU milliseconds of a velocity of every loss, a row a family, the quickest first."""
    found: dict[str, list[tuple[float, str]]] = {family: [] for family in get_args(Family)}
    missing = []
    for case in record["cases"]:
        cls = entry_class("losses", case["loss"]) if case["loss"] in menu("losses") else None
        if cls is None or case["n"] != n or case["d"] not in (d, *sizes_of.dims_for(cls, [d])):
            continue
        if sizes_of.COLD not in case:
            missing.append(f"{cls.title} ({case['skipped'].split(':')[0]})")
            continue
        way = case.get(sizes_of.FLOW, case[sizes_of.COLD])
        ms, there = way["cpu_ms"]["median"], "" if case["d"] == d else f" ({case['d']}-D)"
        found[cls.family].append((ms, f"{cls.title}{there} {ms:,.3g}"))
    rows = [f"Every loss with its defaults: median CPU milliseconds of one velocity at n = m = {n:,}, d = {d}, one "
            "torch thread, as in a flow (target prepared, the step before remembered); those that only judge by their "
            "value.", "", "| family | losses, the quickest first |", "|---|---|"]  # fmt: skip
    rows += [
        f"| {family} | {', '.join(words for _, words in sorted(pairs))} |" for family, pairs in found.items() if pairs
    ]
    if missing:
        rows += ["", f"Not measured at this size: {', '.join(sorted(missing))}."]
    return [*rows, "", f"{machine_words(record)} All sizes to 100,000, 64 dimensions, memory and slopes: page "
            "*Benchmarks*, or `benchmarks/results/every.json`."]  # fmt: skip


PARTS = {"losses": losses, "memory": memory, "directions": directions, "live": live}


def tables(folder: Path = RESULTS) -> str:
    """Markdown of all results that there are."""
    parts = []
    for name, part in PARTS.items():
        path = folder / f"{name}.json"
        if path.exists():
            parts.append("\n".join(part(json.loads(path.read_text()))))
    return "\n\n".join(parts)


def placed(page: str, text: str, start: str = START, end: str = END) -> str:
    """`page` with `text` between the marks. Raises ValueError where it has none."""
    if start not in page or end not in page:
        raise ValueError(f"the page must hold {start} and {end}")
    before, rest = page.split(start, 1)
    return f"{before}{start}\n{text}\n{end}{rest.split(end, 1)[1]}"


def with_results(page: str, folder: Path = RESULTS) -> str:
    """The page with all tables that there are results for."""
    path = folder / "every.json"
    if path.exists():
        page = placed(page, "\n".join(every(json.loads(path.read_text()))), EVERY_START, EVERY_END)
    return placed(page, tables(folder))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table")
    parser.add_argument("--readme", type=Path, default=Path(__file__).parent.parent / "README.md")
    parser.add_argument("--print", action="store_true", help="show the tables and change nothing")
    choice = parser.parse_args(words)
    if choice.print:
        print(tables())
        return
    choice.readme.write_text(with_results(choice.readme.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
