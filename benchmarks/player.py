"""`python -m benchmarks.player`: frames painted a second, and how long the player takes to answer, in Chromium.

Frames are counted by their pixels: after each repaint the canvas of the particles is read back and compared with the
one before, so a variant that counts states and paints nothing scores zero. Latencies run from the event to the repaint
that shows its effect. The goals are those of the issue; they hold for two cores without a GPU at a load below 2.
"""

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from benchmarks._measure import RESULTS, digits, machine, save

HERE = Path(__file__).parent
SIZES = (500, 2_000, 10_000, 50_000)
LINK = "loss=sliced_wasserstein&loss.slices=16&loss.draw=fixed&flow.dt=0.1&n={n}&m=2000&referees="
REPEATS = 5
FRAMES = 1_600  # over which memory is watched
GOALS = {
    "fps": {500: 55, 2_000: 55, 10_000: 55, 50_000: 45},
    "p95_gap_ms": {500: 20, 2_000: 20, 10_000: 20, 50_000: None},
    "bytes_per_particle_step": 4.3,
    "play_ms": 100, "pause_ms": 50, "step_ms": 50, "reset_ms": 50, "scrub_ms": 150, "widget_ms": 150,
    "parameter_ms": 350, "first_paint_ms": 3_000,
}  # fmt: skip
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

SCRIPT = """
window.bench = {
  api: () => window.__dmviz.player,
  canvas: () => document.querySelectorAll('.dmv-layer')[2],
  pixels() {  // a number that stands for the picture in the middle of the canvas
    const c = this.canvas(), w = Math.min(220, c.width), h = Math.min(220, c.height);
    const d = c.getContext('2d').getImageData((c.width - w) >> 1, (c.height - h) >> 1, w, h).data;
    const v = new Uint32Array(d.buffer);
    let s = 0;
    for (let i = 0; i < v.length; i++) s = (Math.imul(s, 31) + v[i]) | 0;
    return s;
  },
  watch(ms) {  // times at which the picture differed from the one before
    return new Promise(done => {
      const times = [], start = performance.now();
      let before = this.pixels(), ticks = 0;
      const look = () => {
        const now = performance.now(), p = this.pixels();
        ticks++;
        if (p !== before) times.push(now);
        before = p;
        if (now - start < ms) requestAnimationFrame(look); else done({times, ticks, ms: now - start});
      };
      requestAnimationFrame(look);
    });
  },
  latency(act, reached) {  // ms from the event to the first repaint after which `reached` holds and pixels changed
    return new Promise(done => {
      const before = this.pixels(), start = performance.now();
      act();
      const look = () => {
        const now = performance.now();
        if (reached(this.api().state()) && this.pixels() !== before) return done(now - start);
        if (now - start > 10000) return done(NaN);
        requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    });
  },
  rest(act) {  // ms from the event to the last repaint: how long it still moves
    return new Promise(done => {
      const start = performance.now();
      let before = this.pixels(), last = 0;
      act();
      const look = () => {
        const now = performance.now(), p = this.pixels();
        if (p !== before) last = now - start;
        before = p;
        if (now - start < 400) requestAnimationFrame(look); else done(last);
      };
      requestAnimationFrame(look);
    });
  },
  button: name => [...document.querySelectorAll('.dmv button')].find(b => b.ariaLabel.startsWith(name)),
};
"""


def chromium() -> str:
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return str(shutil.which(name))
    raise SystemExit("benchmarks.player needs Chromium: install it or set CHROMIUM to its path")


@contextlib.contextmanager
def server(script: Path = HERE / "_player_app.py") -> Iterator[tuple[str, int]]:
    """Address and process id of a Streamlit server with an app, the benchmark's own if no other."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}"]
    command += ["--server.address=127.0.0.1", "--server.headless=true", "--browser.gatherUsageStats=false"]
    command += ["--server.fileWatcherType=none", "--runner.postScriptGC=false"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        for _ in range(240):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health"):
                break
            time.sleep(0.25)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(20)


def resident(pids: list[int]) -> float:
    """MB of resident memory of some processes together."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) / 1024
    return total


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all it started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += children.get(one, [])
    return found


def opened(browser: Any, address: str, n: int) -> tuple[Any, float]:
    """A tab with a run of n particles, and the ms from navigation to the first picture."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{address}/?link={quote(LINK.format(n=n), safe='')}")
    page.wait_for_function("() => window.__dmviz?.player?.state().paints > 0", polling=20, timeout=120_000)
    painted = page.evaluate(
        "() => performance.getEntriesByName('dmviz-first-picture')[0]?.startTime ?? performance.now()"
    )
    page.wait_for_function("() => window.__dmviz.player.state().available > 8", timeout=120_000)
    page.evaluate(SCRIPT)
    page.wait_for_timeout(800)
    return page, painted


def until(page: Any, condition: str) -> None:
    page.wait_for_function(f"() => {{ const s = window.__dmviz.player.state(); return {condition}; }}", timeout=120_000)


def press(page: Any, name: str) -> None:
    page.evaluate("name => window.bench.button(name).click()", name)


def smoothness(page: Any, pid: int, n: int, seconds: float) -> dict[str, float]:
    """Painted frames, gaps, fresh steps, bytes and the server's processor time while it plays."""
    received = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.webSocketFrameReceived", lambda e: received.append(len(e["response"]["payloadData"]) * 3 / 4))
    until(page, "s.held > 8")
    page.wait_for_timeout(1500)
    held, received_before = page.evaluate("() => window.__dmviz.player.state().held"), sum(received)
    press(page, "Play")
    until(page, "s.pos > 10")
    page.wait_for_timeout(500)
    before = page.evaluate("() => window.__dmviz.player.state()")
    cpu = processor_seconds(pid)
    seen = page.evaluate("ms => window.bench.watch(ms)", 1000 * seconds)
    after = page.evaluate("() => window.__dmviz.player.state()")
    cpu = processor_seconds(pid) - cpu
    press(page, "Pause")
    page.wait_for_timeout(1500)  # what is on its way arrives
    frames = max(1, page.evaluate("() => window.__dmviz.player.state().held") - held)
    session.detach()
    gaps = sorted(b - a for a, b in zip(seen["times"], seen["times"][1:], strict=False)) or [float("nan")]
    fresh = max(1, after["available"] - before["available"])
    return {
        "fps": 1000 * len(seen["times"]) / seen["ms"],
        "ticks_per_s": 1000 * seen["ticks"] / seen["ms"],
        "p95_gap_ms": gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))],
        "fresh_steps_per_s": 1000 * fresh / seen["ms"],
        "server_cpu_ms_per_step": 1000 * cpu / fresh,
        "bytes_per_particle_step": (sum(received) - received_before) / (frames * n),
    }


def latencies(page: Any) -> dict[str, float]:
    """Median ms of each action, over REPEATS tries."""
    found: dict[str, list[float]] = {}

    def note(name: str, script: str) -> None:
        found.setdefault(name, []).append(page.evaluate(script))
        page.wait_for_timeout(250)

    for _ in range(REPEATS):
        press(page, "Reset to")
        until(page, "s.pos === 0 && s.goal === null")
        page.wait_for_timeout(400)
        note("play_ms", "() => bench.latency(() => bench.button('Play').click(), s => s.playing)")
        page.wait_for_timeout(700)
        note("pause_ms", "() => bench.rest(() => bench.button('Pause').click())")
        note("step_ms", "() => bench.latency(() => bench.button('One frame forward').click(), s => s.goal === null)")
        note(
            "scrub_ms",
            """() => bench.latency(() => { const e = document.querySelector('.dmv-slider');
            e.value = 3; e.dispatchEvent(new Event('input')); }, s => s.pos === 3)""",
        )
        note("reset_ms", "() => bench.latency(() => bench.button('Reset to').click(), s => s.pos === 0)")
    for _ in range(REPEATS):
        press(page, "Play")
        page.wait_for_timeout(900)
        found.setdefault("widget_ms", []).append(widget(page))
        found.setdefault("parameter_ms", []).append(parameter(page))
        press(page, "Pause")
        page.wait_for_timeout(300)
    return {name: median(times) for name, times in found.items()}


def widget(page: Any) -> float:
    """Another slider is moved while it plays: until its number on the page has changed and Python has answered."""
    page.get_by_role("slider", name="A widget").focus()
    page.evaluate("""() => {
        const words = () => [...document.querySelectorAll('[data-testid="stText"]')].map(e => e.textContent).join();
        const before = words(); window.answered = new Promise(done => {
        document.addEventListener('keydown', () => { const at = performance.now(); const look = () => {
            if (words() !== before) return done(performance.now() - at);
            if (performance.now() - at > 10000) return done(NaN);
            requestAnimationFrame(look); }; requestAnimationFrame(look); }, {once: true, capture: true}); }); }""")
    page.keyboard.press("ArrowRight")
    return float(page.evaluate("() => window.answered"))


def parameter(page: Any) -> float:
    """The step size is changed while it plays: until a frame computed with it, not the start, is on screen."""
    page.get_by_role("slider", name="Step size").focus()
    page.evaluate("""() => { const gen = bench.api().state().gen; window.changed = new Promise(done => {
        document.addEventListener('keydown', () => { const at = performance.now(); const look = () => {
            const s = bench.api().state();
            if (s.gen !== gen && s.staged && s.pos > 0) return done(performance.now() - at);
            if (performance.now() - at > 10000) return done(NaN);
            requestAnimationFrame(look); }; requestAnimationFrame(look); }, {once: true, capture: true}); }); }""")
    page.keyboard.press("ArrowRight")
    return float(page.evaluate("() => window.changed"))


def memory(page: Any, server_pid: int, browser_pids: list[int]) -> list[dict[str, float]]:
    """Resident memory of server and browser on the way to FRAMES frames, at 8x."""
    page.locator(".dmv-choice select").nth(0).select_option("8")
    marks = []
    for target in (50, FRAMES // 4, FRAMES // 2, FRAMES):
        press(page, "Play")
        until(page, f"s.pos >= {target} || s.ended")
        press(page, "Pause")
        page.wait_for_timeout(1500)
        frames = page.evaluate("() => window.__dmviz.player.state().available")
        marks.append({"frames": frames, "server_mb": resident([server_pid]), "browser_mb": resident(browser_pids)})
    return [{name: digits(value) for name, value in mark.items()} for mark in marks]


def measured(seconds: float, sizes: tuple[int, ...]) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    record: dict[str, Any] = {"machine": machine(), "goals": GOALS, "link": LINK, "sizes": {}}
    with server() as (address, pid), sync_playwright() as playwright:
        mine = set(descendants(os.getpid()))
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        record["browser"] = f"Chromium {browser.version}, headless, no GPU, device pixel ratio 1"
        opened(browser, address, 100)[0].close()  # compiles and loads what the first visit loads
        for n in sizes:
            page, painted = opened(browser, address, n)
            row = {"first_paint_ms": painted, **smoothness(page, pid, n, seconds), **latencies(page)}
            record["sizes"][str(n)] = {name: digits(value) for name, value in row.items()}
            print(n, record["sizes"][str(n)], flush=True)
            page.context.close()
        page, _ = opened(browser, address, 2_000)
        theirs = [p for p in descendants(os.getpid()) if p not in mine and p != pid]
        record["memory_2000"] = memory(page, pid, theirs)
        browser.close()
    record["load_at_end"] = digits(os.getloadavg()[0])
    return record


ROWS = {
    "painted frames a second (pixels)": "fps", "95th percentile of gaps, ms": "p95_gap_ms",
    "fresh steps a second": "fresh_steps_per_s", "server processor time a step, ms": "server_cpu_ms_per_step",
    "bytes a particle and step": "bytes_per_particle_step", "Play to first motion, ms": "play_ms",
    "Pause to rest, ms": "pause_ms", "Step, ms": "step_ms", "Reset, ms": "reset_ms", "Scrub, ms": "scrub_ms",
    "another widget while playing, ms": "widget_ms", "changed parameter on screen, ms": "parameter_ms",
    "first picture of the page, ms": "first_paint_ms",
}  # fmt: skip


def table(record: dict[str, Any]) -> str:
    """The record as a table in markdown."""
    sizes = list(record["sizes"])
    lines = ["| particles | goal | " + " | ".join(f"{int(n):,}" for n in sizes) + " |", "|---" * (len(sizes) + 2) + "|"]
    for title, name in ROWS.items():
        goal = GOALS.get(name, "")
        if isinstance(goal, dict):
            goal = f"{goal[500]}" + (f" ({goal[50_000]} at 50,000)" if goal[50_000] else " to 10,000")
        cells = [f"{record['sizes'][n][name]:g}" for n in sizes]
        lines.append(f"| {title} | {goal} | " + " | ".join(cells) + " |")
    for mark in record["memory_2000"]:
        lines.append(
            f"\n2,000 particles, {mark['frames']:g} frames: server {mark['server_mb']:g} MB, "
            f"browser {mark['browser_mb']:g} MB"
        )
    m = record["machine"]
    load = f"load {m['load_at_start']:g} to {record['load_at_end']:g}"
    lines.append(f"\n{m['date']}, {m['cpu']}, {m['cores']} cores, {load}; {record['browser']}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each size is watched")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of particles")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of player.json and player.md")
    arguments = parser.parse_args()
    record = measured(arguments.seconds, tuple(arguments.sizes))
    save(record, arguments.out / "player.json")
    (arguments.out / "player.md").write_text(table(record) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
