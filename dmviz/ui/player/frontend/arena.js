// The arena: several lanes under the player's one clock. Every painted frame shows the same step in all of them.

import { Player } from "./player.js";
import * as t from "./transport.js";
import { Camera } from "./camera.js";
import { Controls } from "./controls.js";
import { Curves, number } from "./curves.js";
import { Plane } from "./flat.js";
import { Lane } from "./lane.js";
import { themeOf } from "./palette.js";
import { button, choice, el } from "./toolbar.js";
import { firstLevel, holds, latest, reached, Together } from "./together.js";

const DASHES = ["solid", "dash", "dot", "dashdot"];
const RECENT = 4000; // painted frames remembered for tests

export class Arena extends Player {
  shelf() {
    this.lanes = [];
    this.shared = { plane: new Plane(), camera: new Camera() };
    this.shown = [];
    this.levels = new Map(); // measure -> threshold that was typed
    return new Together(this.lanes);
  }

  furnish() {
    this.options.color = this.options.color === "auto" ? "plain" : this.options.color;
    this.controls = new Controls(this, this.options);
    const c = this.controls;
    const looks = [button("fit", "Fit all views to the points on screen", () => this.fit()),
      button("home", "Reset all views", () => this.goHome())];
    c.draw.hidden = true;
    c.draw.previousSibling.before(...looks);
    this.viewHost = el("div", "dmv-grid", { role: "group", "aria-label": "lanes" });
    const says = "the chosen measure of every lane over the steps; click to jump";
    this.plotHost = el("div", "dmv-plot", { role: "img", "aria-label": says });
    this.picker = choice("Measure", [], (name) => this.choose(name));
    this.level = el("input", "dmv-number", { type: "number", step: "any", min: 0, "aria-label": "threshold" });
    this.level.addEventListener("change", () => this.setLevel(this.level.valueAsNumber));
    this.table = el("table", "dmv-table dmv-race", { "aria-label": "lanes compared at the current step" });
    this.judged = el("span");
    const judge = el("div", "dmv-bar dmv-judge", {}, el("label", "dmv-choice", {}, this.judged, this.level));
    const head = el("div", "dmv-side-head", {}, this.picker, c.log);
    this.remark = el("div", "dmv-note");
    const side = el("div", "dmv-side", {}, head, this.plotHost, this.remark);
    const main = el("div", "dmv-main dmv-arena", {}, this.viewHost, side);
    const scroll = el("div", "dmv-scroll", {}, this.table);
    const body = el("div", "dmv-body", {}, c.alert, main, c.transport, c.options, c.status, judge, scroll, c.said);
    this.host = el("div", "dmv", { tabindex: 0, role: "region", "aria-label": "Arena" }, body);
    this.curves = new Curves(this.plotHost, this.Plotly, (frame) => this.scrubTo(frame));
    this.curves.log = this.options.log;
    this.measure = "";
  }

  // -- what Python says --------------------------------------------------------------------------------------------

  push({ settings, lanes }) {
    this.settings = settings;
    this.host.style.setProperty("--dmv-height", `${settings.height}px`);
    this.host.setAttribute("aria-label", settings.title ? `Arena: ${settings.title}` : "Arena");
    if (this.inflight && settings.reply >= this.inflight.id) {
      this.roundTrip = performance.now() - this.inflight.at;
      this.inflight = null;
    }
    this.arrange(lanes.length);
    const first = this.run === "";
    const begun = lanes.map((chunk, i) => this.lanes[i].take(chunk));
    const heads = lanes.map(({ header }) => header).filter(Boolean);
    if (begun.some(Boolean)) this.begin(first);
    this.run = this.lanes.map((lane) => lane.run).join(" ");
    this.ended = this.store.ended ? this.lanes[0].ended || "All lanes have ended." : "";
    this.paced(heads);
    for (const lane of this.lanes) lane.store.evict(Math.floor(lane.at ?? this.pos));
    this.retheme();
  }

  /** As many lanes as there are runs. */
  arrange(count) {
    while (this.lanes.length > count) this.lanes.pop().destroy();
    while (this.lanes.length < count) {
      const lane = new Lane(this.lanes.length, this.shared, this.Plotly);
      this.lanes.push(lane);
      this.viewHost.append(lane.host);
      this.sizes?.observe(lane.view);
    }
    this.viewHost.dataset.lanes = count;
  }

  /** Another run in any lane brings all of them back to where Python says: the start. */
  begin(first) {
    this.pos = Math.max(0, Math.min(this.settings.pos ?? 0, this.store.available - 1));
    this.goal = null;
    this.staged = false;
    this.empty = 0;
    if (first && this.settings.autoplay) this.playing = true;
  }

  /** When to ask again: at once where frames came, later where answers were empty or held a few fresh frames only. */
  paced(heads) {
    if (!heads.length) return;
    const now = performance.now();
    const counts = heads.map((header) => header.count);
    if (counts.some((count) => count > 0)) this.empty = 0;
    else if (this.asked) this.empty++;
    const most = Math.max(...counts);
    this.askAt = now + (most === 0 ? t.patience(this.empty) : most < 16 ? 70 : 0);
  }

  async stageScene() {
    if (this.staging || this.staged || !this.theme) return;
    this.staging = true;
    try {
      await Promise.all(this.lanes.map((lane) => lane.stage(this.laneTheme(lane.index))));
      this.staged = this.lanes.length > 0 && this.lanes.every((lane) => lane.staged || lane.out);
      if (this.staged && !this.curves.ready) await this.showCurves();
    } finally {
      this.staging = false;
    }
  }

  async showCurves() {
    this.chooseMeasures();
    const { clientWidth: w, clientHeight: h } = this.plotHost;
    const line = (name) => ({ color: this.theme.lanes[Number(name)], dash: DASHES[Number(name)], width: 1.8 });
    const title = (name) => `${Number(name) + 1} · ${this.title(Number(name))}`;
    await this.curves.show(this.theme, this.charted(), Math.max(w, 60), Math.max(h, 60), line, title);
  }

  laneTheme(i) {
    return { ...this.theme, particles: this.theme.lanes[i] };
  }

  title(i) {
    return this.settings.lanes?.[i] ?? `lane ${i + 1}`;
  }

  retheme() {
    if (!this.host.isConnected) return;
    const theme = themeOf(this.host, this.settings.colors);
    const text = JSON.stringify(theme);
    if (text === this.themeText) return;
    [this.theme, this.themeText] = [theme, text];
    this.host.style.colorScheme = theme.dark ? "dark" : "light";
    for (const lane of this.lanes) {
      lane.picture.legendKey = "";
      if (lane.picture.view) lane.picture.retheme(this.laneTheme(lane.index));
    }
    this.curves.theme = theme;
    this.curves.version = "";
  }

  // -- what Python is asked ------------------------------------------------------------------------------------------

  parts() {
    const parts = ["x"];
    if (this.options.arrows) parts.push("arrows");
    if (this.options.color === "speed" || this.lanes.some((lane) => lane.picture.hover)) parts.push("speed");
    return parts;
  }

  ask(now) {
    if (this.inflight && now - this.inflight.at < t.watchdog(this.roundTrip)) return;
    this.inflight = null;
    if (now < this.askAt || !this.lanes.length) return;
    const { playing, speed } = this;
    const trail = { off: 0, short: 12, long: 60 }[this.options.trails];
    const wanted = this.lanes.map((lane) => {
      const [ended, available] = [lane.ended !== "", lane.store.available];
      const [pos, goal] = [this.pos, this.goal].map((at) => (at !== null && ended ? Math.min(at, Math.max(0, available - 1)) : at));
      return t.request({ pos, goal, playing, speed, parts: this.parts(), trail, available, ended }, lane.store);
    });
    const due = this.lanes.some((lane) => lane.sceneDue) || (this.pokeAt && now > this.pokeAt);
    if (due || wanted.some(Boolean)) this.need(wanted, now);
  }

  /** @param wanted a request for each lane, or one for all; null asks for nothing but news */
  need(wanted, now) {
    const each = Array.isArray(wanted) ? wanted : this.lanes.map(() => wanted);
    const bytes = this.lanes.reduce((sum, { store }) => sum + 2 * store.n * store.dims, 0);
    const portion = t.portion(bytes, this.speed, this.roundTrip);
    this.id = Math.max(this.id, this.settings.reply ?? 0) + 1;
    this.inflight = { id: this.id, at: now };
    this.pokeAt = 0;
    this.asked = each.some((one) => one?.parts.length > 0);
    const nothing = { k0: Math.floor(this.pos), most: 0, parts: [] };
    this.send("need", {
      id: this.id, pos: this.goal ?? this.pos, play: this.playing, speed: this.speed,
      lanes: this.lanes.map((lane, i) => {
        const { k0, most, parts } = each[i] ?? nothing;
        const { gen, known } = lane.store;
        return { gen, k0, most: most ?? portion, parts, since: known, scene: Boolean(lane.sceneDue) };
      }),
    });
  }

  // -- what the viewer does ------------------------------------------------------------------------------------------

  redraw() {
    for (const lane of this.lanes) lane.picture.dirty = true;
  }

  fit() {
    const lane = this.lanes.find(({ staged }) => staged);
    if (!lane) return;
    const boxes = this.lanes.filter(({ picture }) => picture.x).map(({ picture }) => picture.boxOnScreen());
    const low = boxes[0][0].map((_, j) => Math.min(...boxes.map((box) => box[0][j])));
    const high = boxes[0][1].map((_, j) => Math.max(...boxes.map((box) => box[1][j])));
    lane.picture.view.goTo(low, high);
  }

  goHome() {
    this.lanes.find(({ staged }) => staged)?.picture.view.goHome();
  }

  async png() {
    const pictures = await Promise.all(this.lanes.map(({ picture }) => picture.png()));
    const [w, h] = [pictures[0].width, pictures[0].height];
    const columns = pictures.length === 1 ? 1 : 2;
    const dpr = w / this.lanes[0].view.clientWidth;
    const head = Math.round(26 * dpr);
    const canvas = el("canvas");
    [canvas.width, canvas.height] = [columns * w, Math.ceil(pictures.length / columns) * (h + head)];
    const pen = canvas.getContext("2d");
    pen.fillStyle = this.theme.background;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.font = `600 ${13 * dpr}px ${this.theme.font}`;
    pen.textBaseline = "middle";
    pictures.forEach((picture, i) => {
      const [x, y] = [(i % columns) * w, Math.floor(i / columns) * (h + head)];
      pen.drawImage(picture, x, y + head, w, h);
      pen.fillStyle = this.theme.lanes[i];
      pen.fillRect(x + 6 * dpr, y + head / 2 - 5 * dpr, 10 * dpr, 10 * dpr);
      pen.fillStyle = this.theme.text;
      pen.fillText(`${i + 1} · ${this.title(i)}`, x + 22 * dpr, y + head / 2, w - 28 * dpr);
    });
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    const link = el("a", "", { href: URL.createObjectURL(blob), download: `dmviz-arena-step-${this.stepNow()}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 2000);
  }

  resized() {
    clearTimeout(this.sizing);
    this.sizing = setTimeout(() => {
      if (!this.host.isConnected) return;
      for (const lane of this.lanes) lane.picture.resize();
      const { clientWidth: w, clientHeight: h } = this.plotHost;
      if (w > 40 && h > 40) this.curves.resize(w, h);
    }, 60);
  }

  // -- measures ----------------------------------------------------------------------------------------------------

  /** Offer the measures that there are; the first referee is chosen until someone picks another. */
  chooseMeasures() {
    const known = new Set(this.lanes.flatMap(({ store }) => [...store.metrics].filter(([, list]) => list.some(Number.isFinite)).map(([name]) => name)));
    const names = [...known].filter((name) => name !== "loss").concat(known.has("loss") ? ["loss"] : []);
    const text = names.join();
    if (text !== this.measures) {
      this.measures = text;
      this.picker.select.replaceChildren(...names.map((name) => el("option", "", { value: name }, this.words(name)[0])));
    }
    const wish = this.options.measure;
    const name = names.includes(wish) ? wish : names[0] ?? "";
    if (name !== this.measure) this.useMeasure(name);
    this.picker.select.value = name;
    const judged = this.lanes.map(({ store }) => store.metrics.get(this.measure)).find((list) => list?.some(Number.isFinite));
    const level = this.levels.get(this.measure) ?? firstLevel(judged);
    if (document.activeElement !== this.level && level !== this.curves.level) this.level.value = level ?? "";
    this.curves.level = level;
  }

  useMeasure(name) {
    this.measure = name;
    this.curves.version = "";
    this.judged.textContent = `Threshold of ${this.words(name)[0]}`;
    this.remark.textContent = name === "loss"
      ? "Each lane's own loss, in its own unit: compare shapes, not heights." : "";
  }

  choose(name) {
    this.option("measure", name);
    this.useMeasure(name);
    this.chooseMeasures();
    this.curves.update(this.charted(), performance.now(), true);
  }

  setLevel(value) {
    if (Number.isFinite(value)) this.levels.set(this.measure, value);
    else this.levels.delete(this.measure);
    this.level.blur();
    this.chooseMeasures();
    this.tell(performance.now());
  }

  charted() {
    const metrics = new Map(this.lanes.map(({ store }, i) => [String(i), store.metrics.get(this.measure) ?? []]));
    const gen = this.lanes.map(({ store }) => `${store.gen}.${store.known}`).join("-");
    return { step: this.store.step, known: this.store.known, gen: `${gen}/${this.measure}`, metrics };
  }

  // -- sixty times a second --------------------------------------------------------------------------------------------

  /** All lanes at one step, or none: a lane whose frame is not here yet holds the others. */
  paint() {
    if (!this.lanes.every((lane) => lane.out || (holds(lane, this.pos) && lane.picture.view?.ready))) return false;
    const { trails, arrows, target, color } = this.options;
    const pointed = this.lanes.find(({ picture }) => picture.found >= 0)?.picture.found ?? -1;
    for (const { picture } of this.lanes) picture.mark(pointed); // the same particle in every lane
    let wrote = false;
    for (const lane of this.lanes) if (!lane.out && lane.paint(this.pos, { trails, arrows, target, color })) wrote = true;
    if (wrote) this.shown.push({ pos: this.pos, at: this.lanes.map((lane) => lane.at), k: this.lanes.map(({ picture }) => picture.k) });
    if (this.shown.length > RECENT) this.shown.splice(0, RECENT / 2);
    return wrote;
  }

  tell(now) {
    this.told = now;
    const { store } = this;
    const k = Math.min(Math.round(this.pos), Math.max(0, store.known - 1));
    const alone = this.lanes.length && this.lanes.every((lane) => lane.out);
    const words = this.lanes.find(({ scene }) => scene)?.scene.device ?? "";
    const { threads } = this.lanes[0] ?? {};
    const device = words.startsWith("CPU") && threads ? `${words} · ${threads} ${threads === 1 ? "thread" : "threads"} a lane` : words;
    const notes = this.pos === 0 ? this.lanes.flatMap(({ scene }) => scene?.notes ?? []) : [];
    const own = this.lanes.flatMap((lane) => (lane.store.notes.get(k) ? [`Lane ${lane.index + 1}: ${lane.store.notes.get(k)}`] : []));
    this.controls.show({
      playing: this.playing, pos: this.pos, goal: this.goal, available: store.available,
      ended: alone ? this.lanes[0].ended : "", step: store.step[k] ?? 0, time: null, speed: this.speed, actual: this.actual,
      perFrame: t.stepsPerFrame(store.step), ms: null, loss: this.lanes[0]?.store.metrics.get("loss")?.[k] ?? NaN,
      device, note: [...new Set([...own, ...notes])].join(" "),
    });
    if (!this.theme) return;
    this.lanes.forEach((lane, i) => lane.tell(this.title(i), this.theme.lanes[i], this.pos));
    this.chooseMeasures();
    this.showRace(k);
    if (this.staged) this.lanes[0]?.picture.showLegend(this.lanes[0].store, this.options);
  }

  /** The table: what a lane costs, when it reached the threshold, and its measures at the current step. */
  showRace(k) {
    const names = [...this.picker.select.options].map(({ value }) => value);
    const level = this.curves.level;
    const perFrame = t.stepsPerFrame(this.store.step);
    const goal = level === null || !this.measure ? "steps to threshold" : `steps to ${this.words(this.measure)[0]} ≤ ${level}`;
    const rows = [["", "ms a step", "kB a frame", goal, ...names.map((name) => (name === "loss" ? "own loss" : this.words(name)[0]))]];
    for (const lane of this.lanes) {
      const { metrics, step } = lane.store;
      const first = level === null ? null : reached(step, metrics.get(this.measure), level);
      const values = names.map((name) => number(latest(metrics.get(name), k)?.[0] ?? NaN));
      const [ms, size] = [lane.ms === null ? NaN : lane.ms / perFrame, lane.frameBytes / 1000];
      rows.push([`${lane.index + 1} · ${this.title(lane.index)}`, number(ms), number(size || NaN), first ?? "not yet", ...values].map(String));
    }
    fill(this.table, rows, this.theme.lanes);
  }

  hook() {
    const lane = (one) => ({
      run: one.run, gen: one.store.gen, available: one.store.available, ended: one.ended, held: one.store.frames.size,
      known: one.store.known, n: one.store.n, at: one.at, staged: one.staged, range: one.picture.view?.range() ?? null,
      hover: one.picture.found ?? -1, marked: one.picture.marked, view: one.picture.view?.signature() ?? null,
    });
    return {
      state: () => ({
        pos: this.pos, step: this.stepNow(), playing: this.playing, goal: this.goal, ended: this.store.ended,
        available: this.store.available, known: this.store.known, held: this.lanes.length ? this.store.held : 0,
        staged: Boolean(this.staged), paints: this.paints, speed: this.speed, requests: this.id, roundTrip: this.roundTrip,
        bytes: this.store.bytes, measure: this.measure, level: this.curves.level, options: { ...this.options },
        gen: this.lanes.map(({ store }) => store.gen).join("-"), n: this.store.n, lanes: this.lanes.map(lane),
      }),
      shown: () => this.shown,
      position: (i, k) => {
        const { store } = this.lanes[i];
        if (!store.has(k)) return null;
        const out = new Float32Array(store.n * store.dims);
        store.positions(k, out);
        return Array.from(out);
      },
      resolution: (i, k) => {
        const { store } = this.lanes[i];
        return Array.from(store.frames.get(k)?.box.slice(store.dims) ?? []);
      },
      metric: (i, name, k) => this.lanes[i].store.metrics.get(name)?.[k],
      goTo: (k) => this.goTo(k),
      paintTimes: () => [...this.stamps],
    };
  }

  destroy() {
    cancelAnimationFrame(this.handle);
    document.removeEventListener("keydown", this.onkey, true);
    this.sizes.disconnect();
    this.curves.destroy();
    for (const lane of this.lanes) lane.destroy();
    this.host.remove();
    this.retire();
  }
}

/** Texts of a table whose first row is its head; rows after it start with a swatch. */
function fill(table, rows, colors) {
  while (table.rows.length > rows.length) table.deleteRow(-1);
  rows.forEach((cells, i) => {
    const row = table.rows[i] ?? table.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    while (row.cells.length < cells.length) row.append(el(i === 0 ? "th" : "td", "", i === 0 ? { scope: "col" } : {}, el("i"), el("span")));
    cells.forEach((words, j) => {
      const [swatch, text] = row.cells[j].children;
      swatch.hidden = j > 0 || i === 0;
      if (j === 0 && i > 0) swatch.style.background = colors[i - 1];
      if (text.textContent !== words) text.textContent = words;
    });
  });
}
