"""What leaves dmviz is what was shown, to the last digit."""

import ast
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from dmviz import export as ex
from dmviz.flows.heavy_ball import HeavyBall
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.mmd import Mmd
from dmviz.projections.axes import Axes
from dmviz.run import Run, Setup, query, record
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture
from dmviz.store import load

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def one_kind_of_kernels() -> Iterator[None]:
    """Bits are compared: a run must not be begun before the compiled kernels are ready and repeated after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMVIZ_COMPILE", "0")
        yield


@pytest.fixture(scope="module")
def run() -> Run:
    source = GaussianMixture(components=3, radius=1.0, weights="1,2,5")
    setup = Setup(source=source, loss=EnergyDistance(), n=20, m=30, referees="sliced_wasserstein", referee_every=2)
    return record(setup, 5)


@pytest.fixture(scope="module")
def wide() -> Run:
    setup = Setup(
        source=Gaussian(dim=5), target=GaussianMixture(dim=5, weights="1,2,5"), flow=HeavyBall(dt=0.05),
        loss=Mmd(kernel="imq", bandwidth=1.25), projection=Axes(axes="0,3"), n=20, m=30, seed=7,
        referees="energy_distance", hold="box", radius=2.5, steps_per_frame=3,
    )  # fmt: skip
    return record(setup, 30)


def column(table: pyarrow.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.float32)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["run", "wide"])
def test_tables_hold_every_coordinate(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    read = pyarrow.csv.read_csv if kind == "csv" else pyarrow.parquet.read_table
    whole = read(io.BytesIO(getattr(ex, f"trajectory_{kind}")(run)))
    part = read(io.BytesIO(getattr(ex, f"frame_{kind}")(run, 2)))
    dim = run.frames[0].x.shape[1]
    names = ["x", "y"] if dim == 2 else [f"x{i}" for i in range(dim)]
    x = np.stack([column(whole, n) for n in names], 1).reshape(len(run.frames), 20, dim)
    assert np.array_equal(x, np.stack([frame.x for frame in run.frames]))  # float32, to the bit
    assert np.array_equal(np.stack([column(part, n) for n in names], 1), run.frames[2].x)
    assert np.array_equal(column(part, "speed"), run.frames[2].speed)
    assert set(whole["step"].to_pylist()) == {frame.step for frame in run.frames}
    assert part["particle"].to_pylist() == list(range(20))
    if dim > 3:
        assert np.array_equal(column(part, "view1"), run.frames[2].clouds["particles"][:, 1])
    else:
        assert part["label"].to_pylist() == [run.scene.label_names[c] for c in run.scene.label.tolist()]


def test_npz_holds_the_same_without_pickle(run: Run, wide: Run) -> None:
    for chosen in (run, wide):
        with np.load(io.BytesIO(ex.trajectory_npz(chosen)), allow_pickle=False) as parts:
            assert np.array_equal(parts["x"], np.stack([frame.x for frame in chosen.frames]))
            assert np.array_equal(parts["target"], chosen.scene.target_x) and str(parts["link"]) == query(chosen.setup)
        with np.load(io.BytesIO(ex.frame_npz(chosen, 1)), allow_pickle=False) as parts:
            assert np.array_equal(parts["view"], chosen.frames[1].clouds["particles"])


def test_curves_keep_all_digits_and_leave_unasked_cells_empty(run: Run) -> None:
    table = pyarrow.csv.read_csv(io.BytesIO(ex.curve_csv(run)))
    assert table["loss"].to_pylist() == [frame.metrics["loss"] for frame in run.frames]
    assert table["sliced_wasserstein"].to_pylist() == [frame.metrics.get("sliced_wasserstein") for frame in run.frames]
    assert table["sliced_wasserstein"].null_count == 3  # steps 1, 3 and 5


def test_more_numbers_than_a_file_takes_are_refused_before_they_are_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("csv", "parquet", "npz"):
        monkeypatch.setitem(ex.MOST_NUMBERS, kind, 500)
        with pytest.raises(
            ValueError, match=f"6 frames of 20 particles are 720 numbers, and {kind} takes 500; keep fewer"
        ):
            ex.export(f"trajectory_{kind}", run)
        assert ex.export(f"frame_{kind}", run)


def executed(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "again.py"
    path.write_text(text, encoding="utf-8")
    look = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=folder, env=look, timeout=120
    )


def test_the_script_makes_the_same_numbers_again(wide: Run, tmp_path: Path) -> None:
    text = ex.script(wide)
    last = wide.frames[-1]
    for chosen in ("Mmd(kernel='imq', bandwidth=1.25)", "HeavyBall(dt=0.05)", "weights='1,2,5'", "steps=30", "seed=7"):
        assert chosen in text
    done = executed(text, tmp_path)
    assert done.returncode == 0, done.stderr
    for name, value in last.metrics.items():
        assert f"{name}: {value!r} here, {value!r} on the page" in done.stdout
    assert set(last.metrics) == {"loss", "energy_distance"}
    assert f"first particle: {last.x[0].tolist()} here" in done.stdout
    assert "The numbers are those of the page, to the last digit." in done.stdout


def test_the_script_notices_numbers_that_differ(run: Run, tmp_path: Path) -> None:
    text = ex.script(run, 4)
    value = repr(run.frames[4].metrics["loss"])
    assert text.count(value) == 1
    done = executed(text.replace(value, repr(2 * run.frames[4].metrics["loss"])), tmp_path)
    assert done.returncode == 1 and "The numbers differ" in done.stderr


def test_the_setup_of_a_script_is_the_setup(run: Run, wide: Run) -> None:
    for chosen in (run, wide):
        names = {type(value).__name__: type(value) for value in vars(chosen.setup).values()}
        assert eval(ex.setup_code(chosen.setup), {"Setup": Setup, **names}) == chosen.setup


def test_a_script_of_a_broken_run_is_still_python(run: Run) -> None:
    end = replace(run.frames[-1], metrics={"loss": float("nan"), "sliced_wasserstein": float("inf")})
    text = ex.script(Run(run.setup, run.scene, (*run.frames, end), run.machine))
    ast.parse(text)
    assert 'float("nan")' in text


@pytest.mark.parametrize("name", ex.EXPORTS)
def test_every_export_has_a_name_a_type_and_bytes(name: str, run: Run) -> None:
    item = ex.EXPORTS[name]
    content = ex.export(name, run, 2, dark=True)
    heads = {"npz": b"PK", "parquet": b"PAR1", "png": b"\x89PNG", "gif": b"GIF89a", "webp": b"RIFF",
             "html": b"<!DOCTYPE", "svg": b"<?xml", "dmviz": b"PK", "csv": b'"step"', "py": b'"""'}  # fmt: skip
    file = item.name(run, 2)
    assert content.startswith(heads[file.rsplit(".", 1)[1]]) and "/" in item.mime
    assert ("step2" in file) == item.one_frame
    if name == "session":
        assert load(content).link == run.link
    with pytest.raises(ValueError, match="no export named"):
        ex.export("nothing", run)


def test_file_names_differ_between_exports(run: Run) -> None:
    assert len({item.name(run) for item in ex.EXPORTS.values()}) == len(ex.EXPORTS)


def test_html_asks_no_server_for_anything(run: Run) -> None:
    text = ex.html(run)
    page = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)
    assert len(page) < len(text) / 10  # plotly.js is within
    assert "src=" not in page and "@import" not in page and "cdn" not in page.lower()
    assert 'aria-label="Energy distance fell' in page


@pytest.mark.browser
def test_html_plays_in_a_browser_without_a_network(run: Run, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "run.html"
    path.write_text(ex.html(run), encoding="utf-8")
    chromium = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(p).exists()), None)
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=chromium, args=quiet)
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start here: {str(error).splitlines()[0]}")
        page = browser.new_page()
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda r: asked.append(r.url) if r.url.startswith(("http", "ws")) else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector(".scatterlayer .points path")
        places = "() => [...document.querySelectorAll('.point')].map(p => p.getAttribute('transform'))"
        at = "() => document.querySelector('.slider-label').textContent"
        assert page.evaluate(at) == "step 0"
        first = page.evaluate(places)
        page.get_by_text("▶ Play").click()
        page.wait_for_function("() => document.querySelector('.slider-label').textContent === 'step 5'")
        assert page.evaluate(places) != first
        assert asked == [] and wrong == []
        browser.close()
