"""`python -m benchmarks.arena`: frames a second that four lanes of 2,000 particles paint, all at one step, in Chromium.

A frame counts when, after one repaint, the pixels of some lane's canvas differ from those before; frames in which those
of every lane differ are counted apart. A lane that hardly moves any more falls short there, as it must; in the race of
equal lanes all of them move, and the goal is set on that. The page Flow with one run of as many particles as a lane is
measured in turns with it, so that a busy machine slows both and their ratio still says what four lanes cost. The goal,
30 painted frames a second, is for two cores without a GPU at a load below 2.
"""

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._measure import RESULTS, digits, machine, save
from benchmarks.player import FLAGS, HERE, chromium, server

GOAL = 30
SHARED = "n={n}&m=2000&referees="
SLICED = "loss=sliced_wasserstein&{0}loss.slices=16&{0}loss.draw=fixed&{0}flow.dt=0.1"
RACES = {
    "four sliced Wasserstein": [SLICED.format(f"lane{i}.").replace("loss=", f"lane{i}.loss=", 1) for i in (1, 2, 3, 4)],
    "four losses": ["lane1.loss=energy_distance", "lane2.loss=mmd", SLICED.format("lane3.").replace(
        "loss=", "lane3.loss=", 1), "lane4.loss=bures_wasserstein"],
}  # fmt: skip
SCRIPT = """
window.bench = {
  layers: () => [...document.querySelectorAll('.dmv-view')].map(view => view.querySelectorAll('.dmv-layer')[2]),
  pixels(canvas) {  // a number that stands for the picture in the middle of a canvas
    const w = Math.min(160, canvas.width), h = Math.min(160, canvas.height);
    const d = canvas.getContext('2d').getImageData((canvas.width - w) >> 1, (canvas.height - h) >> 1, w, h).data;
    const v = new Uint32Array(d.buffer);
    let s = 0;
    for (let i = 0; i < v.length; i++) s = (Math.imul(s, 31) + v[i]) | 0;
    return s;
  },
  watch(ms) {
    return new Promise(done => {
      const layers = this.layers(), times = [], start = performance.now();
      let before = layers.map(this.pixels), ticks = 0, whole = 0;
      const look = () => {
        const now = performance.now(), seen = layers.map(this.pixels);
        const changed = seen.filter((s, i) => s !== before[i]).length;
        ticks++;
        if (changed > 0) times.push(now);
        if (changed === layers.length) whole++;
        before = seen;
        if (now - start < ms) requestAnimationFrame(look); else done({times, ticks, whole, ms: now - start});
      };
      requestAnimationFrame(look);
    });
  },
};
"""


def opened(browser: Any, url: str, key: str) -> Any:
    page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
    page.goto(url)
    state = f"window.__dmviz?.{key}?.state()"
    page.wait_for_function(f"() => {state} && {state}.staged && {state}.available > 8", timeout=240_000)
    page.evaluate(SCRIPT)
    page.wait_for_timeout(1500)
    return page


def watched(page: Any, key: str, seconds: float) -> dict[str, float]:
    """Painted frames while it plays, and those in which every lane moved."""
    press = "label => [...document.querySelectorAll('.dmv button')].find(b => b.ariaLabel.startsWith(label)).click()"
    page.evaluate(press, "Reset")
    page.wait_for_timeout(500)
    page.evaluate(press, "Play")
    page.wait_for_function(f"() => window.__dmviz.{key}.state().pos > 5", timeout=120_000)
    before = page.evaluate(f"() => window.__dmviz.{key}.state().pos")
    seen = page.evaluate("ms => window.bench.watch(ms)", 1000 * seconds)
    after = page.evaluate(f"() => window.__dmviz.{key}.state().pos")
    page.evaluate(press, "Pause")
    gaps = sorted(b - a for a, b in zip(seen["times"], seen["times"][1:], strict=False)) or [float("nan")]
    return {
        "fps": 1000 * len(seen["times"]) / seen["ms"],
        "fps_all_lanes": 1000 * seen["whole"] / seen["ms"],
        "ticks_per_s": 1000 * seen["ticks"] / seen["ms"],
        "p95_gap_ms": gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))],
        "steps_per_s": 1000 * (after - before) / seen["ms"],
        "load": os.getloadavg()[0],
    }


def measured(seconds: float, repeats: int, n: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    record: dict[str, Any] = {"machine": machine(), "goal_fps": GOAL, "particles": n, "seconds": seconds, "rows": {}}
    one = f"{SLICED.format('')}&{SHARED.format(n=n)}"
    cases = {"one run on page Flow": (f"flow?{one}", "player")}
    cases |= {name: (f"arena?{'&'.join(lanes)}&{SHARED.format(n=n)}", "arena") for name, lanes in RACES.items()}
    with server(HERE.parent / "app.py") as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        record["browser"] = f"Chromium {browser.version}, headless, no GPU, device pixel ratio 1"
        found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for _ in range(repeats):
            for name, (url, key) in cases.items():
                page = opened(browser, f"{address}/{url}", key)
                found[name].append(watched(page, key, seconds))
                print(name, {word: digits(value) for word, value in found[name][-1].items()}, flush=True)
                page.context.close()
        browser.close()
    for name, rows in found.items():
        record["rows"][name] = {word: digits(median(row[word] for row in rows)) for word in rows[0]}
        record["rows"][name]["repeats"] = len(rows)
    return record


def table(record: dict[str, Any]) -> str:
    """The record as a table in markdown."""
    lines = [
        f"| {record['particles']:,} particles a lane | painted frames a second | of them, every lane moved | "
        "95 % of gaps below, ms | steps a second | load |",
        "|---" * 6 + "|",
    ]
    for name, row in record["rows"].items():
        words = ("fps", "fps_all_lanes", "p95_gap_ms", "steps_per_s", "load")
        lines.append(f"| {name} | " + " | ".join(f"{row[word]:g}" for word in words) + " |")
    m = record["machine"]
    goal = f"Goal: {record['goal_fps']} at a load below 2"
    lines.append(f"\n{goal}. {m['date']}, {m['cpu']}, {m['cores']} cores; {record['browser']}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each is watched")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--particles", type=int, default=2_000, help="in each lane")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of arena.json and arena.md")
    arguments = parser.parse_args()
    record = measured(arguments.seconds, arguments.repeats, arguments.particles)
    save(record, arguments.out / "arena.json")
    (arguments.out / "arena.md").write_text(table(record) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
