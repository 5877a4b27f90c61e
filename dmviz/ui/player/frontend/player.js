// The player: holds the clock and the frames, asks Python for more, and lets view, curves and controls show them.

import { Store } from "./store.js";
import * as t from "./transport.js";
import { themeOf } from "./palette.js";
import { Picture } from "./picture.js";
import { Curves } from "./curves.js";
import { Controls } from "./controls.js";
import { el } from "./toolbar.js";

const TEXTS = 80; // ms between two updates of texts
/** What the viewer chose, by player: survives a visit to another page. */
const remembered = new Map();
let active = null; // the player that the keyboard drives

export class Player {
  constructor(key, settings, Plotly) {
    [this.key, this.settings, this.Plotly] = [key, settings, Plotly];
    const start = { trails: "off", color: "auto", arrows: false, target: true, log: true };
    this.options = { ...start, ...settings.view, ...remembered.get(key) };
    this.store = this.shelf();
    Object.assign(this, { pos: 0, goal: null, playing: false, factor: 1, actual: 0 }); // frames, frames a second
    Object.assign(this, { scene: null, run: "", ended: "", ms: null, drawing: false });
    Object.assign(this, { inflight: null, id: 0, empty: 0, askAt: 0, pokeAt: 0, told: 0, roundTrip: null });
    this.stamps = [];
    this.paints = 0;
    this.send = () => {};
    this.furnish();
    this.listen();
    this.frame = (now) => this.tick(now);
    this.handle = requestAnimationFrame(this.frame);
    active = this;
  }

  /** Where frames are kept. */
  shelf() {
    return Object.assign(new Store(), { gen: -1 });
  }

  furnish() {
    const color = this.options.color === "auto" ? "plain" : this.options.color;
    this.controls = new Controls(this, { ...this.options, color });
    this.wait = el("div", "dmv-wait", {}, "Setting the stage …");
    this.viewHost = el("div", "dmv-view", {}, this.wait);
    const says = "curves of loss and referees over the steps; click to jump";
    this.plotHost = el("div", "dmv-plot", { role: "img", "aria-label": says });
    const c = this.controls;
    const head = el("div", "dmv-side-head", {}, el("strong", "", {}, "Loss and referees"), c.log);
    const side = el("div", "dmv-side", {}, head, this.plotHost, c.table);
    const main = el("div", "dmv-main", {}, this.viewHost, side);
    const body = el("div", "dmv-body", {}, c.alert, main, c.transport, c.drawBar, c.options, c.status, c.said);
    this.host = el("div", "dmv", { tabindex: 0, role: "region", "aria-label": "Flow player" }, body);
    this.picture = new Picture(this.viewHost, this.Plotly, { drew: () => this.showDrawing() });
    this.curves = new Curves(this.plotHost, this.Plotly, (frame) => this.scrubTo(frame));
    this.curves.log = this.options.log;
  }

  listen() {
    this.host.addEventListener("pointerdown", () => (active = this), true);
    this.host.addEventListener("focusin", () => (active = this));
    // After a click the focus goes to the player, so that Space plays instead of pressing that button again.
    this.host.addEventListener("click", (event) => {
      if (event.detail > 0 && event.target.closest("button")) this.host.focus({ preventScroll: true });
    });
    this.onkey = (event) => this.pressed(event);
    document.addEventListener("keydown", this.onkey, true); // before Streamlit, whose R runs the page again
    this.sizes = new ResizeObserver(() => this.resized());
    this.sizes.observe(this.viewHost);
    this.sizes.observe(this.plotHost);
  }

  // -- what Python says --------------------------------------------------------------------------------------------

  /** Take in a message; the same one twice does no harm. */
  push(message) {
    const { settings, header, arrays } = message;
    this.settings = settings;
    this.host.style.setProperty("--dmv-height", `${settings.height}px`);
    this.host.setAttribute("aria-label", settings.title ? `Flow player: ${settings.title}` : "Flow player");
    if (this.inflight && settings.reply >= this.inflight.id) {
      this.roundTrip = performance.now() - this.inflight.at;
      this.inflight = null;
    }
    if (!header) return;
    if (header.gen !== this.store.gen || header.run !== this.run) this.begin(header);
    this.ended = header.ended;
    this.ms = header.ms;
    this.threads = header.threads;
    this.store.add(header, arrays);
    if (header.count > 0) this.empty = 0;
    else if (this.asked) this.empty++;
    // A slow run gives a few frames at a time: do not ask for each of them.
    const rest = header.available - header.k0 - header.count;
    this.askAt = performance.now() + (header.count > 0 && header.count < 16 && rest <= 0 ? 70 : t.patience(this.empty));
    this.store.evict(Math.floor(this.pos));
    if (header.scene) this.setScene(header.scene, arrays);
    if (header.ended && header.available === 0) this.wait.textContent = "";
    this.retheme();
  }

  begin(header) {
    const branch = header.keep > 0 && header.parent === this.run && header.gen === this.store.gen + 1;
    if (branch) this.store.truncate(header.keep);
    else this.store.clear();
    const first = this.store.gen === -1;
    this.store.gen = header.gen;
    this.run = header.run;
    // Python knows where a run begins: at frame 0, or where a branch that was missed has brought it.
    const begins = Math.max(0, Math.min(this.settings.pos ?? 0, header.available - 1));
    this.pos = branch ? Math.min(this.pos, header.keep) : begins;
    this.goal = null;
    if (first && this.settings.autoplay) this.playing = true;
    this.sceneDue = true;
    this.empty = 0;
  }

  setScene(words, arrays) {
    const scene = { ...words, id: `${this.run}/${this.store.gen}` };
    for (const name of ["target", "target_weight", "target_label", "weight", "label"]) {
      scene[name] = arrays[name]?.data ?? null;
    }
    this.scene = scene;
    this.sceneDue = false;
    this.staged = false;
  }

  /** Put a new scene on the view once its first frame is here. */
  async stageScene() {
    if (this.staging || this.staged || !this.scene || this.store.n === 0) return;
    this.staging = true;
    const scene = this.scene;
    const old = this.shown;
    const same = old?.dims === scene.dims && String(old.axes) === String(scene.axes) && sameNumbers(old.target, scene.target);
    const first = new Float32Array(this.store.n * this.store.dims);
    this.store.positions(0, first);
    try {
      await this.picture.setScene(scene, first, this.theme, same);
      if (!this.curves.ready) {
        const { clientWidth: w, clientHeight: h } = this.plotHost;
        const [color, title] = [(name) => this.curveColor(name), (name) => this.words(name)[0]];
        await this.curves.show(this.theme, this.store, Math.max(w, 60), Math.max(h, 60), color, title);
      }
    } finally {
      this.staging = false;
    }
    this.shown = scene;
    this.staged = scene === this.scene;
    this.wait.remove();
    if (this.options.color === "auto") this.setColor(scene.label ? "label" : "plain");
    this.showDrawing();
  }

  setColor(color) {
    this.options.color = color;
    this.controls.color.select.value = color;
  }

  /** Follow the theme of the page. */
  retheme() {
    if (!this.host.isConnected) return;
    const theme = themeOf(this.host, this.settings.colors);
    const text = JSON.stringify(theme);
    if (text === this.themeText) return;
    [this.theme, this.themeText] = [theme, text];
    this.host.style.colorScheme = theme.dark ? "dark" : "light";
    this.picture.legendKey = "";
    if (this.picture.view) this.picture.retheme(theme);
    this.curves.theme = theme;
    this.curves.version = "";
  }

  words(name) {
    const plain = name.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
    return this.settings.metrics?.[name] ?? [plain, ""];
  }

  curveColor(name) {
    const index = [...this.store.metrics.keys()].indexOf(name);
    return this.theme.curves[Math.max(0, index) % this.theme.curves.length];
  }

  // -- what Python is asked ------------------------------------------------------------------------------------------

  get speed() {
    return (this.settings.speed ?? 30) * this.factor;
  }

  /** What of a frame is needed now. */
  parts() {
    const parts = ["x"];
    if (this.options.arrows) parts.push("arrows");
    if (this.options.color === "speed" || this.picture.hover) parts.push("speed");
    return parts;
  }

  ask(now) {
    if (this.inflight && now - this.inflight.at < t.watchdog(this.roundTrip)) return;
    this.inflight = null;
    if (now < this.askAt) return;
    const { pos, goal, playing, speed, store, ended } = this;
    const trail = { off: 0, short: 12, long: 60 }[this.options.trails];
    const viewer = { pos, goal, playing, speed, parts: this.parts(), trail, available: store.available, ended: ended !== "" };
    let wanted = t.request(viewer, store);
    const due = this.sceneDue || (this.pokeAt && now > this.pokeAt);
    if (!wanted && due) wanted = { k0: Math.floor(pos), most: 0, parts: [] };
    if (wanted) this.need(wanted, now);
  }

  need(wanted, now) {
    const portion = t.portion(2 * this.store.n * this.store.dims, this.speed, this.roundTrip);
    this.id = Math.max(this.id, this.settings.reply ?? 0) + 1;
    this.inflight = { id: this.id, at: now };
    this.pokeAt = 0;
    this.asked = wanted.parts.length > 0;
    this.send("need", {
      id: this.id, gen: this.store.gen, k0: wanted.k0, most: wanted.most ?? portion, parts: wanted.parts, since: this.store.known,
      pos: this.goal ?? this.pos, play: this.playing, speed: this.speed, scene: Boolean(this.sceneDue),
    });
  }

  /** Tell Python where the viewer is, at once or soon. */
  poke(soon = false) {
    const now = performance.now();
    if (soon) this.pokeAt = now + 250;
    else this.need({ k0: Math.floor(this.pos), most: 0, parts: [] }, now);
  }

  // -- what the viewer does ------------------------------------------------------------------------------------------

  toggle() {
    if (this.playing) return this.pause();
    const last = this.store.available - 1;
    if (this.ended && this.pos >= last) this.pos = 0;
    this.goal = null;
    this.playing = true;
    this.askAt = 0;
    this.poke();
  }

  pause() {
    this.playing = false;
    const whole = Math.round(this.pos);
    this.pos = this.store.has(whole) ? whole : Math.floor(this.pos);
    this.poke();
  }

  /** Go to frame k; computed first if need be. */
  goTo(k) {
    this.playing = false;
    const goal = Math.max(0, this.ended ? Math.min(k, this.store.available - 1) : k);
    if (this.store.has(goal)) [this.pos, this.goal] = [goal, null];
    else this.goal = goal;
    this.askAt = 0;
  }

  step(by) {
    const from = this.goal ?? (by > 0 ? Math.floor(this.pos) : Math.ceil(this.pos));
    this.goTo(from + by);
    this.poke(true);
  }

  scrub(k) {
    this.goTo(Math.min(k, this.store.available - 1));
    this.poke(true);
  }

  scrubTo(k) {
    this.scrub(k);
  }

  scrubbed() {
    this.poke(true);
  }

  reset() {
    this.goTo(0);
    this.poke();
  }

  end() {
    this.goTo(this.store.available - 1);
    this.poke(true);
  }

  setFactor(value) {
    this.factor = value;
    this.poke(true);
  }

  option(name, value) {
    this.options[name] = value;
    remembered.set(this.key, { ...this.options });
    this.redraw();
    this.askAt = 0;
  }

  redraw() {
    this.picture.dirty = true;
  }

  log(on) {
    this.option("log", on);
    this.curves.log = on;
    this.curves.update(this.charted(), performance.now(), true);
  }

  seed() {
    this.send("seed", { token: Date.now() });
  }

  draw(on) {
    this.drawing = on;
    this.picture.setDrawing(on);
    this.showDrawing();
  }

  undo() {
    this.picture.undo();
    this.showDrawing();
  }

  clear() {
    this.picture.clearDrawn();
    this.showDrawing();
  }

  use() {
    this.send("drawn", { token: Date.now(), points: this.picture.drawn.flat() });
    this.draw(false);
    this.clear();
  }

  showDrawing() {
    const flat = this.scene?.dims !== 3;
    if (!flat) this.drawing = false;
    this.picture.setDrawing(this.drawing);
    this.controls.showDrawing(this.drawing, this.picture.drawn.flat().length, flat && this.settings.drawable !== false);
  }

  async png() {
    const canvas = await this.picture.png();
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    const link = el("a", "", { href: URL.createObjectURL(blob), download: `dmviz-step-${this.stepNow()}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 2000);
  }

  pressed(event) {
    if (active !== this || !this.host.isConnected || event.ctrlKey || event.metaKey || event.altKey) return;
    const node = event.target;
    const mine = this.host.contains(node);
    if (!mine && node !== document.body) return;
    if (node.matches?.("input:not([type=range]), select, textarea, [contenteditable]")) return;
    if (mine && node.closest?.("button") && (event.key === " " || event.key === "Enter")) return;
    if (node.matches?.("input[type=range]") && event.key !== " " && !/^[rR]$/.test(event.key)) return;
    const stride = event.shiftKey ? this.controls.stride() : 1;
    const does = {
      " ": () => this.toggle(), ArrowRight: () => this.step(stride), ArrowLeft: () => this.step(-stride),
      Home: () => this.goTo(0), End: () => this.end(), r: () => this.reset(), R: () => this.reset(),
    }[event.key];
    if (!does || (event.repeat && event.key === " ")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    does();
  }

  resized() {
    clearTimeout(this.sizing);
    this.sizing = setTimeout(() => {
      if (!this.host.isConnected) return;
      this.picture.resize();
      const { clientWidth: w, clientHeight: h } = this.plotHost;
      if (w > 40 && h > 40) this.curves.resize(w, h);
    }, 60);
  }

  // -- sixty times a second --------------------------------------------------------------------------------------------

  tick(now) {
    this.handle = requestAnimationFrame(this.frame);
    if (!this.host.isConnected || !this.theme) return;
    const dt = Math.min(0.1, (now - (this.before ?? now)) / 1000); // a hidden tab holds time
    this.before = now;
    this.move(dt);
    this.ask(now);
    this.stageScene();
    if (this.staged && this.paint()) this.painted(now);
    if (this.staged) {
      this.curves.update(this.charted(), now);
      this.curves.place(this.stepNow());
    }
    if (now - this.told > TEXTS) this.tell(now);
  }

  /** @returns {boolean} whether pixels were written */
  paint() {
    const { trails, arrows, target, color } = this.options;
    return this.picture.paint(this.store, this.pos, { trails, arrows, target, color });
  }

  /** What the chart draws: steps and values. */
  charted() {
    return this.store;
  }

  move(dt) {
    const { store } = this;
    const before = this.pos;
    if (this.goal !== null) {
      const last = store.available - 1;
      if (this.ended && this.goal > last) this.goal = Math.max(0, last);
      const here = store.has(this.goal);
      const end = store.firstMissing(Math.floor(this.pos)) - 1;
      if (here) [this.pos, this.goal] = [this.goal, null];
      else if (this.goal > this.pos && end > this.pos) this.pos = Math.min(end, this.goal);
    } else if (this.playing) {
      const end = store.firstMissing(Math.floor(this.pos)) - 1;
      const final = this.ended !== "" && end >= store.available - 1;
      const { pos, done } = t.advance(this.pos, dt, this.speed, end, final);
      this.pos = pos;
      if (done) this.pause();
    }
    if (dt > 0) this.actual += ((this.pos - before) / dt - this.actual) * Math.min(1, dt * 1.5);
  }

  stepNow() {
    const { step } = this.store;
    if (!step.length) return 0;
    const k = Math.min(Math.floor(this.pos), step.length - 1);
    const next = step[Math.min(k + 1, step.length - 1)];
    return step[k] + (next - step[k]) * (this.pos - k);
  }

  painted(now) {
    this.paints++;
    this.stamps.push(now);
    if (this.stamps.length > 1200) this.stamps.splice(0, 600);
  }

  tell(now) {
    this.told = now;
    const { store } = this;
    const k = Math.min(Math.round(this.pos), Math.max(0, store.known - 1));
    const threads = this.threads ? ` · ${this.threads} ${this.threads === 1 ? "thread" : "threads"}` : "";
    this.controls.show({
      playing: this.playing, pos: this.pos, goal: this.goal, available: store.available, ended: this.ended,
      step: store.step[k] ?? 0, time: store.time[k] ?? 0, speed: this.speed, actual: this.actual,
      perFrame: t.stepsPerFrame(store.step), ms: this.ms, loss: store.metrics.get("loss")?.[k] ?? NaN,
      device: this.scene ? this.scene.device + (this.scene.device.startsWith("CPU") ? threads : "") : "",
      note: [this.picture.arrowNote, store.notes.get(k), ...(this.pos === 0 ? this.scene?.notes ?? [] : [])].filter(Boolean).join(" "),
    });
    this.controls.showTable([...store.metrics].filter(([, list]) => list.some(Number.isFinite)).map(([name, list]) => {
      let at = k;
      while (at > 0 && !Number.isFinite(list[at])) at--;
      const [title, unit] = this.words(name);
      return [this.curveColor(name), title, list[at], unit, at === k ? null : store.step[at]];
    }));
    if (this.staged) this.picture.showLegend(store, this.options);
    if (!this.scene) return;
    const points = this.scene.target.length / this.scene.dims;
    const words = `${store.n} particles at step ${store.step[k] ?? 0} on their way to ${points} target points`;
    this.picture.layers.front.setAttribute("aria-label", words);
  }

  /** For tests and benchmarks. */
  hook() {
    return {
      state: () => ({
        pos: this.pos, step: this.stepNow(), playing: this.playing, goal: this.goal, ended: this.ended,
        run: this.run, gen: this.store.gen, available: this.store.available, known: this.store.known,
        held: this.store.frames.size, bytes: this.store.bytes, n: this.store.n, dims: this.scene?.dims ?? 0,
        staged: Boolean(this.staged), paints: this.paints, range: this.picture.view?.range() ?? null,
        options: { ...this.options }, drawing: this.drawing, drawn: this.picture.drawn.flat().length,
        speed: this.speed, requests: this.id, hover: this.picture.found ?? -1,
        roundTrip: this.roundTrip,
      }),
      position: (k, i) => {
        const out = new Float32Array(this.store.n * this.store.dims);
        if (!this.store.has(k)) return null;
        this.store.positions(k, out);
        return i === undefined ? Array.from(out) : Array.from(out.subarray(i * this.store.dims, (i + 1) * this.store.dims));
      },
      resolution: (k) => Array.from(this.store.frames.get(k)?.box.slice(this.store.dims) ?? []),
      metric: (name, k) => this.store.metrics.get(name)?.[k],
      goTo: (k) => this.goTo(k),
      paintTimes: () => [...this.stamps],
      screen: (i) => {
        const { rect, screen, dpr } = this.picture;
        return [rect.x + screen[3 * i] / dpr, rect.y + screen[3 * i + 1] / dpr];
      },
    };
  }

  destroy() {
    cancelAnimationFrame(this.handle);
    document.removeEventListener("keydown", this.onkey, true);
    this.sizes.disconnect();
    this.curves.destroy();
    this.picture.destroy();
    this.host.remove();
    this.retire();
  }

  /** The keyboard drives it no longer. */
  retire() {
    if (active === this) active = null;
  }
}

export function sameNumbers(a, b) {
  return a.length === b.length && a.every((v, i) => v === b[i]);
}
