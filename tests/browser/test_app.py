"""The whole app in a real Chromium, as a visitor uses it: links, choices, own data, files to take away."""

import csv
import io
import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.conftest import free_port, served
from dmviz import store
from dmviz.run import digest, draw, from_link, query, simulate
from dmviz.ui.gallery import experiments

pytestmark = [pytest.mark.browser]
ROOT = Path(__file__).parent.parent.parent
FAST = "loss=energy_distance&n=120&m=120&referees="
FIRST = "source=ring&target=gaussian&loss=energy_distance&n=60&m=70&seed=3&referees="
BREAKS = "flow=langevin&flow.dt=10&target=gaussian&target.scale=0.1&loss=energy_distance&n=60&m=60&referees="


def state(page):
    return page.evaluate("() => window.__dmviz.player.state()")


def until(page, condition):
    """Wait for a condition on the state `s`."""
    page.wait_for_function(f"() => {{ const s = window.__dmviz?.player?.state(); return s && ({condition}); }}")
    return state(page)


def ready(page):
    return until(page, "s.staged && s.available > 3")


def on_screen(page, k=0):
    """Frame k as the browser holds it."""
    until(page, f"window.__dmviz.player.position({k}) !== null")
    flat = page.evaluate("k => window.__dmviz.player.position(k)", k)
    return np.array(flat, np.float64).reshape(state(page)["n"], -1)


def frames(page, count):
    return [on_screen(page, k) for k in range(count)]


def same(first, second):
    return len(first) == len(second) and all((a == b).all() for a, b in zip(first, second, strict=True))


def near(first, second):
    """Equal up to the 16 bits of the wire, whose unit depends on which frames came in one message."""
    return len(first) == len(second) and all(np.abs(a - b).max() < 1e-3 for a, b in zip(first, second, strict=True))


def assert_computed(page, link, ks):
    """What the browser shows is what the link computes, up to the 16 bits of the wire."""
    exact = [frame.clouds["particles"].astype(np.float64) for frame in islice(simulate(from_link(link)), max(ks) + 1)]
    for k in ks:
        seen = on_screen(page, k)
        unit = np.array(page.evaluate("k => window.__dmviz.player.resolution(k)", k))
        assert (np.abs(seen - exact[k]).max(0) <= 0.51 * unit + 1e-6).all()


def words(page):
    """The setup in the address bar."""
    return urlsplit(page.url).query


def shows(page, link):
    """Wait until the run on screen is that of `link`, and the address bar says so."""
    setup = from_link(link)
    until(page, f"s.run === '{digest(setup)}' && s.staged")
    page.wait_for_function("wanted => location.search === '?' + wanted", arg=query(setup))


def restarted(page, before):
    """Wait for another run than the one of the state `before`."""
    return until(page, f"s.gen > {before['gen']} && s.staged && s.available > 3")


def widget(page, key):
    return page.locator(f".st-key-{key.replace('.', '-')}")


def choose(page, key, title):
    widget(page, key).locator("input").fill(title)  # a long menu draws only what is in view
    page.get_by_role("option", name=re.compile(rf"^{re.escape(title)}( · .*)?$")).click()


def unfold(page, title):
    page.locator("summary", has_text=title).click()


def press(page, name):
    page.get_by_role("button", name=name).first.click()


def save(page, name):
    """What a download button gives."""
    with page.expect_download() as download:
        widget(page, f"export.{name}").locator("button:visible").first.click()
    return Path(download.value.path()).read_bytes()


@pytest.fixture(scope="module")
def app(browser, tmp_path_factory):
    """The real app; the very first thing its server hears is a deep link to a page. `first` is what that showed."""
    log = tmp_path_factory.mktemp("app") / "log.txt"
    port = free_port()
    process = served(ROOT / "app.py", port, log)
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"http://127.0.0.1:{port}/flow?{FIRST}")
    ready(page)
    first = SimpleNamespace(
        state=state(page), url=page.url, nav=page.get_by_role("link", name="Home").count(), errors=alerts(page)
    )
    page.close()
    yield SimpleNamespace(address=f"http://127.0.0.1:{port}", context=context, first=first)
    context.close()
    process.terminate()
    process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


def alerts(page):
    return page.locator('[data-testid="stAlert"]').all_inner_texts()


@pytest.fixture
def opened(app):
    """`opened(link)` opens a tab on page Flow; at the end: no console error, no request left this machine."""
    pages, errors, urls = [], [], []

    def heard(message):
        # Streamlit looks for its server beneath the path of the page first, and lets go of a page's pictures as soon
        # as that page is left: on a busy machine the browser may ask for a thumbnail of Home just after.
        probe = re.search(r"/\w+/_stcore/|/media/\w+\.png$", message.location.get("url", ""))
        if message.type == "error" and not probe:
            errors.append(f"{message.text} {message.location.get('url', '')}")

    def one(link=FAST, path="/flow"):
        page = app.context.new_page()
        pages.append(page)
        page.set_default_timeout(20_000)
        page.on("console", heard)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        page.on("websocket", lambda socket: urls.append(socket.url))
        page.goto(f"{app.address}{path}?{link}" if link else f"{app.address}{path}")
        if path == "/flow":
            ready(page)
        return page

    yield one
    for page in pages:
        page.close()
    assert errors == []
    parts = [urlsplit(url) for url in urls]
    assert [p.geturl() for p in parts if p.scheme not in ("blob", "data") and p.hostname != "127.0.0.1"] == []
    assert urls


def test_a_deep_link_is_well_served_as_the_very_first_request(app):
    assert app.first.state["run"] == digest(from_link(FIRST))
    assert app.first.state["n"] == 60
    assert from_link(urlsplit(app.first.url).query) == from_link(FIRST)
    assert app.first.nav == 1
    assert app.first.errors == []


def test_particles_are_on_screen_before_plotly_is(opened):
    marks = []
    for seed in range(5):  # on a busy machine frame 0 may come after the page
        page = opened(f"{FAST}&seed={seed}")
        assert page.locator(".dmv-poster").count() == 0
        marks = page.evaluate("performance.getEntriesByName('dmviz-first-picture').map(e => e.startTime)")
        if marks:
            break
    assert len(marks) == 1
    assert marks[0] < page.evaluate("window.__dmviz.player.paintTimes()[0] ?? performance.now()")


def test_from_a_card_to_a_flow_that_plays_and_back_home_and_to_the_same_flow(opened):
    page = opened("", "/")
    one = next(e for e in experiments() if e.name == "straight-lines")
    page.get_by_role("link", name=one.title).click()
    shows(page, one.link)
    press(page, "Play")
    until(page, "s.playing && s.pos > 5")
    press(page, "Pause")
    page.get_by_role("link", name="Home", exact=True).click()
    page.get_by_text("one click each").wait_for()
    page.get_by_role("link", name="Flow", exact=True).click()
    shows(page, one.link)
    assert alerts(page) == []


def test_zoom_survives_a_slider_of_the_choices_and_play(opened):
    page = opened(f"{FAST}&flow.dt=0.1")
    view = page.locator(".dmv-view").bounding_box()
    page.evaluate("() => { window.node = document.querySelector('.dmv-axes'); }")
    page.mouse.move(view["x"] + 250, view["y"] + 200)
    before = state(page)
    page.mouse.wheel(0, -400)
    until(page, f"String(s.range) !== '{','.join(map(str, before['range'][0] + before['range'][1]))}'")
    page.wait_for_timeout(400)  # Plotly redraws the axes once the wheel rests
    zoomed = state(page)["range"]
    unfold(page, "Flow settings")
    widget(page, "w.flow.euler.dt").get_by_role("slider").press("ArrowRight")
    restarted(page, before)
    assert state(page)["range"] == zoomed
    press(page, "Play")
    until(page, "s.playing && s.pos > 10")
    assert state(page)["range"] == zoomed
    assert page.evaluate("() => window.node === document.querySelector('.dmv-axes') && window.node.isConnected")


def test_a_changed_parameter_is_a_new_run_whose_address_gives_it_again(opened):
    page = opened("loss=sliced_wasserstein&n=120&m=120&referees=")
    before = state(page)
    slider = widget(page, "w.loss.sliced_wasserstein.slices").get_by_role("slider")
    slider.press("ArrowRight")
    restarted(page, before)
    slices = from_link(words(page)).loss.slices
    assert slices > 64
    shows(page, words(page))
    seen = frames(page, 5)
    page.reload()
    shows(page, words(page))
    assert near(frames(page, 5), seen)
    assert_computed(page, words(page), (0, 4))
    assert page.get_by_text(f"slices={slices}").count() >= 1


def test_a_branch_keeps_the_frames_before_it(opened):
    page = opened("loss=sliced_wasserstein&n=120&m=120&referees=")
    page.get_by_text("Carry on when I change loss or flow").click()
    page.get_by_label("frames to skip").fill("8")
    press(page, "Skip that many")
    until(page, "s.pos === 8 && s.goal === null")
    page.get_by_text("step 8").first.wait_for()
    seen, before = frames(page, 9), state(page)
    choose(page, "w.loss", "Energy distance")
    restarted(page, before)
    until(page, "s.available > 10")
    assert state(page)["pos"] == 8
    assert same(frames(page, 9), seen)
    assert from_link(words(page)).loss.title == "Energy distance"
    begun = islice(simulate(from_link(words(page)), seen[8].astype(np.float32), 8, 0.4), 2)
    assert np.abs(on_screen(page, 9) - list(begun)[1].x).max() < 1e-3
    page.get_by_text("made under other settings").wait_for()


def test_new_seed_moves_the_particles_and_the_link_and_reset_goes_back_to_the_bit(opened):
    page = opened(f"{FAST}&seed=4")
    start = on_screen(page, 0)
    press(page, "New seed")
    shows(page, f"{FAST}&seed=5")
    other = on_screen(page, 0)
    assert (other != start).any()
    press(page, "Play")
    until(page, "s.playing && s.pos > 6")
    page.keyboard.press("r")
    until(page, "s.pos === 0 && !s.playing")
    assert (on_screen(page, 0) == other).all()
    unfold(page, "Particles and seeds")
    expect(widget(page, "w.setup.seed").locator("input")).to_have_value("5")
    assert "seed=5" in page.url


def test_a_target_drawn_by_mouse_is_the_target_of_the_link(opened):
    page = opened()
    press(page, "Draw a target")
    box = page.locator(".dmv-pad").bounding_box()
    for x, y in ((0.3, 0.3), (0.7, 0.35), (0.5, 0.7)):
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    until(page, "s.drawn === 3")
    (x0, x1), (y0, y1) = state(page)["range"]
    before = state(page)
    press(page, "Use the drawn points")
    restarted(page, before)
    page.wait_for_function("() => location.search.includes('target=drawn')")
    setup = from_link(words(page))
    drawn = draw(setup.target, 100, 0, 2)[0].x.numpy()
    for x, y in ((0.3, 0.3), (0.7, 0.35), (0.5, 0.7)):
        wanted = np.array([x0 + x * (x1 - x0), y1 + y * (y0 - y1)])
        assert np.abs(drawn - wanted).max(1).min() < 0.05 * (x1 - x0)
    assert widget(page, "w.target").locator("input").input_value() == "Drawn by hand"


def test_an_uploaded_table_is_the_target_and_a_bad_file_is_one_sentence(opened, tmp_path):
    page = opened()
    choose(page, "w.target", "Own file")
    table = tmp_path / "höhen.csv"
    table.write_text("a,b,kind\n" + "\n".join(f"{i / 20},{i % 7},{'xy'[i % 2]}" for i in range(60)), "utf-8")
    before = state(page)
    page.locator('.st-key-w-target-file-path-upload input[type="file"]').set_input_files(table)
    page.get_by_text("60 rows, 3 columns").wait_for()
    restarted(page, before)
    assert from_link(words(page)).target.load(60, None).x.shape == (60, 2)
    good = state(page)
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and then nothing")
    page.locator('.st-key-w-target-file-path-upload input[type="file"]').set_input_files(bad)
    page.locator('[data-testid="stAlert"]').wait_for()
    (sentence,) = alerts(page)
    assert "bad.parquet" in sentence
    assert "Traceback" not in sentence
    press(page, "Play")
    now = until(page, "s.pos > 3")
    assert (now["run"], now["gen"]) == (good["run"], good["gen"])


def test_the_source_follows_the_dimension_of_the_target(opened):
    page = opened()
    before = state(page)
    choose(page, "w.target", "Digits")
    restarted(page, before)
    setup = from_link(words(page))
    assert setup.source.dim == 64
    assert alerts(page) == []
    assert state(page)["dims"] == 2
    before = state(page)
    choose(page, "w.target", "Ring")
    restarted(page, before)
    assert from_link(words(page)).source.dim == 2


def test_frames_curve_script_and_session_can_be_taken_away_and_opened_again(opened, tmp_path):
    page = opened()
    press(page, "Play")
    until(page, "s.pos > 12")
    press(page, "Pause")
    page.get_by_label("frame", exact=True).fill("7")
    until(page, "s.pos === 7 && s.goal === null")
    widget(page, "w.more").get_by_text("Export").click()
    page.get_by_text("Frame 7 (step 7)").wait_for()
    rows = list(csv.DictReader(io.StringIO(save(page, "frame_csv").decode())))
    first = [float(row[name]) for row in rows[:1] for name in ("x0", "x1")] if "x0" in rows[0] else None
    first = first or [float(rows[0]["x"]), float(rows[0]["y"])]
    assert np.abs(np.array(first) - on_screen(page, 7)[0]).max() < 1e-3
    assert len(rows) >= 120
    assert "from dmviz" in save(page, "script").decode()
    session = tmp_path / f"kept{store.SUFFIX}"
    session.write_bytes(save(page, "session"))
    seen = frames(page, 10)
    other = opened(f"{FAST}&seed=77")
    assert not near(frames(other, 1), seen[:1])
    widget(other, "w.more").get_by_text("Open a session").click()
    before = state(other)
    other.locator('.st-key-session-file input[type="file"]').set_input_files(session)
    restarted(other, before)
    assert near(frames(other, 10), seen)
    assert from_link(words(other)) == from_link(FAST)
    press(other, "Play")
    until(other, "s.playing && s.pos > 3")


def test_a_film_shows_progress_can_be_cancelled_and_is_made(opened):
    page = opened()
    press(page, "Play")
    until(page, "s.pos > 30")
    press(page, "Pause")
    widget(page, "w.more").get_by_text("Export").click()
    page.get_by_role("button", name="Make the film").click()
    page.get_by_text("Drawing frames").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    page.get_by_role("button", name="Make the film").click()
    page.get_by_role("button", name="Save the webp").wait_for(timeout=60_000)
    assert save(page, "save")[8:12] == b"WEBP"


def test_five_tabs_never_mix(opened):
    links = [f"{FAST}&seed={seed}&n={40 + 10 * seed}" for seed in range(1, 6)]
    pages = [opened(link) for link in links]
    for page in pages:
        press(page, "Play")
    for page, link in zip(pages, links, strict=True):
        page.bring_to_front()
        until(page, "s.pos > 4")
        press(page, "Pause")
        assert state(page)["run"] == digest(from_link(link))
        assert from_link(words(page)) == from_link(link)
        assert_computed(page, link, (0, 4))


def test_the_keyboard_alone_is_enough(opened):
    page = opened()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement?.getAttribute('aria-label')?.startsWith('Play') ?? false"):
            break
    page.keyboard.press("Enter")
    until(page, "s.playing && s.pos > 3")
    page.keyboard.press("Space")
    until(page, "!s.playing")
    page.keyboard.press("r")
    until(page, "s.pos === 0")
    before = state(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => Boolean(document.activeElement?.closest('.st-key-w-loss'))"):
            break
    page.keyboard.type("Exact")
    page.keyboard.press("Enter")
    restarted(page, before)
    assert "loss=wasserstein" in words(page)


def test_a_run_that_breaks_says_so_and_keeps_its_frames(opened):
    page = opened(BREAKS)
    press(page, "Play")
    now = until(page, "s.ended !== ''")
    assert re.search(r"Stopped at step \d+: .*dt = 10", now["ended"])
    assert page.get_by_text(now["ended"]).count() == 1
    page.keyboard.press("r")
    until(page, "s.pos === 0")
    assert_computed(page, BREAKS, (0, 2))


def test_a_wrong_link_is_explained_until_something_is_chosen(opened):
    page = opened(f"{FAST}&target=nowhere&seed=many&x=ключ")
    assert len(alerts(page)) == 3
    before = state(page)
    choose(page, "w.target", "Ring")
    restarted(page, before)
    page.wait_for_function("() => !document.querySelector('[data-testid=\"stAlert\"]')")
    assert parse_qs(words(page))["target"] == ["ring"]
