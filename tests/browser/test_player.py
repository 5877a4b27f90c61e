"""The player in a real Chromium, around real runs: the screen shows what was computed, and nothing resets the view."""

import re
import time
from itertools import islice

import numpy as np
import pytest

from dmviz.run import from_link, simulate

pytestmark = [pytest.mark.browser]
DEFAULT = "loss=energy_distance&flow.dt=0.1&n=300&m=300&referees=sliced_wasserstein"
SPACE = "source=swiss_roll&source.dims=3&target=gaussian&target.dim=3&loss=energy_distance&flow.dt=0.1&n=200&referees="


def state(page):
    return page.evaluate("() => window.__dmviz.player.state()")


def until(page, condition, timeout=30_000):
    """Wait for a condition on the state `s`."""
    script = f"() => {{ const s = window.__dmviz?.player?.state(); return s && ({condition}); }}"
    page.wait_for_function(script, timeout=timeout)
    return state(page)


def on_screen(page, k):
    flat = page.evaluate("k => window.__dmviz.player.position(k)", k)
    return np.array(flat, np.float64).reshape(state(page)["n"], -1)


def computed(link, frames):
    return [frame.clouds["particles"].astype(np.float64) for frame in islice(simulate(from_link(link)), frames)]


def python(page, name):
    """A word that the app prints."""
    text = " ".join(page.locator('[data-testid="stText"]').all_inner_texts())
    found = re.search(rf"{name}[= ](\S+)", text)
    return found.group(1) if found else ""


def press(page, label):
    page.get_by_role("button", name=label).first.click()


def play(page, seconds):
    press(page, "Play")
    page.wait_for_timeout(seconds * 1000)
    press(page, "Pause")


def picture(page):
    """The pixels of the view."""
    return page.locator(".dmv-view").screenshot()


def test_zoom_and_axes_survive_20_steps_and_5_seconds_of_play(opened):
    page = opened()
    page.evaluate("() => { window.node = document.querySelector('.dmv-axes'); }")
    page.evaluate("() => { window.layer = document.querySelectorAll('.dmv-layer')[2]; }")
    view = page.locator(".dmv-view").bounding_box()
    page.mouse.move(view["x"] + 330, view["y"] + 200)
    before = state(page)["range"]
    page.mouse.wheel(0, -400)
    until(page, f"String(s.range) !== '{','.join(map(str, before[0] + before[1]))}'")
    page.wait_for_timeout(500)  # Plotly redraws the axes once the wheel rests
    zoomed = state(page)["range"]
    furniture = [page.locator(where).first.bounding_box() for where in (".dmv-bar", ".dmv-table", ".dmv-slider")]
    page.mouse.move(5, 5)
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(20)
    until(page, "s.pos === 20 && s.goal === null")
    play(page, 5)
    assert state(page)["pos"] > 60
    assert state(page)["range"] == zoomed
    assert furniture == [
        page.locator(where).first.bounding_box() for where in (".dmv-bar", ".dmv-table", ".dmv-slider")
    ]
    assert page.evaluate("() => window.node === document.querySelector('.dmv-axes') && window.node.isConnected")
    assert page.evaluate("() => window.layer === document.querySelectorAll('.dmv-layer')[2]")


def test_scrubbing_back_shows_the_coordinates_computed_at_that_step(opened):
    page = opened()
    play(page, 3)
    exact = computed(DEFAULT, 41)
    for k in (40, 7, 23, 0):
        page.get_by_label("frame", exact=True).fill(str(k))
        until(page, f"s.pos === {k} && s.goal === null")
        unit = np.array(page.evaluate("k => window.__dmviz.player.resolution(k)", k))
        assert (np.abs(on_screen(page, k) - exact[k]).max(0) <= 0.51 * unit + 1e-6).all()
    # Where the particle is drawn, the pointer finds it, and the tooltip names its coordinates.
    until(page, "s.pos === 0")
    at = page.evaluate("() => window.__dmviz.player.screen(11)")
    view = page.locator(".dmv-view").bounding_box()
    page.mouse.move(view["x"] + at[0], view["y"] + at[1])
    until(page, "s.hover >= 0")
    found = state(page)["hover"]
    tip = page.locator(".dmv-tip").inner_text().replace("−", "-")
    assert f"particle {found}" in tip
    assert float(re.search(r"x\s+(\S+)", tip).group(1)) == pytest.approx(exact[0][found, 0], abs=2e-3)


def test_reset_and_replay_are_equal_to_the_bit(opened):
    page = opened()
    play(page, 2)
    until(page, "s.available > 21")
    first = [on_screen(page, k) for k in range(21)]
    page.keyboard.press("r")
    until(page, "s.pos === 0 && !s.playing")
    play(page, 2)
    assert all((on_screen(page, k) == first[k]).all() for k in range(21))
    page.wait_for_timeout(600)
    digest = python(page, "digest")
    assert digest != "-" and digest
    generation = state(page)["gen"]
    page.get_by_role("button", name="Again").click()
    until(page, f"s.gen > {generation} && s.staged")
    play(page, 2)
    until(page, "s.available > 21")
    page.wait_for_timeout(600)
    assert python(page, "digest") == digest


def test_the_keyboard_plays_steps_skips_and_resets_but_never_while_typing(opened):
    page = opened()
    runs = python(page, "runs")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    until(page, "s.pos === 1")
    page.keyboard.press("Shift+ArrowRight")
    until(page, "s.pos === 11 && s.goal === null")
    page.keyboard.press("Space")
    until(page, "s.playing && s.pos > 15")
    page.keyboard.press("Space")
    until(page, "!s.playing")
    page.keyboard.press("Home")
    until(page, "s.pos === 0")
    page.keyboard.press("End")
    until(page, "s.pos === s.available - 1 || s.pos >= 15")
    page.keyboard.press("r")
    until(page, "s.pos === 0")
    field = page.get_by_label("frames to skip")
    field.click()
    page.keyboard.press("ArrowUp")  # the field's own: 10 becomes 11
    page.keyboard.press("r")
    page.wait_for_timeout(200)
    assert state(page)["pos"] == 0 and not state(page)["playing"]
    assert field.input_value() == "11"
    page.get_by_role("button", name="Skip that many").click()
    until(page, "s.pos === 11")
    page.keyboard.press("Space")  # after a click on a button, Space still plays
    until(page, "s.playing")
    assert python(page, "runs") == runs == "1"  # R is Streamlit's key for running the page again: not here


def test_a_far_step_is_computed_and_then_shown(opened):
    page = opened()
    page.get_by_label("frames to skip").fill("90")
    page.get_by_role("button", name="Skip that many").click()
    until(page, "s.pos === 90 && s.goal === null")
    exact = computed(DEFAULT, 91)[90]
    unit = np.array(page.evaluate("() => window.__dmviz.player.resolution(90)"))
    assert (np.abs(on_screen(page, 90) - exact).max(0) <= 0.51 * unit + 1e-5).all()


def test_a_click_on_the_curve_jumps_the_player_and_the_table_follows(opened):
    page = opened()
    play(page, 2)
    until(page, "s.available > 40")
    page.wait_for_timeout(800)
    box = page.locator(".dmv-curve").bounding_box()
    page.mouse.click(box["x"] + 50 + 0.3 * (box["width"] - 58), box["y"] + 60)
    page.wait_for_timeout(300)
    now = until(page, "s.goal === null && s.pos === Math.round(s.pos)")
    axis = page.evaluate("() => document.querySelector('.dmv-curve')._fullLayout.xaxis.range")
    assert abs(now["step"] - 0.3 * axis[1]) <= 2
    loss = page.evaluate("k => window.__dmviz.player.metric('loss', k)", now["pos"])
    row = page.locator(".dmv-table tr").first.inner_text()
    assert "Energy distance" in row and "length" in row
    shown = float(re.search(r"[\d.]+(e−?\d+)?", row.replace("Energy distance", "")).group(0).replace("−", "-"))
    assert shown == pytest.approx(loss, rel=1e-2)
    assert page.locator("[aria-label='Logarithmic scale']").get_attribute("aria-pressed") == "true"
    press(page, "Logarithmic scale")
    page.wait_for_timeout(600)
    assert page.evaluate("() => document.querySelector('.dmv-curve')._fullLayout.yaxis.type") == "linear"


def test_pixels_change_while_playing_and_rest_while_paused(opened):
    page = opened()
    page.mouse.move(5, 5)
    page.wait_for_timeout(300)
    first = picture(page)
    page.wait_for_timeout(300)
    assert picture(page) == first
    press(page, "Play")
    seen = set()
    for _ in range(6):
        page.wait_for_timeout(150)
        seen.add(picture(page))
    assert len(seen) == 6
    press(page, "Pause")
    page.wait_for_timeout(300)
    rest = picture(page)
    page.wait_for_timeout(400)
    assert picture(page) == rest
    page.keyboard.press("r")
    until(page, "s.pos === 0")
    page.mouse.move(5, 5)
    page.wait_for_timeout(300)
    assert picture(page) == first


@pytest.mark.parametrize(("label", "choice"), [("Trails", "long"), ("Colour by", "time"), ("Colour by", "speed")])
def test_what_is_chosen_above_changes_the_picture_and_nothing_else(opened, label, choice):
    page = opened()
    play(page, 1.2)
    page.mouse.move(5, 5)
    page.wait_for_timeout(400)
    before, plain = state(page), picture(page)
    page.get_by_label(label).select_option(choice)
    page.wait_for_timeout(900)
    assert picture(page) != plain
    after = state(page)
    assert (after["pos"], after["range"]) == (before["pos"], before["range"])


def test_pause_stops_the_worker(opened):
    page = opened()
    play(page, 1)
    page.wait_for_timeout(1200)
    at = state(page)["available"]
    page.wait_for_timeout(800)
    assert state(page)["available"] == at
    assert python(page, "playing") == "False"


def test_drawn_points_reach_python_as_drawn(opened):
    page = opened()
    press(page, "Draw a target")
    view = page.locator(".dmv-view").bounding_box()
    x, y = view["x"] + 200, view["y"] + 200
    page.mouse.click(x, y)
    page.mouse.move(x + 100, y)
    page.mouse.down()
    page.mouse.move(x + 160, y + 60, steps=20)
    page.mouse.up()
    count = until(page, "s.drawn > 4")["drawn"]
    press(page, "Undo")
    until(page, "s.drawn === 1")
    page.mouse.click(x + 120, y + 30)
    play(page, 1)  # frames come and go, the drawing stays
    assert state(page)["drawn"] == 2 and count > 4
    (x0, x1), (y0, y1) = state(page)["range"]
    area = page.locator(".dmv-pad").bounding_box()
    press(page, "Use the drawn points")
    page.wait_for_function(
        "() => document.body.innerText.includes('drawn ') && /drawn -?\\d/.test(document.body.innerText)"
    )
    sent = [tuple(map(float, p.split(","))) for p in python(page, "drawn").split(";")]
    for (px, py), (ux, uy) in zip([(x, y), (x + 120, y + 30)], sent, strict=True):
        assert ux == pytest.approx(x0 + (px - area["x"]) / area["width"] * (x1 - x0), abs=0.02)
        assert uy == pytest.approx(y1 - (py - area["y"]) / area["height"] * (y1 - y0), abs=0.02)
    press(page, "New seed")
    page.wait_for_function("() => /seeds=1/.test(document.body.innerText)")
    page.wait_for_timeout(500)
    assert python(page, "seeds") == "1"


def test_the_camera_of_space_survives_frames_and_chunks(opened):
    page = opened(SPACE)
    view = page.locator(".dmv-view").bounding_box()
    page.mouse.move(view["x"] + 200, view["y"] + 200)
    before = state(page)["range"]
    page.mouse.down()
    page.mouse.move(view["x"] + 300, view["y"] + 150, steps=5)
    page.mouse.up()
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(200)
    turned = state(page)["range"]
    assert turned[0] != before[0] and turned[1][0] > before[1][0]
    play(page, 2.5)
    assert state(page)["pos"] > 20 and state(page)["dims"] == 3
    assert state(page)["range"] == turned
    exact = computed(SPACE, 16)[15]
    unit = np.array(page.evaluate("() => window.__dmviz.player.resolution(15)"))
    assert (np.abs(on_screen(page, 15) - exact).max(0) <= 0.51 * unit + 1e-5).all()
    assert page.get_by_role("button", name="Draw a target").is_disabled()


def test_other_widgets_answer_while_it_plays_and_the_player_stays(opened):
    page = opened()
    page.evaluate("() => { window.host = document.querySelector('.dmv'); }")
    press(page, "Play")
    until(page, "s.pos > 5")
    slider = page.get_by_role("slider", name="A widget")
    slider.focus()
    for expected in ("51", "52", "53"):
        page.keyboard.press("ArrowRight")
        page.wait_for_function(f"() => /w={expected}/.test(document.body.innerText)")
    at = state(page)["pos"]
    until(page, f"s.playing && s.pos > {at + 10}")
    assert page.evaluate("() => window.host === document.querySelector('.dmv')")


def test_a_branch_keeps_the_frames_before_it_and_the_view(opened):
    page = opened()
    play(page, 1.5)
    page.wait_for_timeout(600)
    before = state(page)
    at = before["pos"]
    kept = [on_screen(page, k) for k in range(at + 1)]
    after = on_screen(page, at + 3)
    page.get_by_role("button", name="Branch").click()
    until(page, f"s.gen > {before['gen']} && s.staged && s.available > {at + 4}")
    assert state(page)["pos"] == at and state(page)["range"] == before["range"]
    assert all((on_screen(page, k) == kept[k]).all() for k in range(at + 1))
    until(page, f"s.held > {at + 3}")
    assert np.abs(on_screen(page, at + 3) - after).max() > 1e-3  # another flow from here on
    play(page, 1)
    assert state(page)["pos"] > at + 5


def test_a_player_taken_away_comes_back_where_it_was(opened):
    page = opened()
    play(page, 1.5)
    page.wait_for_timeout(700)
    at = state(page)["pos"]
    page.get_by_text("Show the player").click()
    page.wait_for_function("() => !document.querySelector('.dmv')")
    page.wait_for_timeout(3600)  # longer than a player without a place is kept
    assert page.evaluate("() => Object.keys(window.__dmviz).length") == 0
    page.get_by_text("Show the player").click()
    until(page, "s.staged && s.known > 20")
    assert abs(state(page)["pos"] - at) <= 1
    play(page, 1)
    assert state(page)["pos"] > at + 5


def test_a_player_mounted_anew_in_mid_play_goes_on_with_its_view(opened):
    page = opened()
    page.evaluate("() => { window.host = document.querySelector('.dmv'); }")
    view = page.locator(".dmv-view").bounding_box()
    page.mouse.move(view["x"] + 300, view["y"] + 200)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(600)
    press(page, "Play")
    until(page, "s.pos > 5")
    before = state(page)
    page.get_by_text("Show the player").click()
    page.wait_for_function("() => !document.querySelector('.dmv')")
    page.get_by_text("Show the player").click()
    page.wait_for_function("() => document.querySelector('.dmv') === window.host")
    until(page, f"s.playing && s.pos > {before['pos'] + 20}")
    assert state(page)["range"] == before["range"]


def test_it_follows_the_theme_and_fits_a_phone(opened):
    page = opened(color_scheme="dark")
    scheme = "() => document.querySelector('.dmv').style.colorScheme"
    assert page.evaluate(scheme) == "dark"
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.querySelector('.dmv').style.colorScheme === 'light'")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(900)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    play(page, 0.6)
    for role in ("button", "combobox", "slider", "spinbutton"):
        for control in page.locator(".dmv").get_by_role(role).all():
            box = control.bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 391)
    nameless = (
        "() => [...document.querySelectorAll('.dmv button, .dmv input, .dmv select')].filter(e => !e.ariaLabel).length"
    )
    assert page.evaluate(nameless) == 0


def test_a_setup_that_cannot_run_says_why(opened, browser, address):
    from urllib.parse import quote

    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/?link={quote('source=gaussian&source.dim=3&target=two_moons&loss=energy_distance', safe='')}")
    alert = page.locator(".dmv-alert")
    alert.wait_for(timeout=30_000)
    assert "the source has 3 dimensions and the target 2" in alert.inner_text()
    context.close()
    opened()  # and the server is well


def test_five_tabs_with_five_setups_never_mix(opened):
    links = [
        f"loss=energy_distance&flow.dt={0.05 * (i + 1):.2f}&n={60 + 20 * i}&m=80&seed={i}&referees=" for i in range(5)
    ]
    pages = [opened(link) for link in links]
    for page in pages:
        press(page, "Play")
    time.sleep(2)
    for page in pages:
        until(page, "s.available > 16 && s.pos > 15")
    assert len({state(page)["run"] for page in pages}) == 5
    for i, (page, link) in enumerate(zip(pages, links, strict=True)):
        assert state(page)["n"] == 60 + 20 * i
        exact = computed(link, 16)
        for k in (0, 8, 15):
            unit = np.array(page.evaluate("k => window.__dmviz.player.resolution(k)", k))
            assert (np.abs(on_screen(page, k) - exact[k]).max(0) <= 0.51 * unit + 1e-5).all()
