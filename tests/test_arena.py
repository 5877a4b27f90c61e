"""Arenas: links, sweeps, equal starts, a lane that fails alone, and the table."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_entries import values
from test_plot import EYES, contrast, lab

from dmviz import arena as arenas
from dmviz.arena import (
    FIRST,
    MOST_LANES,
    Arena,
    Lane,
    begin,
    first_threshold,
    from_link,
    lane_titles,
    query,
    race,
    reached,
    read_link,
    setups,
    sweep,
    sweep_values,
    sweepable,
    table,
    to_link,
)
from dmviz.catalog import entry_class, menu
from dmviz.flows.adam import Adam
from dmviz.flows.euler import Euler
from dmviz.flows.langevin import Langevin
from dmviz.flows.svgd import Svgd
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.ksd import Ksd
from dmviz.losses.mmd import Mmd
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.params import params_of
from dmviz.plot import theme
from dmviz.run import Setup, record, setup_params
from dmviz.shapes.checkerboard import Checkerboard
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture
from dmviz.shapes.swiss_roll import SwissRoll

QUICK = Setup(n=60, m=50, referees="sliced_wasserstein,energy_distance", referee_every=5)
PAIR = (Lane(EnergyDistance()), Lane(Mmd(bandwidth=0.2)))


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    found = []
    for folder in ("losses", "flows"):
        cls = entry_class(folder, draw(st.sampled_from(menu(folder))))
        try:
            found.append(cls(**{p.name: draw(values(p)) for p in params_of(cls) if p.kind != "text"}))
        except ValueError:
            found.append(cls())
    return Lane(*found)


@st.composite
def any_arena(draw: st.DrawFn) -> Arena:
    """Any arena that can be built."""
    chosen: dict[str, Any] = {p.name: draw(values(p)) for p in setup_params() if p.name != "referees"}
    shared = Setup(target=draw(st.sampled_from([Gaussian(), SwissRoll()])), **chosen)
    found = []
    for lane in draw(st.lists(lanes(), min_size=1, max_size=MOST_LANES)):
        try:
            found.append(Arena(shared, (lane,)).lanes[0])
        except ValueError:
            found.append(Lane(flow=lane.flow) if lane.flow.needs == "score" else Lane())
    return Arena(shared, tuple(found))


@given(arena=any_arena())
@settings(max_examples=100, deadline=None)
def test_link_and_arena_are_two_forms_of_one_thing(arena: Arena) -> None:
    assert from_link(to_link(arena)) == arena
    assert from_link(query(arena)) == arena
    assert Arena(arena.shared, arena.lanes) == arena


def test_a_link_leaves_out_defaults_and_numbers_its_lanes() -> None:
    assert to_link(Arena()) == {"v": "1"}
    arena = Arena(Setup(seed=3), (Lane(Mmd(bandwidth=0.2)), Lane(flow=Adam())))
    assert to_link(arena) == {
        "v": "1", "seed": "3", "lane1.loss": "mmd", "lane1.loss.bandwidth": "0.2", "lane2.flow": "adam"
    }  # fmt: skip
    assert to_link(Arena(lanes=(Lane(), Lane()))) == {"v": "1", "lanes": "2"}
    assert to_link(Arena(lanes=(Lane(), Lane(Mmd())))) == {"v": "1", "lane2.loss": "mmd"}


def test_loss_and_flow_of_the_shared_setup_do_not_count() -> None:
    assert Arena(Setup(loss=Mmd(), flow=Adam())) == Arena()


def test_the_link_of_one_flow_is_an_arena_of_one_lane() -> None:
    arena = from_link("loss=mmd&loss.bandwidth=0.2&flow.dt=0.5&seed=4&target=swiss_roll")
    assert arena == Arena(Setup(target=SwissRoll(), seed=4), (Lane(Mmd(bandwidth=0.2), Euler(dt=0.5)),))
    assert len(from_link("seed=4").lanes) == len(FIRST)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("lane1.loss=mdd", "Lane 1: no loss named 'mdd'; there are .*energy_distance"),
        ("lane2.loss=mmd&lane2.loss.bandwidth=-3", r"Lane 2: Mmd: bandwidth must be in \["),
        ("lane1.loss=mmd&lane1.loss.width=3", "Lane 1: Mmd has no 'width'"),
        ("lane1.colour=red", "Lane 1: 'colour' means nothing in a link"),
        ("lane7.loss=mmd", "lanes 1 to 4; lane 7 is left out"),
        ("lanes=9", "lanes must be a whole number from 1 to 4, got '9'"),
        ("lane1.flow=noise_injection", "Lane 1: .*asks for the pull at places where no particle is"),
        ("lane1.loss=mmd&n=many", "Setup: n must be a whole number"),
        ("lane1.loss=mmd&loss=mmd", "'loss' means nothing in a link"),
        ("v=9", "another version"),
        ("referees=jury", "no loss.* named 'jury'"),
    ],
)
def test_what_a_link_gets_wrong_is_explained_and_falls_back(link: str, words: str) -> None:
    arena, notes = read_link(link)
    assert 1 <= len(arena.lanes) <= MOST_LANES
    assert len(notes) == 1
    with pytest.raises(ValueError, match=words):
        from_link(link)


@given(text=st.text(max_size=200), number=st.integers(), key=st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_link_breaks_the_reader(text: str, number: int, key: str) -> None:
    for link in (text, f"lane{number}.{text}", f"lanes={number}", {f"lane{number}.{key}": text}):
        arena, _ = read_link(link)
        assert 1 <= len(arena.lanes) <= MOST_LANES


@pytest.mark.parametrize("count", [0, 5])
def test_an_arena_has_one_to_four_lanes(count: int) -> None:
    with pytest.raises(ValueError, match=f"there must be 1 to 4 lanes, got {count}"):
        Arena(lanes=(Lane(),) * count)


def test_a_lane_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="^Lane 2: .*asks for the pull"):
        Arena(lanes=(Lane(), Lane(flow=entry_class("flows", "noise_injection")())))


@pytest.mark.parametrize("target", [GaussianMixture(), SwissRoll(dims="3")], ids=["plane", "space"])
def test_all_lanes_start_from_the_same_bits_and_the_same_scene(target: Any) -> None:
    source = Gaussian(dim=3) if isinstance(target, SwissRoll) else Gaussian()
    shared = replace(QUICK, source=source, target=target)
    picked = (Lane(SlicedWasserstein()), Lane(EnergyDistance(), Adam()), Lane(Mmd(bandwidth=0.3), Euler(dt=1.0)))
    arena = Arena(shared, picked if isinstance(target, SwissRoll) else (*picked, Lane(flow=Svgd())))
    begun = [begin(arena, i) for i in range(len(arena.lanes))]
    firsts = [next(frames) for _, frames in begun]
    for one, other in itertools.pairwise(firsts):
        assert np.array_equal(one.x, other.x) and one.step == other.step == 0
        assert np.array_equal(one.clouds["particles"], other.clouds["particles"])
        assert one.metrics["sliced_wasserstein"] == other.metrics["sliced_wasserstein"]
    for (one, _), (other, _) in itertools.pairwise(begun):
        assert np.array_equal(one.target, other.target) and np.array_equal(one.target_x, other.target_x)
        assert (one.axes, one.dims, one.referees) == (other.axes, other.dims, other.referees)


def test_many_dimensions_share_one_projection() -> None:
    arena = Arena(replace(QUICK, source=Gaussian(dim=8), target=Gaussian(center=1.0, dim=8)), PAIR)
    (_, one), (_, other) = (begin(arena, i) for i in (0, 1))
    assert np.array_equal(next(one).clouds["particles"], next(other).clouds["particles"])


def test_a_race_gives_the_runs_that_the_setups_give_alone() -> None:
    arena = Arena(QUICK, PAIR)
    for lap, setup in zip(race(arena, 12), setups(arena), strict=True):
        alone = record(setup, 12)
        assert [f.step for f in lap.frames] == list(range(13))
        assert all(np.array_equal(a.x, b.x) for a, b in zip(lap.frames, alone.frames, strict=True))
        assert lap.link == alone.link
        shared = set(alone.scene.referees)
        assert all(lap.frames[-3].metrics[n] == alone.frames[-3].metrics[n] for n in shared)  # step 10


def test_every_lane_is_judged_by_every_referee_also_by_its_own_loss() -> None:
    laps = race(Arena(QUICK, PAIR), 10)
    for lap in laps:
        assert list(lap.metrics) == ["loss", "sliced_wasserstein", "energy_distance"]
        assert lap.metrics["energy_distance"][0].tolist() == [0, 5, 10]
    assert laps[0].metrics["energy_distance"][1][-1] == pytest.approx(laps[0].metrics["loss"][1][-1], rel=1e-4)


@pytest.mark.parametrize(("steps", "every", "kept"), [(10, 4, [0, 4, 8, 10]), (8, 4, [0, 4, 8]), (3, 1, [0, 1, 2, 3])])
def test_a_race_keeps_the_frames_asked_for(steps: int, every: int, kept: list[int]) -> None:
    for lap in race(Arena(QUICK, PAIR), steps, every):
        assert [frame.step for frame in lap.frames] == kept == [f.step for f in record(lap.setup, steps, every).frames]


def test_a_lane_that_leaves_the_range_of_numbers_stops_alone_and_says_when() -> None:
    shared = replace(QUICK, target=Gaussian(scale=0.1))
    fine, broken = race(Arena(shared, (Lane(EnergyDistance()), Lane(flow=Langevin(dt=10.0)))), 60)
    assert fine.frames[-1].step == 60 and not fine.ended
    assert broken.frames[-1].step < 60
    assert broken.ended.startswith("Stopped at step") and "dt = 10" in broken.ended
    assert np.isfinite(broken.frames[-1].x).all()
    assert len({frame.step for frame in broken.frames}) == len(broken.frames)


def test_a_lane_that_cannot_begin_stands_at_the_start_with_the_reason() -> None:
    shared = replace(QUICK, target=Checkerboard())
    fine, stuck = race(Arena(shared, (Lane(EnergyDistance()), Lane(Ksd()))), 5)
    assert fine.frames[-1].step == 5
    assert len(stuck.frames) == 1 and "needs the score of its target" in stuck.ended
    assert np.array_equal(stuck.frames[0].x, fine.frames[0].x)
    assert math.isnan(stuck.frames[0].metrics["loss"]) and not stuck.frames[0].arrows.any()


def test_clouds_that_do_not_fit_are_one_sentence_for_all_lanes() -> None:
    with pytest.raises(ValueError, match="the source has 3 dimensions and the target 2"):
        race(Arena(replace(QUICK, source=Gaussian(dim=3)), PAIR), 5)


def test_an_error_in_mid_run_stops_its_lane_and_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = arenas.begin

    def broken(arena: Arena, lane: int) -> Any:
        scene, frames = plain(arena, lane)

        def some() -> Any:
            yield from itertools.islice(frames, 4)
            raise RuntimeError("the matrix\nis singular")

        return scene, some() if lane == 1 else frames

    monkeypatch.setattr(arenas, "begin", broken)
    fine, stopped = race(Arena(QUICK, PAIR), 8)
    assert fine.frames[-1].step == 8
    assert [f.step for f in stopped.frames] == [0, 1, 2, 3]
    assert stopped.ended == "Stopped after step 3: the matrix is singular"


def test_a_sweep_fills_the_lanes_with_one_parameters_values() -> None:
    arena = Arena(QUICK, (Lane(), Lane(Mmd(median=True), Euler(dt=0.3))))
    swept = sweep(arena, 1, "loss", "bandwidth", [0.1, 0.5, 2.0])
    assert swept.shared == arena.shared
    assert [lane.loss for lane in swept.lanes] == [Mmd(bandwidth=b, median=False) for b in (0.1, 0.5, 2.0)]
    assert {lane.flow for lane in swept.lanes} == {Euler(dt=0.3)}
    assert lane_titles(swept) == tuple(f"bandwidth {b} (Maximum mean discrepancy)" for b in (0.1, 0.5, 2.0))
    assert all("dt 0.3" in lane.words for lane in swept.lanes)
    assert from_link(query(swept)) == swept


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((5, "loss", "bandwidth", [1.0]), "there are lanes 0 to 1, got 5"),
        ((1, "source", "scale", [1.0]), "part must be one of loss, flow"),
        ((1, "loss", "width", [1.0]), "Mmd has no 'width'"),
        ((1, "loss", "bandwidth", [1e9]), "Mmd: bandwidth must be in"),
        ((1, "loss", "bandwidth", [0.1] * 5), "1 to 4 lanes, got 5"),
        ((1, "loss", "bandwidth", []), "1 to 4 lanes, got 0"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_sentence(asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sweep(Arena(QUICK, PAIR), *asked)


@pytest.mark.parametrize(("folder", "name"), [(f, n) for f in ("losses", "flows") for n in menu(f)])
def test_every_parameter_has_values_worth_a_sweep(folder: str, name: str) -> None:
    entry = entry_class(folder, name)()
    for parameter in sweepable(entry):
        found = sweep_values(entry, parameter)
        assert 1 < len(found) <= MOST_LANES or len(found) == 1 == len(set(found))
        assert len(set(found)) == len(found)
        param = next(p for p in params_of(type(entry)) if p.name == parameter)
        assert all(param.checked(value, name) == value for value in found)


def test_the_table_says_costs_threshold_and_where_each_lane_ended() -> None:
    laps = race(Arena(QUICK, (Lane(EnergyDistance(), Euler(dt=0.3)), Lane(Ksd()))), 40)
    found = table(laps, "energy_distance", 0.05)
    assert found["lane"].tolist() == [1, 2]
    assert found["loss"].tolist() == ["Energy distance", "Kernelized Stein discrepancy"] or len(found) == 2
    first = found.iloc[0]
    steps, judged = laps[0].metrics["energy_distance"]
    hit = steps[judged <= 0.05]
    assert first["steps_to_energy_distance_0.05"] == hit[0] == reached(laps[0], "energy_distance", 0.05)
    assert first["steps"] == 40 and first["final_energy_distance"] == judged[-1]
    assert first["final_loss"] == laps[0].frames[-1].metrics["loss"]
    assert first["bytes_per_frame"] == 60 * (2 + 2 + 1) * 4  # x, arrows, speed in float32; x is what the picture shows
    assert first["ms_per_step"] > 0 and (math.isnan(first["peak_mb"]) or 0 <= first["peak_mb"] < 500)


def test_the_table_has_a_row_for_a_lane_that_never_moved() -> None:
    laps = race(Arena(replace(QUICK, target=Checkerboard()), (Lane(EnergyDistance()), Lane(Ksd()))), 5)
    stuck = table(laps, "sliced_wasserstein").iloc[1]
    assert stuck["steps"] == 0 and math.isnan(stuck["ms_per_step"]) and math.isnan(stuck["final_sliced_wasserstein"])
    assert "needs the score" in stuck["ended"]


def test_a_referee_nobody_asked_is_a_sentence_and_the_first_threshold_a_tenth_of_the_start() -> None:
    laps = race(Arena(QUICK, PAIR), 5)
    with pytest.raises(ValueError, match="no referee named 'wasserstein' was computed; there are sliced_wasserstein"):
        table(laps, "wasserstein")
    start = laps[0].metrics["sliced_wasserstein"][1][0]
    assert first_threshold(laps[0], "sliced_wasserstein") == pytest.approx(0.1 * start, rel=0.05)
    assert f"steps_to_sliced_wasserstein_{first_threshold(laps[0], 'sliced_wasserstein'):g}" in table(laps)


def test_titles_say_what_tells_lanes_apart_and_no_more() -> None:
    flows = Arena(QUICK, (Lane(EnergyDistance(), Euler(dt=0.3)), Lane(EnergyDistance(), Adam())))
    assert lane_titles(flows) == (f"{Euler.title}, dt 0.3", Adam.title)
    assert lane_titles(Arena(QUICK, PAIR)) == ("Energy distance", "Maximum mean discrepancy, bandwidth 0.2")
    alone = Arena(QUICK, (Lane(Mmd(bandwidth=0.2), Adam()),))
    assert lane_titles(alone) == ("Maximum mean discrepancy, bandwidth 0.2",)


@pytest.mark.parametrize("dark", [False, True])
def test_lanes_stand_out_and_stay_apart_from_each_other_and_the_target_for_any_eye(dark: bool) -> None:
    look = theme.theme(dark)
    assert len(look.lanes) == MOST_LANES
    assert look.lanes[0] == look.particles
    assert all(contrast(color, look.background) >= 3 for color in look.lanes)
    for eye in EYES:
        for one, other in itertools.combinations(look.lanes, 2):
            assert np.linalg.norm(lab(one, eye) - lab(other, eye)) > 30
        assert all(np.linalg.norm(lab(color, eye) - lab(look.target, eye)) > 14 for color in look.lanes)
