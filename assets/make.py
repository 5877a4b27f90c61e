"""`make figures`: the gallery's thumbnails and the README's screenshots, made again from the links themselves.

`python assets/make.py thumbnails [name ...]` or `python assets/make.py screenshots`; without words, both.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import which
from socket import socket
from typing import Any

from dmviz.plot import thumbnail
from dmviz.run import from_link, record
from dmviz.ui.gallery import experiments

ROOT = Path(__file__).parent.parent
SHOTS = ROOT / "assets" / "screenshots"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PICTURES = {  # file -> address, width, height, seconds to play, what to press before
    "flow": ("flow?target=two_moons&flow.dt=0.1", 1440, 900, 1.6),
    "home": ("", 1440, 1400, 0),
    "flow-digits": ("flow?" + next(e.link for e in experiments() if e.name == "digits"), 1440, 900, 2.5),
    "flow-swiss-roll": ("flow?" + next(e.link for e in experiments() if e.name == "swiss-roll"), 1440, 900, 2.5),
    "flow-phone": ("flow?target=two_moons&flow.dt=0.1", 390, 1400, 1.6),
}


def thumbnails(names: list[str]) -> None:
    """One picture an experiment: where particles went, over the target."""
    for one in experiments():
        if names and one.name not in names:
            continue
        setup = replace(from_link(one.link), referees="")
        run = record(setup, one.steps, every=max(1, one.steps // 30))
        one.thumbnail.parent.mkdir(exist_ok=True)
        one.thumbnail.write_bytes(thumbnail(run))
        print(f"{one.name}: {one.thumbnail.stat().st_size / 1000:.0f} kB, {run.ended or 'ran to its end'}", flush=True)


@contextmanager
def served() -> Iterator[str]:
    """The app on a free port of this machine."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as app:
        try:
            time.sleep(6)
            yield f"http://127.0.0.1:{port}/"
        finally:
            app.terminate()


def screenshots() -> None:
    """Every page in both themes."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or which("chromium") or which("google-chrome")
    SHOTS.mkdir(exist_ok=True)
    with served() as url, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, (path, width, height, seconds) in PICTURES.items():
            for theme in ("light", "dark"):
                shot = SHOTS / f"{name}-{theme}.webp"
                _shoot(browser, url + path, shot, width, height, seconds, theme)
                print(f"{shot.name}: {shot.stat().st_size / 1000:.0f} kB", flush=True)
        browser.close()


def _shoot(browser: Any, url: str, shot: Path, width: int, height: int, seconds: float, theme: str) -> None:
    from io import BytesIO

    from PIL import Image

    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    page.goto(url)
    if seconds:
        page.wait_for_selector(".dmv canvas", timeout=60_000)
        page.wait_for_function("() => !/frame 0 \\/ 0/.test(document.body.innerText)", timeout=60_000)
        page.get_by_role("button", name=re.compile("^Play")).first.click()
        time.sleep(seconds)
        page.keyboard.press("Space")
        time.sleep(1)
    else:
        page.wait_for_selector("img", timeout=60_000)
        time.sleep(3)
    Image.open(BytesIO(page.screenshot())).convert("RGB").save(shot, quality=82, method=6)
    context.close()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:] or ["both"]
    if kind in ("both", "thumbnails"):
        thumbnails(rest)
    if kind in ("both", "screenshots"):
        screenshots()
