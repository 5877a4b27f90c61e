"""`python -m benchmarks.db_tsw_table`: the gradient-flow table of the Db-TSW paper, made again with dmviz.

Particles flow from a Gaussian to three targets under sliced and tree-sliced losses that look along equally many lines
a step, and exact W2 to the target judges them at fixed steps. Every method takes its best step size from one grid,
chosen on a seed that is not reported; then several seeds, each with its own source, target and lines, are reported.

A row is a `Setup` like any other: its link opens the same run on the page Flow. Runs are ordered so that whole rounds
of seeds are done when the budget ends.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from joblib import Parallel, delayed

from benchmarks._measure import RESULTS, digits, machine, one_thread, save
from dmviz.flows.adam import Adam
from dmviz.flows.euler import Euler
from dmviz.losses.db_tsw import DbTsw
from dmviz.losses.db_tsw_released import DbTswReleased
from dmviz.losses.energy_based_sliced import EnergyBasedSliced
from dmviz.losses.max_sliced_wasserstein import MaxSlicedWasserstein
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.losses.tsw_sl import TswSl
from dmviz.protocols import Flow, Loss, Shape
from dmviz.run import Setup, query, record
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.swiss_roll import SwissRoll
from dmviz.shapes.twenty_five_gaussians import TwentyFiveGaussians

TREES, LINES = 25, 4
BUDGET = TREES * LINES  # lines that a method may look along in one step
GRID_SEED = 0  # chooses step sizes, and is not reported
ARRIVED = 1e-5  # W2 below this is rounding: float32 keeps seven digits of a place, and there are 20 of them
STRIDE = 10  # steps between two pictures on the page
DELTA = 1.0  # 1/length; of every split by distance


class Problem(NamedTuple):
    title: str
    source: Shape
    target: Shape


class Method(NamedTuple):
    title: str
    loss: Loss
    lines: str  # how it spends its lines


class Rule(NamedTuple):
    """A flow with its grid of step sizes, the same for every method."""

    title: str
    grid: tuple[float, ...]
    flow: Callable[[float], Flow]


PROBLEMS = {
    "swiss_roll": Problem("Swiss roll, 2-D", Gaussian(), SwissRoll()),
    "25_gaussians": Problem("25 Gaussians, 2-D", Gaussian(), TwentyFiveGaussians()),
    "gaussian_20d": Problem("Gaussian, 20-D", Gaussian(dim=20), Gaussian(dim=20, center=2.0)),
}
_EACH = f"{BUDGET} independent lines"
_TREES = f"{TREES} trees of {LINES} lines"
METHODS = {
    "sw": Method("SW", SlicedWasserstein(slices=BUDGET, directions="random"), _EACH),
    # After the first step: 64 lines drawn, 5 starts seen twice, 6 on the way up, and the last step's line once more.
    "max_sw": Method("max-SW", MaxSlicedWasserstein(restarts=64, steps=5), f"a search that sees at most {BUDGET}"),
    "ebsw": Method("EBSW", EnergyBasedSliced(slices=BUDGET, directions="random"), _EACH),
    "tsw_sl": Method("TSW-SL", TswSl(trees=TREES, lines=LINES), _TREES),
    "db_tsw": Method("Db-TSW", DbTsw(trees=TREES, lines=LINES, delta=DELTA), _TREES),
    "db_tsw_orthogonal": Method(
        "Db-TSW⊥",
        DbTsw(trees=TREES, lines=LINES, delta=DELTA, sampler="gaussian_orthogonal"),
        f"{_TREES} at right angles",
    ),
    "db_tsw_released": Method("Db-TSW, released p = 2", DbTswReleased(trees=TREES, lines=LINES, delta=DELTA), _TREES),
}
RULES = {
    "adam": Rule("Adam", (0.002, 0.005, 0.012, 0.03, 0.08, 0.2), lambda size: Adam(lr=size, steps="fixed")),
    "euler": Rule("Euler", (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), lambda size: Euler(dt=size, steps="fixed")),
}
AUTHORS = {"n": 100, "lines": 100, "lines_a_tree": 4, "flow": "Adam", "steps": 2500, "seeds": 10}
DIFFERENCES = (
    "clouds are drawn from dmviz' own shapes, anew for each seed, and the start is a standard Gaussian",
    "step sizes come from one grid, where the released example gives each loss a fixed one",
    f"every split by distance has delta = {DELTA:g}/length and roots at 0.1 length about the target's mean",
    "losses are powers, not their roots: Adam sees the same direction, Euler another speed",
    "Db-TSW⊥ in 2-D stacks two right-angled frames a tree, where the released sampler refuses k > D",
    "TSW-SL has constant splitting, which makes it sliced W1; SW, max-SW and EBSW have p = 2",
    "max-SW keeps its line from step to step",
)


class Scale(NamedTuple):
    """How long a run is, and how many particles it moves."""

    n: int = 100
    steps: int = 1000
    every: int = 200  # steps between two judgements

    @property
    def at(self) -> tuple[int, ...]:
        return tuple(range(0, self.steps + 1, self.every))


class Cell(NamedTuple):
    """One run: what names it in PROBLEMS, METHODS and RULES, its step size and its seed."""

    problem: str
    method: str
    rule: str
    size: float
    seed: int


class Outcome(NamedTuple):
    w2: tuple[float, ...]  # at `Scale.at`; infinite from where a run broke
    ended: str
    seconds: float  # of the processor
    link: str


def setup_of(cell: Cell, scale: Scale) -> Setup:
    """The run as the page knows it. Source, target and lines all follow the seed."""
    problem = PROBLEMS[cell.problem]
    return Setup(
        source=problem.source,
        target=problem.target,
        loss=METHODS[cell.method].loss,
        flow=RULES[cell.rule].flow(cell.size),
        n=scale.n,
        m=scale.n,
        seed=cell.seed,
        target_seed=cell.seed,
        steps_per_frame=STRIDE,
        device="cpu",
        referees="wasserstein",
        referee_every=max(1, scale.every // STRIDE),
    )


def outcome(cell: Cell, scale: Scale) -> Outcome:
    """Exact W2 along one run."""
    one_thread()
    began, setup = time.process_time(), setup_of(cell, scale)
    run = record(setup, scale.steps, max(1, scale.every // STRIDE))
    steps, squares = run.metrics["wasserstein"]
    found = {int(step): math.sqrt(value) for step, value in zip(steps, squares, strict=True) if math.isfinite(value)}
    w2 = tuple(found.get(step, math.inf) for step in scale.at)
    return Outcome(w2, run.ended, time.process_time() - began, query(setup))


def done(cells: Iterable[Cell], scale: Scale, jobs: int, until: float) -> Iterator[tuple[Cell, Outcome]]:
    """Outcomes as they come; no run begins after `until` on the monotonic clock."""

    def due() -> Iterator[Any]:
        for cell in cells:
            if time.monotonic() > until:
                return
            yield delayed(_named)(cell, scale)

    yield from Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch=jobs, batch_size=1)(due())


def _named(cell: Cell, scale: Scale) -> tuple[Cell, Outcome]:
    return cell, outcome(cell, scale)


def gathered(
    cells: Sequence[Cell], scale: Scale, jobs: int, until: float, keep: Path | None = None
) -> dict[Cell, Outcome]:
    """The same in the order of `cells`, with a line on the terminal for each. Runs in `keep` are not run again."""
    found = kept_runs(cells, scale, keep)
    for cell, out in done([cell for cell in cells if cell not in found], scale, jobs, until):
        found[cell] = out
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**out._asdict(), "scale": scale}) + "\n")
        left = f"{max(0.0, until - time.monotonic()):.0f} s left" if math.isfinite(until) else "no limit"
        print(
            f"{len(found)}/{len(cells)} {cell.rule} {cell.problem} {cell.method} size {cell.size:g} seed {cell.seed}: "
            f"W2 {out.w2[-1]:.3g} ({out.seconds:.1f} s; {left})",
            flush=True,
        )
    return {cell: found[cell] for cell in cells if cell in found}


def kept_runs(cells: Iterable[Cell], scale: Scale, keep: Path | None) -> dict[Cell, Outcome]:
    """Outcomes in a file of finished runs. A run is its link, and how long it was watched."""
    if keep is None or not keep.exists():
        return {}
    lines = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
    known = {line["link"]: line for line in lines if tuple(line.pop("scale")) == scale}
    links = {cell: query(setup_of(cell, scale)) for cell in cells}
    return {cell: Outcome(**{**known[link], "w2": tuple(known[link]["w2"])})
            for cell, link in links.items() if link in known}  # fmt: skip


def best_sizes(grid: Mapping[Cell, Outcome]) -> dict[tuple[str, str], float]:
    """The step size with the least W2 at the last step, for each problem and method; the smaller one if equal."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for cell, out in grid.items():
        key, rank = (cell.problem, cell.method), (out.w2[-1], cell.size)
        found[key] = min(found.get(key, rank), rank)
    return {key: size for key, (_, size) in found.items()}


def block(
    rule: str, scale: Scale, seeds: Sequence[int], jobs: int, until: float, keep: Path | None = None
) -> dict[str, Any] | None:
    """Grid, then rounds of seeds under one flow; None where the budget ended within the grid or the first round."""
    # The slow ones first, so that no worker is left alone with one of them.
    pairs = [(p, m) for m in sorted(METHODS, key=lambda m: m not in ("max_sw", "db_tsw")) for p in PROBLEMS]
    grid_cells = [Cell(p, m, rule, size, GRID_SEED) for p, m in pairs for size in RULES[rule].grid]
    before = len(kept_runs(grid_cells, scale, keep))
    grid = gathered(grid_cells, scale, jobs, until, keep)
    if len(grid) < len(grid_cells):
        return None
    sizes = best_sizes(grid)
    cells = [Cell(p, m, rule, sizes[p, m], seed) for seed in seeds for p, m in pairs]
    before += len(kept_runs(cells, scale, keep))
    runs = gathered(cells, scale, jobs, until, keep)
    whole = [seed for seed in seeds if all(c in runs for c in cells if c.seed == seed)]
    if not whole:
        return None
    rows = [_row([c for c in cells if (c.problem, c.method) == (p, m) and c.seed in whole], runs)
            for p in PROBLEMS for m in METHODS]  # fmt: skip
    tried = [_trial(cell, out) for cell, out in grid.items()]
    return {
        "rule": rule,
        "flow": repr(RULES[rule].flow(RULES[rule].grid[0])),
        "grid": list(RULES[rule].grid),
        "seeds": whole,
        "runs": len(grid) + len(runs),
        "kept_from_before": before,
        "cpu_s": digits(sum(out.seconds for part in (grid, runs) for out in part.values())),
        "tried": tried,
        "rows": rows,
    }


def _trial(cell: Cell, out: Outcome) -> dict[str, Any]:
    return {"problem": cell.problem, "method": cell.method, "size": cell.size, "w2": _kept(out.w2), "ended": out.ended}


def _row(cells: Sequence[Cell], runs: Mapping[Cell, Outcome]) -> dict[str, Any]:
    first, outs = cells[0], [runs[cell] for cell in cells]
    columns = list(zip(*(out.w2 for out in outs), strict=True))
    return {
        "problem": first.problem,
        "method": first.method,
        "size": first.size,
        "edge": first.size in (RULES[first.rule].grid[0], RULES[first.rule].grid[-1]),
        "mean": _kept([mean(column) for column in columns]),
        "sd": _kept([stdev(column) if len(column) > 1 and math.isfinite(sum(column)) else 0.0 for column in columns]),
        "each": {str(cell.seed): _kept(out.w2) for cell, out in zip(cells, outs, strict=True)},
        "ended": sorted({out.ended for out in outs if out.ended}),
        "seconds": digits(mean(out.seconds for out in outs)),
        "link": outs[0].link,
    }


def _kept(values: Iterable[float]) -> list[float | None]:
    """Six digits; None for a run that broke, since JSON has no infinity."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def table(
    rules: Sequence[str], scale: Scale, seeds: Sequence[int], jobs: int, budget: float, keep: Path | None = None
) -> dict[str, Any]:
    """All that the results file holds. Raises ValueError where the budget leaves no row."""
    began = time.monotonic()
    found: dict[str, Any] = {"machine": machine(), "settings": settings_of(scale), "blocks": []}
    for rule in rules:
        part = block(rule, scale, seeds, jobs, began + budget, keep)
        if part is not None:
            found["blocks"].append(part)
    if not found["blocks"]:
        raise ValueError("the budget ended before one seed of every method was done; raise --budget or take --quick")
    return found | {"wall_s": digits(time.monotonic() - began), "jobs": jobs, "budget_s": budget}


def settings_of(scale: Scale) -> dict[str, Any]:
    """Everything that was chosen by hand."""
    return {
        "n": scale.n,
        "m": scale.n,
        "steps": list(scale.at),
        "lines": BUDGET,
        "trees": TREES,
        "lines_a_tree": LINES,
        "delta": DELTA,
        "grid_seed": GRID_SEED,
        "chosen_by": "least W2 at the last step of the grid seed",
        "judge": "exact W2 to the target's points, by assignment",
        "problems": {name: {"title": p.title, "source": repr(p.source), "target": repr(p.target)}
                     for name, p in PROBLEMS.items()},
        "methods": {name: {"title": m.title, "loss": repr(m.loss), "lines": m.lines} for name, m in METHODS.items()},
        "source": ["tran2025dbtsw", "tran2025tswsl", "bonneel2015", "deshpande2019max", "nguyen2023energy"],
        "authors": AUTHORS,
        "differences": list(DIFFERENCES),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------- the markdown


def markdown(record: Mapping[str, Any]) -> str:
    """One table a problem and flow, the links of all rows, and what departs from the authors."""
    s = record["settings"]
    lines = [
        f"Exact W2 to the target, mean ± sd over seeds. {s['n']} particles; at most {s['lines']} lines a step. The "
        f"step size is that of the grid with the {s['chosen_by']} ({s['grid_seed']}), which is not reported; * marks "
        f"an end of the grid. The least mean of a column is bold; below {ARRIVED:g} is the rounding of float32."
    ]
    for part in record["blocks"]:
        grid = ", ".join(f"{size:g}" for size in part["grid"])
        seeds = ", ".join(map(str, part["seeds"]))
        lines += ["", f"## {RULES[part['rule']].title}", "", f"Grid {grid}; seeds {seeds}."]
        for name, problem in s["problems"].items():
            lines += ["", f"### {problem['title']}", "", *_rows(s, [r for r in part["rows"] if r["problem"] == name])]
    lines += ["", "## Links", "", "Append to the address of the page Flow; the first reported seed of each row.", ""]
    lines += [f"- {RULES[part['rule']].title}, {s['problems'][row['problem']]['title']}, "
              f"{s['methods'][row['method']]['title']}: `?{row['link']}`"
              for part in record["blocks"] for row in part["rows"]]  # fmt: skip
    theirs = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in s["authors"].items())
    lines += ["", "## Beside the authors", "", f"Theirs: {theirs}. Here {s['steps'][-1]} steps, and:", ""]
    lines += [f"- {words}" for words in s["differences"]]
    return "\n".join([*lines, "", _machine_words(record)]) + "\n"


def _machine_words(record: Mapping[str, Any]) -> str:
    m, count = record["machine"], {key: sum(part[key] for part in record["blocks"])
                                   for key in ("runs", "cpu_s", "kept_from_before")}  # fmt: skip
    return (
        f"{m['date']}, {m['cpu']}, {m['cores']} cores, load {m['load_at_start']:g}, torch {m['versions']['torch']}: "
        f"{count['runs']} runs of one thread, {count['cpu_s']:,.0f} s of processor time. {count['kept_from_before']} "
        f"of them were kept from earlier calls; the others took {record['wall_s']:,.0f} s on the wall in "
        f"{record['jobs']} processes."
    )


def _rows(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = settings["steps"]
    means = [[row["mean"][at] for row in rows if row["mean"][at] is not None] for at in range(len(steps))]
    least = [max(min(column, default=0.0), ARRIVED) for column in means]
    lines = [f"| method | step size | {' | '.join(f'{step:,}' for step in steps)} | CPU s a run |"]
    lines.append(f"|---|--:|{'--:|' * len(steps)}--:|")
    for row in rows:
        pairs = list(zip(row["mean"], row["sd"], strict=True))
        bold = [at > 0 and value is not None and value <= least[at] for at, (value, _) in enumerate(pairs)]
        cells = [cell_words(*pair, mark) for pair, mark in zip(pairs, bold, strict=True)]
        size = f"{row['size']:g}{'*' if row['edge'] else ''}"
        title = settings["methods"][row["method"]]["title"]
        lines.append(f"| {title} | {size} | {' | '.join(cells)} | {row['seconds']:.3g} |")
    return lines


def cell_words(value: float | None, spread: float | None, least: bool) -> str:
    """`0.123 ± 0.004`, both to the same decimals; "broke" where a run did, and no digits of mere rounding."""
    if value is None:
        return "broke"
    if value < ARRIVED:
        words = f"< {ARRIVED:.0e}"
    elif value < 1e-3:
        words = f"{value:.1e} ± {spread or 0:.1e}"
    else:
        places = max(0, 2 - math.floor(math.log10(value)))
        words = f"{value:.{places}f} ± {spread or 0:.{places}f}"
    return f"**{words}**" if least else words


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.db_tsw_table")
    parser.add_argument("--quick", action="store_true", help="30 particles, 50 steps, one seed: shows that it runs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds to report, beside the one that chooses step sizes")
    parser.add_argument("--steps", type=int, default=Scale().steps, help="of a run; judged five times")
    parser.add_argument("--flows", default="adam", help=f"of {', '.join(RULES)}, separated by commas")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds after which no run begins")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, help="a file of finished runs: what is in it is not run again")
    parser.add_argument("--out", type=Path, help="JSON, and a .md beside it; where not given, --quick writes none")
    choice = parser.parse_args(words)
    scale = Scale(30, 50, 10) if choice.quick else Scale(steps=choice.steps, every=choice.steps // 5)
    if scale.steps % (5 * STRIDE):
        parser.error(f"--steps must be a multiple of {5 * STRIDE}, got {scale.steps}")
    seeds = range(GRID_SEED + 1, GRID_SEED + 1 + (1 if choice.quick else choice.seeds))
    rules = [name for name in choice.flows.split(",") if name]
    if unknown := set(rules) - set(RULES):
        parser.error(f"no flow named {', '.join(sorted(unknown))}; there are {', '.join(RULES)}")
    found = table(rules, scale, seeds, choice.jobs, choice.budget, choice.keep)
    out = choice.out or (None if choice.quick else RESULTS / "db_tsw_table.json")
    if out is not None:
        save(found, out)
        out.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main(sys.argv[1:])
