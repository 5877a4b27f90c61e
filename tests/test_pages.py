"""Pages without a browser: every menu entry draws, bad choices are sentences, links and pages agree."""

from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from dmviz.catalog import menu
from dmviz.run import Setup, from_link, query
from dmviz.ui.gallery import experiments

ROOT = Path(__file__).parent.parent


def page(path: str = "", link: str = "") -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for key, value in parse_qsl(link):
        app.query_params[key] = value
    app.run()
    if path:
        app.switch_page(path).run()
    return app


def flow(link: str = "") -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.run()
    app.switch_page("pages/flow.py")
    for key, value in parse_qsl(link, keep_blank_values=True):
        app.query_params[key] = value
    return app.run()


def open_drawers(app: AppTest) -> None:
    """Open every expander: what lies behind a closed one is not made."""
    for part in ("source", "target", "loss", "flow", "projection"):
        for own in (False, True):
            app.session_state[f"drawer.{part}.{own}"] = True
    for title in ("Particles and seeds", "Run"):
        app.session_state[f"drawer.{title}"] = True


def shown(app: AppTest) -> str:
    """The link that the page says is on screen."""
    return next(c.value for c in app.caption if c.value.startswith("Link of")).split("`?")[1].rstrip("`")


def test_home_shows_every_experiment_as_a_link() -> None:
    app = page()
    assert not app.exception
    words = " ".join(c.value for c in app.caption)
    for one in experiments():
        assert one.look in words


def test_flow_opens_on_the_default_setup_with_its_player() -> None:
    app = flow()
    assert not app.exception
    assert not app.error
    assert shown(app) == query(Setup())
    assert len(app.get("bidi_component")) == 1


def test_flow_takes_its_setup_from_the_link() -> None:
    link = "target=gaussian_mixture&loss=mmd&loss.bandwidth=0.33&loss.median=0&seed=5&n=77"
    app = flow(link)
    assert not app.exception
    assert from_link(shown(app)) == from_link(link)
    assert app.selectbox(key="w.loss").value == "mmd"


def test_a_wrong_link_is_explained_and_the_page_still_works() -> None:
    app = flow("loss=mdd&n=many")
    assert not app.exception
    words = " ".join(w.value for w in app.warning)
    assert "no loss named 'mdd'" in words
    assert "whole number" in words
    assert len(app.get("bidi_component")) == 1


@pytest.mark.parametrize("part", ["source", "target", "loss", "flow"])
def test_every_entry_of_every_menu_draws_its_settings(part: str) -> None:
    app = flow()
    open_drawers(app)
    folders = {
        "source": ("shapes", "datasets"),
        "target": ("shapes", "datasets"),
        "loss": ("losses",),
        "flow": ("flows",),
    }
    for folder in folders[part]:
        for name in menu(folder):
            app.selectbox(key=f"w.{part}").set_value(name).run()
            assert not app.exception, name
            for error in app.error:
                assert "\n" not in error.value
                assert "Traceback" not in error.value


def test_a_closed_drawer_keeps_its_values() -> None:
    link = "flow.dt=0.33&n=77&steps_per_frame=5"
    app = flow(link)
    assert not [s for s in app.select_slider if s.key in ("w.setup.n", "w.flow.euler.dt")]
    assert from_link(shown(app)) == from_link(link)
    open_drawers(app)
    app.run()
    assert app.select_slider(key="w.setup.n").value == 77
    assert app.select_slider(key="w.flow.euler.dt").value == 0.33
    assert from_link(shown(app)) == from_link(link)


def test_the_source_follows_the_dimension_of_the_target() -> None:
    app = flow()
    app.selectbox(key="w.target").set_value("digits").run()
    assert not app.exception
    assert not app.error
    setup = from_link(shown(app))
    assert setup.source.dim == 64 or setup.source.dim == setup.target.components  # type: ignore[union-attr]


def test_parts_that_do_not_fit_are_one_sentence_and_the_last_good_setup_stays() -> None:
    app = flow()
    before = shown(app)
    app.selectbox(key="w.flow").set_value("noise_injection").run()
    assert not app.exception
    assert len(app.error) == 1
    assert "asks for the pull at places" in app.error[0].value
    assert shown(app) == before


def test_what_was_chosen_survives_a_visit_to_another_page() -> None:
    app = flow("loss=energy_distance&seed=9")
    app.switch_page("pages/home.py").run()
    app.switch_page("pages/flow.py").run()
    assert not app.exception
    assert from_link(shown(app)) == from_link("loss=energy_distance&seed=9")


def test_a_changed_widget_changes_the_link() -> None:
    app = flow()
    app.selectbox(key="w.loss").set_value("energy_distance").run()
    assert "loss=energy_distance" in shown(app)


@pytest.mark.parametrize("panel", ["Export", "About", "Open a session"])
def test_panels_open(panel: str) -> None:
    app = flow()
    app.session_state["dmviz.stage"].wait(3)
    app.segmented_control(key="w.more").set_value(panel).run()
    assert not app.exception


def test_an_own_file_becomes_a_target(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("a,b,kind\n" + "\n".join(f"{i},{i % 7},{'xy'[i % 2]}" for i in range(60)), encoding="utf-8")
    app = flow(f"target=file&target.path={table}&target.label=kind")
    assert not app.exception
    assert not app.error
    stage = app.session_state["dmviz.stage"]
    assert stage.wait(1)
    assert stage.scene.target_x.shape == (60, 2)
    assert stage.scene.label_names == ("x", "y")


def test_a_file_that_is_not_there_is_a_sentence() -> None:
    app = flow("target=file&target.path=nowhere.csv")
    assert not app.exception
    assert len(app.error) == 1
    assert "nowhere.csv" in app.error[0].value
