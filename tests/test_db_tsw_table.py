"""The table of the Db-TSW paper: its machinery on tiny runs, its line budgets, and the results that are kept."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import db_tsw_table as made
from benchmarks._measure import RESULTS
from benchmarks.db_tsw_table import BUDGET, METHODS, PROBLEMS, RULES, Cell, Outcome, Scale
from dmviz.cloud import Cloud, seeded
from dmviz.losses import energy_based_sliced as ebsw
from dmviz.losses import max_sliced_wasserstein, tsw_sl
from dmviz.losses import sliced_wasserstein as sw
from dmviz.run import from_link, record

TINY = Scale(n=12, steps=50, every=10)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem, two methods, two step sizes."""
    monkeypatch.setattr(made, "PROBLEMS", {"swiss_roll": PROBLEMS["swiss_roll"]})
    monkeypatch.setattr(made, "METHODS", {name: METHODS[name] for name in ("sw", "db_tsw")})
    monkeypatch.setattr(made, "RULES", {"adam": RULES["adam"]._replace(grid=(0.01, 0.03))})


def lines_of(method: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lines that each of three steps in a row looks along, counted where the losses draw or see them."""
    loss, seen = METHODS[method].loss, [0]

    def counting(module: object, name: str, count: object) -> None:
        true = getattr(module, name)

        def counted(*args: object, **more: object) -> object:
            found = true(*args, **more)
            seen[0] += count(found, args)  # type: ignore[operator]
            return found

        monkeypatch.setattr(module, name, counted)

    if method == "max_sw":  # every line that the search values counts, and none is valued elsewhere
        counting(max_sliced_wasserstein, "sliced_slopes", lambda found, args: len(args[2]))
    elif method in ("sw", "ebsw"):
        counting(sw if method == "sw" else ebsw, "unit_vectors", lambda found, args: len(found))
    elif method == "tsw_sl":
        counting(tsw_sl, "unit", lambda found, args: len(found))
    else:
        name = type(loss).__module__.rsplit(".", 1)[1]
        module = __import__(f"dmviz.losses.{name}", fromlist=[name])
        counting(module, "concurrent_trees", lambda found, args: found.theta.shape[0] * found.theta.shape[1])
    x, target, counts, carry = torch.randn(20, dim, generator=seeded(1)), Cloud(torch.ones(20, dim) * 2), [], None
    target = replace(target, x=target.x + torch.randn(20, dim, generator=seeded(2)))
    for step in range(3):
        seen[0] = 0
        answer = loss.velocity(x, target, seeded(step), None, carry)  # type: ignore[attr-defined]
        x, carry = x + 0.01 * answer.v, answer.carry
        counts.append(seen[0])
    return counts


@pytest.mark.parametrize("dim", [2, 20])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_looks_along_equally_many_lines(method: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = lines_of(method, dim, monkeypatch)
    if method == "max_sw":  # the first step has no line to start from, and searches longer
        assert all(BUDGET // 2 < count <= BUDGET for count in counts[1:])
    else:
        assert counts == [BUDGET] * 3


def test_trees_and_lines_multiply_to_the_budget() -> None:
    for method in ("tsw_sl", "db_tsw", "db_tsw_orthogonal", "db_tsw_released"):
        loss = METHODS[method].loss
        assert loss.trees * loss.lines == BUDGET  # type: ignore[attr-defined]


def test_a_run_is_the_one_behind_its_link() -> None:
    cell = Cell("gaussian_20d", "db_tsw", "adam", 0.01, 3)
    found = made.outcome(cell, TINY)
    setup = from_link(found.link)
    assert setup == made.setup_of(cell, TINY)
    assert setup.seed == setup.target_seed == 3 and setup.source.dim == setup.target.dim == 20  # type: ignore[union-attr]
    steps, squares = record(setup, TINY.steps).metrics["wasserstein"]
    assert tuple(steps) == TINY.at
    assert found.w2 == tuple(math.sqrt(value) for value in squares)


def test_the_same_seed_gives_the_same_table(few: None) -> None:
    tables = [made.table(["adam"], TINY, [1, 2], jobs=1, budget=math.inf) for _ in range(2)]
    for found in tables:
        del found["blocks"][0]["cpu_s"]
        for row in found["blocks"][0]["rows"]:
            del row["seconds"]
    assert tables[0]["blocks"] == tables[1]["blocks"]
    assert tables[0]["blocks"][0]["seeds"] == [1, 2]
    rows = tables[0]["blocks"][0]["rows"]
    assert [row["method"] for row in rows] == ["sw", "db_tsw"]
    for row in rows:
        each = list(row["each"].values())
        assert each[0] != each[1]
        assert row["mean"][-1] == pytest.approx((each[0][-1] + each[1][-1]) / 2, rel=1e-5)
        assert row["sd"][-1] == pytest.approx(abs(each[0][-1] - each[1][-1]) / math.sqrt(2), rel=1e-4)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(few: None) -> None:
    cells = [Cell("swiss_roll", method, "adam", 0.03, 1) for method in ("sw", "db_tsw")]
    one, two = (made.gathered(cells, TINY, jobs, math.inf) for jobs in (1, 2))
    assert [out.w2 for out in one.values()] == [out.w2 for out in two.values()] and list(one) == list(two) == cells


def test_the_seed_that_chooses_step_sizes_is_not_reported(few: None) -> None:
    part = made.block("adam", TINY, [1], 1, math.inf)
    assert part is not None and made.GRID_SEED not in part["seeds"]
    for row in part["rows"]:
        tried = {t["size"]: t["w2"][-1] for t in part["tried"] if t["method"] == row["method"]}
        assert set(tried) == {0.01, 0.03} and tried[row["size"]] == min(tried.values())
        assert f"seed={made.GRID_SEED}&" not in row["link"] and row["edge"]


def test_a_broken_run_is_never_the_best() -> None:
    def cell(size: float) -> Cell:
        return Cell("swiss_roll", "sw", "adam", size, 0)

    outs = {
        cell(0.1): Outcome((1.0, math.inf), "Stopped", 0.1, ""),
        cell(0.03): Outcome((1.0, 0.5), "", 0.1, ""),
        cell(0.01): Outcome((1.0, 0.5), "", 0.1, ""),
    }
    assert made.best_sizes(outs) == {("swiss_roll", "sw"): 0.01}


def test_a_run_that_breaks_is_told_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = RULES["euler"]._replace(grid=(300.0,))
    monkeypatch.setattr(made, "RULES", {"euler": wild})
    out = made.outcome(Cell("swiss_roll", "sw", "euler", 300.0, 1), TINY)
    assert out.ended.startswith("Stopped at step") and math.isinf(out.w2[-1]) and math.isfinite(out.w2[0])


def test_no_run_begins_after_the_budget(few: None) -> None:
    cells = [Cell("swiss_roll", "sw", "adam", 0.03, seed) for seed in range(3)]
    assert made.gathered(cells, TINY, 1, time.monotonic() - 1) == {}
    with pytest.raises(ValueError, match="raise --budget"):
        made.table(["adam"], TINY, [1], 1, -1.0)


def test_only_whole_rounds_of_seeds_are_reported(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    true = made.gathered

    def short(cells: list[Cell], *rest: object) -> dict[Cell, Outcome]:
        return true([c for c in cells if (c.seed, c.method) != (2, "db_tsw")], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(made, "gathered", short)
    part = made.block("adam", TINY, [1, 2], 1, math.inf)
    assert part is not None and part["seeds"] == [1]
    assert all(set(row["each"]) == {"1"} for row in part["rows"])


def test_a_run_that_was_kept_is_not_run_again(few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "runs.jsonl"
    first = made.table(["adam"], TINY, [1], 1, math.inf, keep)
    assert len(keep.read_text().splitlines()) == 6  # two methods: two sizes each, then a seed each
    other = TINY._replace(steps=100)
    assert made.kept_runs([Cell("swiss_roll", "sw", "adam", 0.03, 1)], other, keep) == {}

    def refuse(*rest: object) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr(made, "outcome", refuse)
    again = made.table(["adam"], TINY, [1], 1, math.inf, keep)["blocks"][0]
    assert first["blocks"][0].pop("kept_from_before") == 0 and again.pop("kept_from_before") == 6
    assert again == first["blocks"][0]


def test_cells_show_three_digits_and_mark_the_least() -> None:
    assert made.cell_words(0.12345, 0.0021, False) == "0.123 ± 0.002"
    assert made.cell_words(10.25, 0.5, True) == "**10.2 ± 0.5**"
    assert made.cell_words(1.234e-4, 5e-6, False) == "1.2e-04 ± 5.0e-06"
    assert made.cell_words(3e-8, 1e-8, True) == "**< 1e-05**"
    assert made.cell_words(None, None, False) == "broke"


def test_the_markdown_has_every_row_and_its_link(few: None) -> None:
    found = made.table(["adam"], TINY, [1], jobs=1, budget=math.inf)
    page = made.markdown(json.loads(json.dumps(found)))
    for row in found["blocks"][0]["rows"]:
        assert f"`?{row['link']}`" in page
    assert "| SW | 0.03* |" in page and "| Db-TSW | 0.03* |" in page
    head = next(line for line in page.splitlines() if line.startswith("| method"))
    assert [word.strip() for word in head.split("|")[3:9]] == ["0", "10", "20", "30", "40", "50"]
    assert page.count("**") == 2 * 5  # one least mean in each column after the start


def test_the_command_writes_both_files(few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "some.json"
    made.main(["--quick", "--jobs", "1", "--out", str(out)])
    assert json.loads(out.read_text())["settings"]["lines"] == BUDGET
    assert out.with_suffix(".md").read_text(encoding="utf-8") in capsys.readouterr().out


def test_an_unknown_flow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        made.main(["--flows", "sgd"])
    assert "no flow named sgd; there are adam, euler" in capsys.readouterr().err


def test_kept_results_are_whole_and_of_these_settings() -> None:
    kept = json.loads((RESULTS / "db_tsw_table.json").read_text())
    assert kept["settings"]["methods"] == made.settings_of(Scale())["methods"]
    for part in kept["blocks"]:
        assert [(r["problem"], r["method"]) for r in part["rows"]] == [(p, m) for p in PROBLEMS for m in METHODS]
        assert len(part["tried"]) == len(PROBLEMS) * len(METHODS) * len(part["grid"])
        for row in part["rows"]:
            assert len(row["mean"]) == len(kept["settings"]["steps"]) and len(row["each"]) == len(part["seeds"])
            cell = Cell(row["problem"], row["method"], part["rule"], row["size"], part["seeds"][0])
            scale = Scale(kept["settings"]["n"], kept["settings"]["steps"][-1], kept["settings"]["steps"][1])
            assert from_link(row["link"]) == made.setup_of(cell, scale)
    assert (RESULTS / "db_tsw_table.md").read_text(encoding="utf-8") == made.markdown(kept)
