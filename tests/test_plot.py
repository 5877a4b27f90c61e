"""Figures show the numbers of the run, in colours that all readers can tell apart."""

import io
import itertools
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dmviz.items import MISSING_LABEL
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.plot import (
    alt_text,
    curves,
    gif,
    label_colors,
    palette,
    picture,
    png,
    show,
    svg,
    theme,
    thumbnail,
    trajectories,
    webp,
    words,
)  # fmt: skip
from dmviz.plot.animation import MOST_NUMBERS, shown_frames
from dmviz.plot.cloud import groups
from dmviz.plot.thinning import box
from dmviz.run import Run, Setup, record
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture

EYES = {  # Machado et al. 2009, full severity, on linear RGB
    "normal": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip


@pytest.fixture(scope="module")
def flat() -> Run:
    source = GaussianMixture(components=3, radius=1.0)
    return record(Setup(source=source, loss=EnergyDistance(), n=60, m=80, referees="sliced_wasserstein"), 30)


@pytest.fixture(scope="module")
def deep() -> Run:
    return record(
        Setup(
            source=Gaussian(dim=3), target=Gaussian(center=1.0, dim=3), loss=EnergyDistance(), n=40, m=30, referees=""
        ),
        8,
    )


def linear(color: str) -> np.ndarray:
    part = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, two))
    return (high + 0.05) / (low + 0.05)


def lab(color: str, eye: str) -> np.ndarray:
    seen = np.clip(EYES[eye] @ linear(color), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 1e-6))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_particles_stand_out_and_the_target_stays_quiet(dark: bool) -> None:
    look = theme.theme(dark)
    assert contrast(look.text, look.background) >= 7 and contrast(look.text, look.surface) >= 7
    assert contrast(look.muted, look.background) >= 4.5
    assert contrast(look.particles, look.background) >= 3
    assert all(contrast(color, look.background) >= 2.2 for color in look.labels)
    seen = {n: np.ptp(linear(c)) for n, c in {"particles": look.particles, "target": look.target}.items()}
    assert seen["particles"] > 5 * seen["target"]  # the target is nearly grey


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_no_two_labels_look_alike_to_any_eye(dark: bool, eye: str) -> None:
    look = theme.theme(dark)
    apart = [np.linalg.norm(lab(a, eye) - lab(b, eye)) for a, b in itertools.combinations(look.labels, 2)]
    assert min(apart) > 14  # about six just noticeable differences
    assert np.linalg.norm(lab(look.particles, eye) - lab(look.target, eye)) > 30


def test_each_measure_has_one_hue_in_both_themes_and_its_own_dash() -> None:
    light, dark = palette(False)["metrics"], palette(True)["metrics"]
    assert light["loss"]["color"] == palette(False)["particles"] == dark["loss"]["color"]
    assert [m["dash"] for m in light.values()] == [m["dash"] for m in dark.values()]
    assert len({m["dash"] for m in light.values()}) == len(light) == len({m["color"] for m in light.values()})
    assert theme.curve_line("a loss of tomorrow") == theme.curve_line("a loss of tomorrow")


def test_the_palette_is_plain_values_for_the_browser() -> None:
    import json

    for dark in (False, True):
        assert json.loads(json.dumps(palette(dark))) == palette(dark)


def test_three_hundred_labels_keep_the_top_twelve_and_lose_no_row() -> None:
    rng = np.random.default_rng(0)
    label = np.minimum(rng.geometric(0.05, 5_000) - 1, 299)
    label[:40] = np.arange(260, 300)
    names = [f"kind {i}" for i in range(299)] + [MISSING_LABEL]
    found = label_colors(label, names)
    assert len(found.names) == 14 and found.names[12].startswith("other (") and found.names[13] == MISSING_LABEL
    assert sum(found.counts) == 5_000 and len(set(found.colors)) == 14
    top = {names[c] for c in np.argsort(-np.bincount(label[label != 299], minlength=300), kind="stable")[:12]}
    assert set(found.names[:12]) == top
    for slot, name in enumerate(found.names[:12]):
        assert (label[found.slot == slot] == names.index(name)).all()
    assert (label[found.slot == 13] == 299).all()


def test_a_label_keeps_its_colour_in_every_subset() -> None:
    names = ["a", "b", "c", "d"]
    whole = label_colors(np.array([0, 1, 2, 3, 3]), names)
    part = label_colors(np.array([3, 1]), names)
    assert (
        dict(zip(part.names, part.colors, strict=True)).items()
        <= dict(zip(whole.names, whole.colors, strict=True)).items()
    )
    assert part.counts == (1, 1)  # unused labels take no place in the legend


def test_empty_labels_are_grey_with_an_entry_of_their_own() -> None:
    found = label_colors(np.array([-1, 0, -1]), ["a"])
    assert found.names == ("a", MISSING_LABEL) and found.colors[1] == theme.LIGHT.none
    assert found.slot.tolist() == [1, 0, 1]
    assert label_colors(np.array([-1, -1])).names == (MISSING_LABEL,)


@pytest.mark.parametrize("name", ["flat", "deep"])
def test_show_holds_the_coordinates_of_every_frame(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    figure = show(run)
    assert [frame.name for frame in figure.frames] == [str(frame.step) for frame in run.frames]
    count = len(groups(run, False))
    for drawn, frame in zip(figure.frames, run.frames, strict=True):
        for trace, group in zip(drawn.data[:count], groups(run, False), strict=True):
            at = frame.clouds["particles"][group.rows]
            for i, axis in zip(range(run.scene.dims), "xyz", strict=False):
                assert np.array_equal(np.asarray(trace[axis]), at[:, i])
        line, dot = drawn.data[-2:]
        assert list(line.x) == [frame.step] * 2 and list(dot.y) == [frame.metrics["loss"]]
    rows = np.concatenate([group.rows for group in groups(run, False)])
    assert sorted(rows.tolist()) == list(range(len(run.frames[0].x)))


def test_moving_traces_are_the_particles_and_the_cursor(flat: Run) -> None:
    figure = show(flat)
    assert len(flat.scene.label_names) == 3
    names = [figure.data[i].name for i in figure.frames[0].traces]
    assert names == [*flat.scene.label_names, "step", "now"]
    assert figure.data[0].name == "target"  # beneath the particles, and at rest
    assert [trace.name for trace in figure.data[4:6]] == [
        "loss: Energy distance (length)",
        "referee: Sliced Wasserstein (length²)",
    ]
    assert len(figure.layout.sliders[0].steps) == len(flat.frames)


def test_lengths_are_equal_along_the_axes_and_titles_have_units(flat: Run, deep: Run) -> None:
    axes = show(flat).layout
    assert axes.yaxis.scaleanchor == "x" and axes.yaxis.scaleratio == 1
    assert axes.xaxis.title.text == "x (length)" and axes.xaxis2.title.text == "step"
    assert np.ptp(axes.xaxis.range) == pytest.approx(np.ptp(axes.yaxis.range))
    space = show(deep).layout.scene
    assert space.aspectmode == "cube" and space.zaxis.title.text == "z (length)"
    assert np.ptp(space.xaxis.range) == pytest.approx(np.ptp(space.zaxis.range))


def test_log_and_linear_can_be_chosen(flat: Run, deep: Run) -> None:
    for figure, axis in ((show(flat), "yaxis2"), (show(deep), "yaxis"), (curves(flat), "yaxis")):
        buttons = figure.layout.updatemenus[-1].buttons
        assert [(b.label, b.args[0]) for b in buttons] == [(n, {f"{axis}.type": n}) for n in ("log", "linear")]


def test_long_runs_are_thinned_evenly_and_the_figure_says_so(flat: Run) -> None:
    frames = tuple(replace(flat.frames[i % 31], step=i) for i in range(5_000))
    run = Run(flat.setup, flat.scene, frames, {})
    kept = shown_frames(run)
    assert kept[0] == 0 and kept[-1] == 4_999 and np.ptp(np.diff(kept)) <= 1
    assert len(kept) * 60 <= MOST_NUMBERS and len(kept) == 400
    assert "400 of 5000 frames, evenly spaced." in show(run).layout.title.subtitle.text


def test_large_clouds_are_thinned_and_the_figure_says_so() -> None:
    run = record(Setup(loss=EnergyDistance(), n=6_000, m=20, referees=""), 1)
    figure = show(run)
    assert sum(len(trace.x) for trace in figure.frames[0].data[:-2]) == 5_000
    assert "Drawn: 5,000 of 6,000 particles, evenly spaced." in figure.layout.title.subtitle.text


def test_alt_text_says_the_takeaway(flat: Run) -> None:
    first, last = flat.frames[0].metrics["loss"], flat.frames[-1].metrics["loss"]
    said = alt_text(flat)
    assert f"Energy distance fell from {first:.3g} to {last:.3g} length in 30 steps (time " in said
    assert (
        "Sliced Wasserstein fell" in said and "60 particles from Gaussian mixture over 80 points of Two moons" in said
    )
    for figure in (show(flat), curves(flat), picture(flat), trajectories(flat)):
        assert figure.layout.meta["alt"] == said
    assert "before any other" in alt_text(Run(flat.setup, flat.scene, flat.frames[:1], {}))


def broken(run: Run) -> Run:
    """The run with a last frame that is no longer a number."""
    last = run.frames[-1]
    x = np.full_like(last.x, np.nan)
    end = replace(
        last, step=31, x=x, clouds={"particles": x}, metrics={"loss": float("nan")}, ended="Stopped at step 31: why."
    )
    return Run(run.setup, run.scene, (*run.frames, end), {})


def test_a_broken_run_is_still_drawn_and_says_why(flat: Run) -> None:
    run = broken(flat)
    assert "is not a number at the end. " in alt_text(run) and "Stopped at step 31: why." in alt_text(run)
    assert np.allclose(box(run)[1], box(flat)[1])
    for made in (show(run), curves(run), picture(run), trajectories(run)):
        assert made.to_json()
    assert svg(run) and thumbnail(run)


def test_an_exploding_run_does_not_shrink_the_picture_to_a_dot(flat: Run) -> None:
    far = replace(flat.frames[-1], clouds={"particles": flat.frames[-1].x * 1e6})
    assert box(Run(flat.setup, flat.scene, (*flat.frames, far), {}))[1] < 4 * box(flat)[1]


def test_words_of_users_stay_words(flat: Run) -> None:
    names = ("<b>bold</b>", "$\\frac$ and %{x}", "_日本 🙂" * 30)
    run = Run(flat.setup, replace(flat.scene, label_names=names), flat.frames, {})
    figure = show(run)
    assert figure.data[1].name == "&lt;b&gt;bold&lt;/b&gt;"
    ET.fromstring(svg(run))
    assert "$\\frac$ and %{x}" in svg(run)  # no mathematics made of it


def test_trajectories_follow_the_particles_asked_for(flat: Run) -> None:
    figure = trajectories(flat, rows=[3, 7])
    path = np.asarray(figure.data[1].x).reshape(2, 32)  # 31 frames and a gap
    assert np.array_equal(path[1, :31], [frame.x[7, 0] for frame in flat.frames]) and np.isnan(path[:, 31]).all()
    with pytest.raises(ValueError, match="rows must be numbers of particles below 60"):
        trajectories(flat, rows=[60])


def test_speed_colours_are_the_speeds_of_the_frame(flat: Run) -> None:
    trace = picture(flat, 4, color="speed").data[1]
    assert np.array_equal(trace.marker.color, flat.frames[4].speed)
    assert trace.marker.colorbar.title.text == "speed (length / time)"


@pytest.mark.parametrize("n", [1, 2])
def test_tiny_runs_have_pictures(n: int) -> None:
    setup = Setup(source=Gaussian(dim=1), target=Gaussian(dim=1), loss=EnergyDistance(), n=n, m=1, referees="")
    run = record(setup, 1)
    assert show(run).to_json() and trajectories(run).to_json() and png(run) and thumbnail(run) and gif(run)


def test_svg_is_the_same_each_time_and_says_its_alt_text(flat: Run) -> None:
    text = svg(flat, 3)
    assert text == svg(flat, 3) != svg(flat, 4)
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}desc").text == alt_text(flat)  # type: ignore[union-attr]
    assert words.caption(flat, flat.frames[3]) in "".join(root.itertext())
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://purl.org/", "").replace(
        "http://creativecommons.org/", ""
    )


def test_stills_of_two_threads_do_not_mix(flat: Run, deep: Run) -> None:
    alone = [svg(flat), svg(deep, dark=True)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(svg, flat), pool.submit(svg, deep, -1, True)]
        assert [job.result() for job in jobs] == alone


def loud(image: Image.Image) -> np.ndarray:
    """Places of pixels in the colour of particles."""
    wanted = np.array([int(theme.LIGHT.particles[i : i + 2], 16) for i in (1, 3, 5)])
    return np.argwhere((np.abs(np.asarray(image.convert("RGB")).astype(int) - wanted) < 30).all(-1))


@pytest.mark.parametrize("dark", [False, True])
def test_png_has_particles_where_they_are(dark: bool) -> None:
    there, here = Gaussian(center=3.0, scale=0.2), Gaussian(center=-3.0, scale=0.2)
    setup = Setup(source=here, target=there, loss=EnergyDistance(), n=30, m=30, referees="")
    run = record(setup, 2)
    image = Image.open(io.BytesIO(png(run, 0, dark, scale=1.0)))
    assert image.size == (960, 576) and image.info["Description"] == alt_text(run)
    places = loud(image.crop((67, 75, 470, 420)))  # the picture without the curves
    assert len(places) > 50
    middle = places.mean(0) / (345, 403)
    assert middle[0] > 0.6 and middle[1] < 0.4  # below and left, where the source is


def test_thumbnail_is_small_clear_and_legible(flat: Run, deep: Run) -> None:
    for run in (flat, deep):
        content = thumbnail(run)
        image = Image.open(io.BytesIO(content))
        assert image.format == "WEBP" and image.size == (360, 240) and len(content) < 80_000
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        assert (alpha == 0).mean() > 0.2 and (alpha > 200).mean() > 0.005
        assert len(loud(image)) > 20


@pytest.mark.parametrize("name", ["flat", "deep"])
def test_films_move_and_are_thinned(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    shares: list[float] = []
    for kind, make in (("GIF", gif), ("WEBP", webp)):
        film = Image.open(io.BytesIO(make(run, frames=5, progress=shares.append)))
        assert film.format == kind and film.n_frames == 5 and film.size == (768, 460)
        first = np.asarray(film.convert("RGB")).astype(int)
        film.seek(4)
        last = np.asarray(film.convert("RGB")).astype(int)
        assert (np.abs(first - last).max(-1) > 60).mean() > 0.003
    assert shares == [0.2, 0.4, 0.6, 0.8, 1.0] * 2
    with pytest.raises(ValueError, match=r"frames must be in \[1, 400\], got 401"):
        gif(run, frames=401)


def test_a_cancelled_film_leaves_the_way_free(flat: Run) -> None:
    class Cancelled(Exception):
        pass

    def cancel(share: float) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        gif(flat, progress=cancel)
    assert png(flat, scale=1.0)


def test_labels_keep_their_hue_in_a_gif(flat: Run) -> None:
    film = Image.open(io.BytesIO(gif(flat, frames=2)))
    seen = np.asarray(film.convert("RGB")).reshape(-1, 3).astype(int)
    for color in label_colors(flat.scene.label).colors:
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(seen - wanted).max(1) < 25).sum() > 20


def test_a_single_label_is_as_loud_as_none(flat: Run) -> None:
    one = Run(flat.setup, replace(flat.scene, label=np.zeros(60, np.int64)), flat.frames, {})
    assert [group.color for group in groups(one, False)] == [theme.LIGHT.particles]


def test_grey_labels_lie_beneath_the_others_and_close_the_legend(flat: Run) -> None:
    label = np.arange(60) % 20 - 1  # one empty, twelve named, seven others
    names = tuple(f"kind {i}" for i in range(19))
    run = Run(flat.setup, replace(flat.scene, label=label, label_names=names), flat.frames, {})
    traces = show(run).data[1:15]
    assert [trace.name for trace in traces[:2]] == ["other (7 labels)", MISSING_LABEL]
    listed = sorted(traces, key=lambda trace: trace.legendrank)
    assert [trace.name for trace in listed] == [*names[:12], "other (7 labels)", MISSING_LABEL]
    assert sum(len(trace.x) for trace in traces) == 60
