"""Every experiment of the Home gallery is a link that runs, and shows what its sentence says."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dmviz.run import Run, from_link, record
from dmviz.ui.gallery import Experiment, experiments

EXPERIMENTS = {one.name: one for one in experiments()}


@cache
def run(name: str, **changes: Any) -> Run:
    one = EXPERIMENTS[name]
    setup = replace(from_link(one.link), referees=changes.pop("referees", ""), **changes)
    return record(setup, one.steps, every=one.steps)


def far_share(found: Run) -> float:
    """Share of the particles that ended in the mode that was farthest from the start."""
    x, y, label = found.frames[-1].x, found.scene.target_x, found.scene.target_label
    modes = [y[label == k].mean(0) for k in np.unique(label)]
    far = max(modes, key=lambda mode: float(np.linalg.norm(mode - found.frames[0].x.mean(0))))
    return float((np.linalg.norm(x - far, axis=1) < 1.2).mean())


def test_there_are_at_least_twelve_and_each_is_told_apart() -> None:
    assert len(EXPERIMENTS) >= 12
    assert len({one.title for one in EXPERIMENTS.values()}) == len(EXPERIMENTS)
    assert all(one.look.endswith(".") for one in EXPERIMENTS.values())


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_each_has_a_thumbnail(one: Experiment) -> None:
    assert one.thumbnail.stat().st_size > 1000


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_runs_to_its_end(name: str) -> None:
    found = run(name)
    assert not found.ended
    assert np.isfinite(found.frames[-1].x).all()


DESCENDS = [n for n in EXPERIMENTS if n not in ("noise", "svgd", "langevin", "momentum", "narrow-mmd")]


@pytest.mark.parametrize("name", DESCENDS)
def test_the_loss_falls_where_the_flow_follows_it(name: str) -> None:
    found = run(name)
    assert found.frames[-1].metrics["loss"] < 0.5 * found.frames[0].metrics["loss"]


def test_a_narrow_kernel_misses_what_the_energy_distance_and_noise_find() -> None:
    missed, found, freed = far_share(run("narrow-mmd")), far_share(run("energy-reach")), far_share(run("noise"))
    assert missed < 0.12  # half of the target lies there
    assert found > 0.4
    assert freed > 1.5 * missed + 0.05


def test_bures_is_blind_to_the_moons() -> None:
    found = run("bures", referees="wasserstein")
    assert found.frames[-1].metrics["loss"] < 1e-3
    assert found.frames[-1].metrics["wasserstein"] > 0.05


def test_exact_transport_walks_straight_lines() -> None:
    one = EXPERIMENTS["straight-lines"]
    frames = record(replace(from_link(one.link), referees=""), one.steps).frames
    begun, middle, end = (frames[k].x for k in (0, 20, one.steps))
    way, part = end - begun, middle - begun
    cross = np.abs(way[:, 0] * part[:, 1] - way[:, 1] * part[:, 0]) / np.linalg.norm(way, axis=1)
    assert np.median(cross) < 1e-3


def test_momentum_overshoots() -> None:
    one = EXPERIMENTS["momentum"]
    losses = np.array([f.metrics["loss"] for f in record(replace(from_link(one.link), referees=""), one.steps).frames])
    assert (np.diff(losses) > 0).sum() > 5


def test_langevin_and_svgd_cover_all_modes() -> None:
    for name in ("langevin", "svgd"):
        found = run(name)
        x, y = found.frames[-1].x, found.scene.target_x
        near = np.linalg.norm(y[:, None] - x[None], axis=2).min(1)
        assert (near < 0.7).mean() > 0.9
