"""Setups, links and the loop."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_entries import values

from dmviz.catalog import entry_class, menu
from dmviz.datasets.digits import Digits
from dmviz.field import drives
from dmviz.flows.euler import Euler
from dmviz.flows.langevin import Langevin
from dmviz.flows.noise_injection import NoiseInjection
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.ksd import Ksd
from dmviz.losses.mmd import Mmd
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.params import params_of
from dmviz.run import PARTS, Setup, from_link, query, read_link, record, setup_params, simulate, start, to_link
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture
from dmviz.shapes.two_moons import TwoMoons

QUICK = {"n": 60, "m": 50}


def entries(part: str) -> list[Any]:
    return [entry_class(folder, name) for folder in PARTS[part] for name in menu(folder)]


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Any setup that can be built: every part with any of its values."""
    chosen: dict[str, Any] = {p.name: draw(values(p)) for p in setup_params() if p.name != "referees"}
    for part in PARTS:
        cls = draw(st.sampled_from(entries(part)))
        fields = {p.name: draw(values(p)) for p in params_of(cls) if p.kind != "text"}
        try:
            chosen[part] = cls(**fields)
        except ValueError:
            chosen[part] = cls()  # values that an entry refuses together
    try:
        return Setup(**chosen)
    except ValueError:
        return Setup(**{**chosen, "flow": Euler(), "loss": chosen["loss"] if drives(chosen["loss"]) else Mmd()})


@given(setup=setups())
@settings(max_examples=150, deadline=None)
def test_link_and_setup_are_two_forms_of_one_thing(setup: Setup) -> None:
    assert from_link(to_link(setup)) == setup
    assert from_link(query(setup)) == setup


def test_a_link_leaves_out_defaults_and_names_its_version() -> None:
    assert to_link(Setup()) == {"v": "1"}
    link = to_link(Setup(loss=Mmd(bandwidth=0.2), seed=3))
    assert link == {"v": "1", "loss": "mmd", "loss.bandwidth": "0.2", "seed": "3"}


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("loss=mdd", "no loss named 'mdd'; there are .*energy_distance.*mmd"),
        ("loss=mmd&loss.bandwidth=-3", r"Mmd: bandwidth must be in \["),
        ("loss=mmd&loss.bandwidth=wide", "Mmd: bandwidth must be a number"),
        ("loss=mmd&loss.width=3", "Mmd has no 'width'; it has .*bandwidth"),
        ("n=many", "Setup: n must be a whole number"),
        ("colour=red", "'colour' means nothing in a link"),
        ("v=9", "another version"),
        ("flow=noise_injection", "asks for the pull at places where no particle is"),
        ("loss=mauve", "only judges: it has no gradient"),
        ("referees=jury", "no loss.* named 'jury'"),
    ],
)
def test_what_a_link_gets_wrong_is_explained_and_falls_back(link: str, words: str) -> None:
    setup, notes = read_link(link)
    assert isinstance(setup, Setup)
    assert len(notes) == 1
    with pytest.raises(ValueError, match=words):
        from_link(link)


def test_a_loss_that_only_judges_may_be_a_referee() -> None:
    setup = Setup(referees="precision_recall,energy_distance", **QUICK)
    first = next(simulate(setup))
    assert set(first.metrics) == {"loss", "precision_recall", "energy_distance"}


def test_a_loss_for_few_dimensions_says_so() -> None:
    line, plane = Gaussian(dim=1), Gaussian(dim=2)
    loss = entry_class("losses", "wasserstein_1d")()
    assert next(simulate(Setup(source=line, target=line, loss=loss, referees="", **QUICK))).metrics["loss"] >= 0
    with pytest.raises(ValueError, match="is for 1 dimension, and these clouds have 2"):
        start(Setup(source=plane, target=plane, loss=loss, referees="", **QUICK))


@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_link_breaks_the_reader(text: str) -> None:
    setup, _ = read_link(text)
    assert isinstance(setup, Setup)


def test_same_link_same_bits_and_frames_shown_never_change() -> None:
    setup = Setup(**QUICK)
    frames = []
    copies = []
    for frame in simulate(setup):
        frames.append(frame)
        copies.append((frame.x.copy(), frame.arrows.copy()))
        if frame.step == 15:
            break
    for frame, (x, arrows) in zip(frames, copies, strict=True):
        assert np.array_equal(frame.x, x)
        assert np.array_equal(frame.arrows, arrows)
        assert not frame.x.flags.writeable
    again = record(from_link(query(setup)), 15)
    assert all(np.array_equal(a.x, b.x) and a.metrics == b.metrics for a, b in zip(frames, again.frames, strict=True))
    other = record(dataclasses.replace(setup, seed=1), 15)
    assert not np.array_equal(other.frames[0].x, frames[0].x)
    assert np.array_equal(other.scene.target, again.scene.target)


def test_arrows_are_the_velocity_of_the_loss() -> None:
    setup = Setup(loss=SlicedWasserstein(draw="fixed"), flow=Euler(dt=0.05), **QUICK)
    begun = start(setup)
    for frame in record(setup, 5).frames:
        v = begun.field(torch.tensor(frame.x), torch.Generator()).v.numpy()
        assert np.allclose(frame.arrows, v, atol=1e-5)
        assert np.allclose(frame.speed, np.linalg.norm(v, axis=1), atol=1e-5)


def test_frames_are_every_kth_step() -> None:
    fine = record(Setup(**QUICK), 20).frames
    coarse = record(Setup(**QUICK, steps_per_frame=5), 20).frames
    assert [f.step for f in coarse] == [0, 5, 10, 15, 20]
    for frame in coarse:
        assert np.array_equal(frame.x, fine[frame.step].x)


def test_a_run_goes_on_from_any_kept_frame() -> None:
    setup = Setup(loss=SlicedWasserstein(draw="fresh"), flow=Euler(steps="fixed"), referees="", **QUICK)
    whole = record(setup, 12).frames
    middle = whole[7]
    rest = simulate(setup, x=middle.x, step=7, time=middle.time)
    for frame in whole[7:]:
        mine = next(rest)
        assert mine.step == frame.step
        assert mine.time == pytest.approx(frame.time)
        assert np.array_equal(mine.x, frame.x)


def test_flow_of_64_dimensions_is_watched_in_two_and_the_picture_stays_put() -> None:
    source = Gaussian(dim=64)
    setup = Setup(source=source, target=Digits(components=64), loss=SlicedWasserstein(), n=80, m=90)
    run = record(setup, 10)
    assert run.frames[0].x.shape == (80, 64)
    assert run.scene.dims == 2
    assert run.frames[0].clouds["particles"].shape == (80, 2)
    look = start(setup).look
    for frame in run.frames:
        assert np.allclose(look(torch.tensor(frame.x)).numpy(), frame.clouds["particles"], atol=1e-4)


def test_one_dimension_lies_on_a_line_and_three_stay_three() -> None:
    line = record(Setup(source=Gaussian(dim=1), target=GaussianMixture(dim=1), **QUICK), 3)
    assert line.frames[-1].x.shape[1] == 1
    assert (line.frames[-1].clouds["particles"][:, 1] == 0).all()
    space = record(Setup(source=Gaussian(dim=3), target=GaussianMixture(dim=3), **QUICK), 3)
    assert space.scene.dims == 3


def test_dimensions_that_differ_are_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"source has 3 dimensions and the target 2; .*source\.dim=2"):
        start(Setup(source=Gaussian(dim=3), target=TwoMoons()))


@pytest.mark.parametrize(("loss", "flow"), [(EnergyDistance(), Langevin()), (Ksd(), Euler())])
def test_a_target_without_a_score_is_one_sentence(loss: Any, flow: Any) -> None:
    with pytest.raises(ValueError, match="needs the score of its target, and Digits has only samples"):
        start(Setup(source=Gaussian(dim=8), target=Digits(components=8), loss=loss, flow=flow))


def test_noise_injection_asks_for_a_loss_with_a_pull_everywhere() -> None:
    with pytest.raises(ValueError, match=r"Pick one of .*energy_distance.*mmd"):
        Setup(flow=NoiseInjection())


def test_a_flow_that_breaks_stops_alone_names_the_step_and_keeps_its_frames() -> None:
    setup = Setup(loss=EnergyDistance(), flow=Langevin(dt=10.0), target=Gaussian(scale=0.1), **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = record(setup, 200)
    assert run.ended.startswith("Stopped at step ")
    assert "dt = 10, too large" in run.ended
    assert len(run.frames) > 3
    for frame in run.frames:
        assert np.isfinite(frame.x).all()
        assert np.isfinite(frame.metrics["loss"]) or frame.ended


def test_a_growing_loss_is_never_silent() -> None:
    setup = Setup(flow=Euler(dt=30.0, steps="fixed"), **QUICK)
    frames = record(setup, 6).frames
    assert any("times its start" in frame.note or frame.ended for frame in frames)


def test_referees_are_not_the_loss_and_keep_their_stride() -> None:
    run = record(Setup(loss=EnergyDistance(), **QUICK, referee_every=4), 9)
    assert set(run.scene.referees) == {"wasserstein", "sliced_wasserstein"}
    steps, judged = run.metrics["wasserstein"]
    assert steps.tolist() == [0, 4, 8]
    assert np.isfinite(judged).all()
    assert run.metrics["loss"][0].tolist() == list(range(10))


def test_large_clouds_leave_out_exact_transport_and_say_so() -> None:
    scene = start(Setup(n=900, m=900)).scene
    assert "wasserstein" not in scene.referees
    assert any("computed up to 600 points" in note for note in scene.notes)


def test_device_is_named_and_a_missing_one_is_a_sentence() -> None:
    assert record(Setup(**QUICK), 1).scene.device
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device 'cuda' was asked for, and this machine has none"):
            start(Setup(device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_state_stays_on_the_gpu() -> None:
    begun = start(Setup(device="cuda"))
    assert begun.x.is_cuda
    assert begun.field.target.x.is_cuda


def test_float64_is_followed_through() -> None:
    begun = start(Setup(precision="float64", **QUICK))
    assert begun.x.dtype == torch.float64
    assert begun.field(begun.x, torch.Generator()).v.dtype == torch.float64
