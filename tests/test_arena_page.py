"""Page Arena without a browser: menus, links, sweeps and files, lane by lane."""

from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dmviz import arena_export
from dmviz.arena import Arena, Lane, from_link, query, race, setups, sweep, sweep_values
from dmviz.export import export
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.mmd import Mmd
from dmviz.run import Setup
from dmviz.run import query as link_of
from dmviz.shapes.swiss_roll import SwissRoll
from dmviz.ui import arena as arena_page
from dmviz.ui.arena_player import answer
from dmviz.ui.arena_session import _threads
from dmviz.ui.player import wire

ROOT = Path(__file__).parent.parent
QUICK = "n=40&m=30&referees=sliced_wasserstein"
PAIR = f"{QUICK}&lane1.loss=energy_distance&lane2.loss=mmd&lane2.loss.bandwidth=0.33"


def arena(link: str = QUICK) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=90)
    app.run()
    app.switch_page("pages/arena.py")
    for key, value in parse_qsl(link, keep_blank_values=True):
        app.query_params[key] = value
    return app.run()


def shown(app: AppTest) -> Arena:
    """The arena whose link the page says is on screen."""
    words = next(c.value for c in app.caption if c.value.startswith("Link of"))
    return from_link(words.split("`?")[1].rstrip("`"))


def stages(app: AppTest):
    return app.session_state["dmviz.arena.stages"]


def test_it_opens_with_four_lanes_and_one_player() -> None:
    app = arena("")
    assert not app.exception and not app.error
    assert shown(app) == Arena()
    assert len(app.get("bidi_component")) == 1
    assert [stage.link for stage in stages(app)] == [link_of(setup) for setup in setups(Arena())]


def test_it_takes_its_lanes_from_the_link_and_sends_the_frames_of_each() -> None:
    app = arena(PAIR)
    assert not app.exception and not app.error
    assert shown(app) == from_link(PAIR)
    for stage in stages(app):
        assert stage.wait(3, 60.0)
    settings, chunks = wire.unbundled(arena(PAIR).get("bidi_component")[0].proto.bytes)
    assert settings["lanes"] == ["Energy distance", "Maximum mean discrepancy, bandwidth 0.33"]
    heads = [wire.decode(chunk)[0] for chunk in chunks]
    assert len(heads) == 2 and heads[0]["run"] != heads[1]["run"]
    first = [stage.frame(0).x for stage in stages(app)]
    assert np.array_equal(*first)


def test_a_wrong_link_is_explained_and_the_page_still_works() -> None:
    app = arena(f"{QUICK}&lane1.loss=mdd&lane9.loss=mmd")
    assert not app.exception
    words = " ".join(w.value for w in app.warning)
    assert "Lane 1: no loss named 'mdd'" in words and "lane 9 is left out" in words
    assert len(app.get("bidi_component")) == 1


def test_each_lane_keeps_its_own_settings() -> None:
    app = arena(PAIR)
    app.segmented_control(key="w.arena.lane").set_value(2).run()
    app.session_state["drawer.arena.lane2.loss.False"] = True
    app.run()
    assert app.selectbox(key="w.arena.lane2.loss").value == "mmd"
    app.selectbox(key="w.arena.lane2.flow").set_value("adam").run()
    assert not app.exception and not app.error
    now = shown(app)
    assert now.lanes[0] == Lane(EnergyDistance())
    assert now.lanes[1].loss == Mmd(bandwidth=0.33) and type(now.lanes[1].flow).__name__ == "Adam"


def test_a_changed_lane_starts_alone_and_all_go_back_to_the_start() -> None:
    app = arena(PAIR)
    for stage in stages(app):
        stage.poke(5.0, False)
        assert stage.wait(6, 60.0)
    before = [stage.generation for stage in stages(app)]
    app.selectbox(key="w.arena.lane1.loss").set_value("sliced_wasserstein").run()
    after = stages(app)
    assert [stage.generation - old for stage, old in zip(after, before, strict=True)] == [1, 0]
    assert [stage.pos for stage in after] == [0.0, 0.0]
    assert after[1].available >= 6  # its frames are still there


def test_fewer_lanes_stop_the_others_and_more_bring_what_was_chosen() -> None:
    app = arena(PAIR)
    gone = stages(app)[1]
    app.segmented_control(key="w.arena.lanes").set_value(1).run()
    assert shown(app).lanes == (Lane(EnergyDistance()),)
    assert len(stages(app)) == 1 and gone.link == ""
    app.segmented_control(key="w.arena.lanes").set_value(3).run()
    assert not app.exception and not app.error
    assert shown(app).lanes[:2] == from_link(PAIR).lanes
    assert len(stages(app)) == 3


def test_one_click_fills_the_lanes_with_a_sweep() -> None:
    app = arena(PAIR)
    app.segmented_control(key="w.arena.lane").set_value(2).run()
    app.selectbox(key="arena.sweep").set_value(("loss", "bandwidth")).run()
    app.button(key="arena.fill").click().run()
    assert not app.exception and not app.error
    values = sweep_values(Mmd(bandwidth=0.33), "bandwidth")
    assert shown(app) == sweep(from_link(PAIR), 1, "loss", "bandwidth", values)
    assert len(stages(app)) == 4


def test_lanes_that_do_not_fit_are_one_sentence_and_the_last_good_arena_stays() -> None:
    link = f"{QUICK}&lane2.loss=mmd"
    app = arena(link)
    app.selectbox(key="w.arena.lane1.flow").set_value("noise_injection").run()
    assert not app.exception
    assert [error.value.startswith("Lane 1: ") for error in app.error] == [True]
    assert shown(app) == from_link(link)


def test_source_and_target_are_chosen_once_for_all_lanes() -> None:
    app = arena(PAIR)
    app.selectbox(key="w.arena.target").set_value("swiss_roll").run()
    assert not app.exception and not app.error
    assert shown(app).shared.target == SwissRoll()
    assert all("target=swiss_roll" in stage.link for stage in stages(app))


def test_what_was_chosen_survives_a_visit_to_another_page_and_flow_keeps_its_own() -> None:
    app = arena(PAIR)
    app.query_params.clear()  # as a browser does on its way to another page
    app.switch_page("pages/flow.py").run()
    assert not app.exception
    assert app.selectbox(key="w.loss").value == "sliced_wasserstein"
    app.query_params.clear()
    app.switch_page("pages/arena.py").run()
    assert not app.exception
    assert shown(app) == from_link(PAIR)


@pytest.mark.parametrize("panel", ["Export", "About", "Open a session"])
def test_panels_open(panel: str) -> None:
    app = arena(PAIR)
    for stage in stages(app):
        assert stage.wait(3, 60.0)
    app.segmented_control(key="w.arena.more").set_value(panel).run()
    assert not app.exception


def test_one_lane_alone_has_the_files_of_a_flow() -> None:
    app = arena(f"{QUICK}&lane1.loss=sliced_wasserstein&lane2.loss=mmd")
    for stage in stages(app):
        assert stage.wait(3, 60.0)
    app.segmented_control(key="w.arena.more").set_value("Export").run()
    assert not [b for b in app.get("download_button") if b.proto.id.endswith("export.svg")]
    app.segmented_control(key="w.arena.files").set_value("Lane 1").run()
    assert not app.exception
    assert [b for b in app.get("download_button") if b.proto.id.endswith("-export.svg")]
    lap = arena_page.laps(shown(app), stages(app))[0]
    assert "sliced_wasserstein" in lap.frames[0].metrics  # it judges every lane, also the one that minimises it
    code = export("script", lap, 0).decode()
    assert "'loss':" in code and "'sliced_wasserstein':" not in code


def test_what_is_exported_is_what_was_computed() -> None:
    app = arena(PAIR)
    for stage in stages(app):
        assert stage.wait(5, 60.0)
    now = shown(app)
    found = arena_page.laps(now, stages(app))
    for lap, alone in zip(found, race(now, 4), strict=True):
        assert all(np.array_equal(a.x, b.x) for a, b in zip(lap.frames[:5], alone.frames, strict=True))
        assert lap.ms > 0
    for lap, stage in zip(found, stages(app), strict=True):
        assert wire.decode(stage.chunk(0, 0))[0]["frame_bytes"] == lap.frame_bytes == 40 * (2 + 2 + 1) * 4
    for name in arena_export.EXPORTS:
        assert arena_export.made(name, now, found, 2)


def test_a_request_for_other_lanes_moves_nothing_and_gets_the_present_ones() -> None:
    app = arena(PAIR)
    here = stages(app)
    for stage in here:
        assert stage.wait(3, 60.0)
    request = {"gen": here[0].generation, "k0": 2, "most": 1, "parts": ["x"], "since": 3}
    wanted = {"id": 1, "pos": 2.0, "play": True, "speed": 30.0, "lanes": [request, {**request, "gen": 99}]}
    heads = [wire.decode(chunk)[0] for chunk in answer(here, wanted)]
    assert all("scene" in head and head["k0"] == 0 for head in heads)
    assert [stage.pos for stage in here] == [0.0, 0.0] and not here[0].playing
    assert all("scene" in wire.decode(chunk)[0] for chunk in answer(here, {**wanted, "lanes": [request]}))
    wanted["lanes"] = [request, {**request, "gen": here[1].generation, "k0": 1}]
    heads = [wire.decode(chunk)[0] for chunk in answer(here, wanted)]
    assert [(head["k0"], head["count"]) for head in heads] == [(2, 1), (1, 1)]
    assert [stage.pos for stage in here] == [2.0, 2.0] and here[0].playing
    for stage in here:
        stage.pause()


@pytest.mark.parametrize(("n", "lanes", "cores", "threads"), [(500, 4, 2, 1), (200_000, 4, 16, 4), (200_000, 2, 16, 8)])
def test_workers_share_the_cores(n: int, lanes: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert _threads(Arena(Setup(n=n), (Lane(),) * lanes)) == threads


def test_the_link_is_what_the_page_says() -> None:
    assert f"`?{query(from_link(PAIR))}`" in " ".join(c.value for c in arena(PAIR).caption)
