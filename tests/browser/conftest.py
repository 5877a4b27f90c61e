"""A Streamlit server on a free port of this machine, and Chromium; every page is checked for errors and requests."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

collect_ignore = ["app.py"]
HERE = Path(__file__).parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """Chromium of $CHROMIUM, of the system, or of playwright; None if there is none."""
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return shutil.which(name)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


@pytest.fixture(scope="session")
def browser():
    path = chromium_path()
    if path is None:
        reason = "no Chromium: set $CHROMIUM to one, or run `playwright install chromium`"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield one
        one.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def served(script: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Streamlit running `script`; returns once it answers."""
    command = [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}"]
    command += ["--server.address=127.0.0.1", "--server.headless=true", "--browser.gatherUsageStats=false"]
    command += ["--server.fileWatcherType=none", "--runner.postScriptGC=false"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=HERE.parent.parent, env=environment)
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1):
                return process
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.25)
    process.kill()
    raise RuntimeError(f"the test app did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    port = free_port()
    process = served(HERE / "app.py", port, log)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture
def opened(browser, address) -> Iterator[Callable]:
    """`opened(link)` opens a tab; at the end: no console error, no request left this machine."""
    contexts, errors, urls = [], [], []

    def one(link: str | None = None, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        page.on("websocket", lambda socket: urls.append(socket.url))
        page.goto(address if link is None else f"{address}/?link={quote(link, safe='')}")
        page.wait_for_function(
            "() => window.__dmviz?.player?.state().staged && window.__dmviz.player.state().available > 3"
        )
        return page

    yield one
    for context in contexts:
        context.close()
    assert errors == []
    away = [
        url for url in urls if urlsplit(url).scheme not in ("blob", "data") and urlsplit(url).hostname != "127.0.0.1"
    ]
    assert away == []
    assert urls
