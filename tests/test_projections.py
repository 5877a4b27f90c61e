"""Projections: pictures that never jump, and that say how much they show."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dmviz.catalog import entry_class, menu
from dmviz.cloud import seeded
from dmviz.projections.axes import Axes
from dmviz.projections.pca import Pca
from dmviz.projections.random import Random

NAMES = menu("projections")


def rows(n: int, dim: int, seed: int = 0) -> Tensor:
    scale = torch.linspace(3, 0.1, dim)
    return torch.randn(n, dim, generator=seeded(seed)) * scale


@pytest.mark.parametrize("name", NAMES)
@given(n=st.integers(1, 30), dim=st.integers(1, 40), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_any_cloud_gets_a_finite_picture_with_titled_axes(name: str, n: int, dim: int, seed: int) -> None:
    x = rows(n, dim, seed)
    kept = x.clone()
    fitted = entry_class("projections", name)().fit(x, seeded(seed))
    z = fitted(x)
    assert z.shape == (n, 2)
    assert z.dtype == x.dtype
    assert z.isfinite().all()
    assert len(fitted.axes) == 2
    assert torch.equal(x, kept)
    again = entry_class("projections", name)().fit(x, seeded(seed))
    assert torch.equal(again(x), z)
    # A difference of points is turned as the points are.
    assert torch.allclose(fitted.turn(x[:1] - x[-1:]), z[:1] - z[-1:], atol=1e-4)


@pytest.mark.parametrize("cls", [Pca, Random])
@pytest.mark.parametrize(("n", "dim"), [(50, 5), (4, 20), (200, 64)])
def test_a_picture_never_lengthens_a_distance(cls: type, n: int, dim: int) -> None:
    x = rows(n, dim).double()
    fitted = cls(dims="3").fit(x, seeded(1))
    assert torch.allclose(fitted.way.T @ fitted.way, torch.eye(3, dtype=torch.float64), atol=1e-9)
    assert (torch.pdist(fitted(x)) <= torch.pdist(x) + 1e-9).all()


@pytest.mark.parametrize(("n", "dim"), [(100, 5), (5, 100), (30, 30)])
def test_pca_keeps_what_the_singular_values_say(n: int, dim: int) -> None:
    x = rows(n, dim).double()
    fitted = Pca(dims="3").fit(x, seeded(0))
    size = torch.linalg.svdvals(x - x.mean(0))[:3]
    assert torch.allclose(fitted(x).norm(dim=0), size, rtol=1e-9)
    total = (x - x.mean(0)).square().sum()
    shares = [float(title.split("(")[1].split(" %")[0]) for title in fitted.axes]
    assert shares == pytest.approx((100 * size**2 / total).tolist(), rel=6e-3)  # titles have three digits


def test_pca_finds_a_plane_in_many_dimensions() -> None:
    basis, _ = torch.linalg.qr(torch.randn(64, 2, generator=seeded(3), dtype=torch.float64))
    flat = torch.randn(200, 2, generator=seeded(4), dtype=torch.float64)
    x = flat @ basis.T + 5
    fitted = Pca().fit(x, seeded(0))
    assert torch.allclose(torch.cdist(fitted(x), fitted(x)), torch.cdist(flat, flat), atol=1e-6)
    assert Pca(dims="3").fit(x, seeded(0)).axes[2] == "PC 3 (0 %)"


@given(st.permutations(range(12)))
@settings(max_examples=20, deadline=None)
def test_pca_does_not_flip_with_the_order_of_points(order: list[int]) -> None:
    x = rows(12, 6).double()
    way = Pca().fit(x, seeded(0)).way
    assert torch.allclose(Pca().fit(x[order], seeded(0)).way, way, atol=1e-9)
    assert (way.gather(0, way.abs().argmax(0, keepdim=True)) > 0).all()


def test_pca_far_from_the_origin_keeps_its_picture() -> None:
    x = rows(100, 5)
    far = x + 1000.0
    here, there = Pca().fit(x, seeded(0)), Pca().fit(far, seeded(0))
    # float32 keeps 6e-5 at 1,000.
    assert torch.allclose(here(x), there(far), atol=1e-3)


@pytest.mark.parametrize("x", [torch.zeros(5, 4), torch.ones(1, 4), torch.full((3, 2), 7.0)])
def test_points_without_spread_are_shown_in_the_middle(x: Tensor) -> None:
    fitted = Pca().fit(x, seeded(0))
    assert fitted(x).abs().max() == 0
    assert fitted.axes == ("PC 1 (0 %)", "PC 2 (0 %)")


@pytest.mark.parametrize("dims", ["2", "3"])
def test_one_dimension_is_padded_with_zeros(dims: str) -> None:
    x = rows(9, 1)
    for projection in (Pca(dims=dims), Random(dims=dims)):
        z = projection.fit(x, seeded(0))(x)
        assert z.shape == (9, int(dims))
        assert z[:, 1:].abs().max() == 0
        assert z[:, 0].std() == pytest.approx(float(x.std()), rel=1e-5)


def test_a_random_plane_favours_no_axis() -> None:
    x = torch.zeros(1, 6)
    ways = torch.stack([Random().fit(x, seeded(seed)).way for seed in range(800)])
    # E q^2 = 1 / D and E q = 0; five standard errors, of at most sqrt(2) / D and 1 / sqrt(D).
    assert (ways.square().mean(0) - 1 / 6).abs().max() < 5 * math.sqrt(2) / 6 / math.sqrt(800)
    assert ways.mean(0).abs().max() < 5 / math.sqrt(6) / math.sqrt(800)


@pytest.mark.parametrize("text", ["", "0", "0,0", "0,1,2,3", "a,b", "-1,0", "0;1", "1.5,2", "²,1"])
def test_axes_that_are_no_axes_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="Axes: axes must be two or three") as caught:
        Axes(axes=text)
    assert "\n" not in str(caught.value)


def test_an_axis_that_the_data_lacks_is_shown_as_zero() -> None:
    x = rows(5, 3)
    assert torch.equal(Axes(axes="1, 7, 0").fit(x, seeded(0))(x), torch.stack([x[:, 1], x[:, 0] * 0, x[:, 0]], 1))
