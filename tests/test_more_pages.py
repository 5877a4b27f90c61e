"""The pages Reference and Benchmarks without a browser."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from benchmarks import every
from benchmarks._measure import machine, save
from dmviz.catalog import entry_class
from dmviz.plot.benchmark import Growth, Ratio, growth, ratios
from dmviz.ui import benchmarks as board
from dmviz.ui import reference

ROOT = Path(__file__).parent.parent


def opened(path: str, link: str = "") -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=90)
    app.run()
    app.switch_page(path)
    for key, value in parse_qsl(link, keep_blank_values=True):
        app.query_params[key] = value
    return app.run()


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in [*app.markdown, *app.caption, *app.subheader, *app.header])


def address(app: AppTest) -> str:
    """The entry in the address bar."""
    found = app.query_params["entry"]
    return found if isinstance(found, str) else found[0]


def test_reference_lists_every_entry_and_a_table_of_all() -> None:
    app = opened("pages/reference.py")
    assert not app.exception
    assert {button.label for button in app.button} >= {card.title for card in reference.cards()}
    (table,) = app.dataframe
    assert len(table.value) == len(reference.cards())


def test_a_link_opens_one_entry_with_all_there_is_to_know() -> None:
    app = opened("pages/reference.py", "entry=losses.mmd")
    assert not app.exception and not app.warning
    said = words(app)
    assert "Link of this entry: `?entry=losses.mmd`" in said
    for part in ("$$", "| bandwidth | 0.001 to 1000 |", "Laws, each held by a test", "* Cost:", "**Sources**"):
        assert part in said
    code = [block.value for block in app.code]
    assert any("class Mmd" in block for block in code) and any("@article{gretton2012kernel" in block for block in code)
    assert len(app.get("download_button")) == 2
    assert app.get("page_link")[0].proto.query_string == "loss=mmd"


def test_each_kind_of_entry_opens_by_a_click_and_changes_the_address() -> None:
    app = opened("pages/reference.py")
    for key in ("losses.mauve", "losses.ksd", "flows.svgd", "shapes.two_moons", "datasets.file", "projections.pca"):
        app.button(key=f"reference.{key}").click().run()
        assert not app.exception, key
        assert address(app) == key
        assert entry_class(*key.split(".")).title in [header.value for header in app.header]
    app.button(key="reference.all").click().run()
    assert "entry" not in app.query_params and len(app.dataframe) == 1


def test_filters_shorten_the_list_and_nothing_found_is_a_sentence() -> None:
    app = opened("pages/reference.py")
    app.multiselect(key="reference.family").set_value(["kernels"]).run()
    kernels = {card.title for card in reference.cards() if card.family == "kernels"}
    assert {button.label for button in app.button if button.key != "reference.all"} == kernels
    app.text_input(key="reference.search").set_value("no such word").run()
    assert not app.exception and "Nothing matches" in app.info[0].value


def test_an_entry_that_does_not_exist_is_a_sentence_with_those_that_are_near() -> None:
    app = opened("pages/reference.py", "entry=losses.mdd")
    assert not app.exception
    assert "no entry named 'losses.mdd'" in app.warning[0].value and "losses.mmd" in app.warning[0].value
    assert len(app.dataframe) == 1


def test_what_was_read_last_is_there_again_after_another_page() -> None:
    app = opened("pages/reference.py", "entry=flows.svgd")
    app.query_params.clear()
    app.switch_page("pages/home.py").run()
    app.switch_page("pages/reference.py").run()
    assert not app.exception and address(app) == "flows.svgd"


# ---------------------------------------------------------------------------------------------------- benchmarks


def results(folder: Path) -> Path:
    """Results of two losses at two sizes, and of one peer."""

    def case(name: str, n: int, ms: float, of: str = "velocity") -> dict[str, object]:
        times = {"cpu_ms": {"min": ms, "median": ms}, "wall_ms": {"min": ms, "median": ms}, "peak_mb": ms / 10}
        return {"loss": name, "n": n, "d": 2, "of": of, "skipped": "", "from nothing": times}

    cases = [
        case("mmd", 500, 1.0),
        case("mmd", 2_000, 16.0),
        case("energy_distance", 500, 2.0),
        case("mauve", 500, 3.0),
    ]
    cases.append({"loss": "energy_distance", "n": 2_000, "d": 2, "of": "velocity", "skipped": "too slow: about 9 s"})
    cases.append(case("gone", 500, 1.0))
    record = {"machine": machine(), "cases": cases, "slopes": [{"loss": "mmd", "d": 2, "slope": 2.0}]}
    save(record, folder / "every.json")
    ways = {
        name: {"ours": name == "dmviz", "cpu_ms": {"min": ms}, "gradient_error": 1e-7, "peak_mb": 1.0}
        for name, ms in (("dmviz", 1.0), ("POT", 8.0), ("by hand", 0.5))
    }
    contest = {"loss": "mmd", "n": 500, "d": 2, "methods": ways, "ratios": {"dmviz": {"POT": 8.0, "by hand": 0.5}}}
    save({"machine": machine(), "settings": {"lines": 100}, "cases": [contest]}, folder / "losses.json")
    return folder


def test_benchmarks_without_results_says_in_a_sentence_how_to_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every, "RESULTS", tmp_path)
    app = opened("pages/benchmarks.py")
    assert not app.exception
    assert [info.value.split(":")[0] for info in app.info] == [
        "There are no results of every loss yet", "There are no results beside peers yet"]  # fmt: skip


def test_benchmarks_draws_its_results_family_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "RESULTS", results(tmp_path))
    app = opened("pages/benchmarks.py")
    assert not app.exception
    app.selectbox(key="benchmarks.family").set_value("kernels").run()
    assert not app.exception and len(app.get("plotly_chart")) == 3
    assert "At 2,000 points Maximum mean discrepancy takes 16 ms." in words(app)
    assert "dmviz is faster in 1 of 2 comparisons. Faster than it: by hand on Maximum mean discrepancy" in words(app)
    table = next(frame.value for frame in app.dataframe if "Slope in n" in frame.value)
    assert list(table["Loss"]) == [entry_class("losses", n).title for n in ("energy_distance", "mmd", "mauve")]
    assert table["Left out"][0] == "from 2,000: too slow: about 9 s" and table["Slope in n"][1] == 2.0


def test_lines_of_a_family_keep_one_look_whatever_was_measured(tmp_path: Path) -> None:
    record = board.read(results(tmp_path) / "every.json")
    (energy, mmd) = board.lines_of(record, "kernels", board.COLD, 2, "time")
    assert energy.title < mmd.title and energy.look < mmd.look
    assert mmd.sizes == (500, 2_000) and mmd.values == (1.0, 16.0)
    assert board.takeaway([], "ms", "takes") == "Nothing of this family was measured."
    assert not board.read(tmp_path / "nowhere.json")


def test_one_loss_is_measured_here_and_shown_beside_what_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every, "RESULTS", results(tmp_path))

    def quick(name: str, jobs: Sequence[tuple[int, int]], tick: Callable[[], object]) -> Iterator[dict[str, Any]]:
        times = {"cpu_ms": {"min": 1.0, "median": 1.0}, "wall_ms": {"min": 1.0, "median": 1.0}, "peak_mb": 0.5}
        for n, d in jobs:
            tick()
            yield {"loss": name, "n": n, "d": d, "of": "velocity", "skipped": "", "from nothing": times}

    monkeypatch.setattr(every, "here", quick)
    app = opened("pages/benchmarks.py")
    app.selectbox(key="benchmarks.loss").set_value("mmd").run()
    app.button(key="benchmarks.measure").click().run()
    app.session_state[board.JOB].wait(20)
    app.run()
    assert not app.exception
    table = next(frame.value for frame in app.dataframe if "on record, from nothing, ms" in frame.value)
    assert len(table) == 6 and table["on record, from nothing, ms"][0] == 1.0


def test_a_measurement_that_is_called_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(name: str, jobs: Sequence[tuple[int, int]], tick: Callable[[], object]) -> Iterator[dict[str, Any]]:
        while True:
            tick()
            time.sleep(0.01)
        yield {}

    monkeypatch.setattr(every, "here", endless)
    app = opened("pages/benchmarks.py")
    app.button(key="benchmarks.measure").click().run()
    app.button(key="benchmarks.cancel").click().run()
    app.session_state[board.JOB].wait(20)
    app.run()
    assert not app.exception and "Cancelled." in words(app)


def test_figures_are_logarithmic_and_name_their_losses_and_peers() -> None:
    figure = growth([Growth("A < B", 3, (500, 2_000), (1.0, 16.0))], "CPU ms", "in words", dark=True, live=True)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log" and figure.layout.meta["alt"] == "in words"
    assert figure.data[0].name == "A &lt; B" and list(figure.data[0].y) == [1.0, 16.0]
    figure = ratios([Ratio("one", "POT", 8.0), Ratio("two", "POT", 0.5), Ratio("one", "by hand", 2.0)], "in words")
    assert [trace.name for trace in figure.data] == ["POT", "by hand"]
