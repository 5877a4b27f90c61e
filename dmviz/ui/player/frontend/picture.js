// The view: layers of canvas above the axes, and everything a pointer does on them.

import { Raster } from "./raster.js";
import { View2D } from "./view2d.js";
import { View3D } from "./view3d.js";
import { css, rgb } from "./palette.js";
import { button, el } from "./toolbar.js";
import * as p from "./particles.js";
import { number } from "./curves.js";

const REACH = 16; // CSS pixels from the pointer within which a particle is named
const DRAW_GAP = 7; // CSS pixels between two points drawn in one stroke

/** Low and high corner of points (n, dims); what is not a number is left out. */
export function boxOf(dims, ...clouds) {
  const low = new Array(dims).fill(Infinity);
  const high = new Array(dims).fill(-Infinity);
  for (const x of clouds) {
    for (let i = 0; i < x.length; i++) {
      const j = i % dims;
      if (x[i] < low[j]) low[j] = x[i];
      if (x[i] > high[j]) high[j] = x[i];
    }
  }
  return low.every((v, j) => isFinite(v) && isFinite(high[j])) ? [low, high] : [low.map(() => -1), high.map(() => 1)];
}

export class Picture {
  /** @param {(dims: number, changed: () => void) => any} [ownView] makes a view that draws its own axes */
  constructor(host, Plotly, hear, ownView = null) {
    [this.host, this.Plotly, this.hear, this.ownView] = [host, Plotly, hear, ownView];
    this.layers = {};
    for (const name of ["box", "back", "front", "top"]) {
      const aria = name === "front" ? { role: "img", "aria-label": "particles" } : { "aria-hidden": "true" };
      this.layers[name] = el("canvas", "dmv-layer", aria);
    }
    this.tip = el("div", "dmv-tip", { "aria-hidden": "true", hidden: true });
    this.tools = el("div", "dmv-tools", {}, el("span", "", {}, "drag to turn · wheel to zoom · Shift and drag to move"),
      button("fit", "Fit to the points on screen", () => this.fit()), button("home", "Reset the view", () => this.view.goHome()));
    this.legend = el("div", "dmv-legend");
    this.pad = el("div", "dmv-pad", { hidden: true, "aria-label": "drawing area" });
    this.back = new Raster(this.layers.back);
    this.front = new Raster(this.layers.front);
    this.view = null;
    this.scene = null;
    this.seen = "";
    this.seenBack = "";
    this.hover = null;
    this.marked = -1; // a particle ringed because the pointer is on it in another view
    this.drawn = []; // strokes: lists of [x, y] in data coordinates
    this.drawing = false;
    this.arrowScale = 0;
    this.dirty = true;
    this.listen();
  }

  /** Show a scene; a view that someone moved stays where it is if `sameTarget`, and any view does that holds the scene. */
  async setScene(scene, first, theme, sameTarget) {
    this.scene = scene;
    this.theme = theme;
    [this.sizes, this.targetSizes] = [p.weightSizes(scene.weight), p.weightSizes(scene.target_weight)];
    const box = boxOf(scene.dims, scene.target, first);
    if (this.view?.dims !== scene.dims) {
      this.view?.destroy();
      this.host.replaceChildren();
      const changed = () => (this.dirty = true);
      this.view = this.ownView?.(scene.dims, changed)
        ?? (scene.dims === 3 ? new View3D(changed) : new View2D(this.host, this.Plotly, changed, () => this.fit()));
      this.host.append(...Object.values(this.layers), this.pad, this.legend, this.tools, this.tip);
      this.tools.hidden = scene.dims !== 3;
      this.host.classList.toggle("dmv-space", Boolean(this.view.drag));
      this.view.setHome(...box);
      this.view.setAxes(scene.axes);
      const { clientWidth: w, clientHeight: h } = this.host;
      if (scene.dims === 3) this.view.resize(w, h);
      else await this.view.show(theme, scene.axes, Math.max(w, 80), Math.max(h, 80));
    } else {
      await this.view.setAxes(scene.axes);
      const keep = sameTarget && (this.view.moved() || this.view.holds(...box));
      if (!keep) {
        this.view.setHome(...box);
        await this.view.goHome();
      }
    }
    this.look = null;
    this.dirty = true;
  }

  async retheme(theme) {
    this.theme = theme;
    this.look = null;
    this.dirty = true;
    await this.view?.retheme(theme);
  }

  async resize() {
    const { clientWidth: w, clientHeight: h } = this.host;
    if (w < 40 || h < 40) return;
    await this.view?.resize(w, h);
    this.dirty = true;
  }

  /** Make the range hold every point on screen and the target. */
  fit() {
    if (this.scene && this.x) this.view.goTo(...this.boxOnScreen());
  }

  boxOnScreen() {
    return boxOf(this.scene.dims, this.scene.target, this.x.subarray(0, this.n * this.scene.dims));
  }

  /** Glue the canvases to the plot area, in device pixels. */
  glue() {
    const r = this.view.rect();
    const dpr = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(r.w * dpr)), Math.max(1, Math.round(r.h * dpr))];
    const place = `${r.x}/${r.y}/${w}/${h}/${dpr}`;
    if (place !== this.place) {
      this.place = place;
      [this.w, this.h, this.dpr, this.rect] = [w, h, dpr, r];
      for (const node of [...Object.values(this.layers), this.pad]) {
        Object.assign(node.style, { left: `${r.x}px`, top: `${r.y}px`, width: `${r.w}px`, height: `${r.h}px` });
      }
      for (const name of ["box", "top"]) [this.layers[name].width, this.layers[name].height] = [w, h];
      this.back.resize(w, h);
      this.front.resize(w, h);
      Object.assign(this.legend.style, { left: `${r.x + 6}px`, bottom: `${this.host.clientHeight - r.y - r.h + 6}px` });
      this.look = null;
      this.seenBack = "";
    }
  }

  /**
   * Draw frame position `pos` if anything differs from what is on screen.
   * @returns {boolean} whether pixels were written
   */
  paint(store, pos, options) {
    if (!this.view?.ready || !this.scene || store.n === 0) return false;
    this.glue();
    const view = this.view.signature();
    const frame = store.frames.get(Math.floor(pos));
    const parts = `${Boolean(frame?.arrows)}${Boolean(frame?.speed)}${store.frames.size > 0}`;
    const seen = `${store.gen}/${pos}/${view}/${this.place}/${JSON.stringify(options)}/${parts}`;
    if (!this.dirty && seen === this.seen) return false;
    this.seen = seen;
    this.dirty = false;
    if (!this.look) {
      const side = Math.min(this.rect.w, this.rect.h);
      this.look = new p.Look(this.theme, store.n, this.dpr, this.scene.dims, side);
      this.seenBack = "";
    }
    this.reserve(store);
    this.paintBack(view, options);
    const k = store.positions(pos, this.x);
    if (k < 0) return false;
    this.k = k;
    this.view.toScreen(this.x, store.n, this.screen, this.w, this.h);
    this.front.clear();
    const color = this.coloring(store, pos, k, options);
    if (options.trails !== "off") this.paintTrails(store, pos, options, color);
    const order = this.scene.dims === 3 ? p.farFirst(this.screen, store.n, this.order) : null;
    p.drawDiscs(this.front, this.screen, store.n, this.look, color.mode, color.index, order, this.sizes);
    this.front.show();
    this.paintTop(store, k, options);
    this.tell(store, k);
    return true;
  }

  reserve(store) {
    this.n = store.n;
    if (this.x?.length === store.n * store.dims) return;
    this.x = new Float32Array(store.n * store.dims);
    this.screen = new Float32Array(store.n * 3);
    this.older = [new Float32Array(store.n * 3), new Float32Array(store.n * 3)];
    this.order = new Uint32Array(store.n);
    this.speedBuffer = new Float32Array(store.n);
    this.arrowAt = p.arrowIndex(store.n);
  }

  coloring(store, pos, k, options) {
    const labels = this.scene.label;
    const speeds = options.color === "speed" ? store.speeds(k, this.speedBuffer) : null;
    const mode = p.usable(options.color, { labels, speeds });
    const progress = pos / Math.max(1, store.available - 1);
    const data = { labels, speeds, speedMax: store.speedMax, progress };
    return { mode, data, index: p.colorIndex(mode, data, this.look) };
  }

  /** Axes box and target: only when view, theme or size changed. */
  paintBack(view, options) {
    const seen = `${view}/${this.place}/${options.target}/${this.scene.id}`;
    if (seen === this.seenBack) return;
    this.seenBack = seen;
    const box = this.layers.box.getContext("2d");
    box.clearRect(0, 0, this.w, this.h);
    if (this.view.drawBox) this.view.drawBox(box, this.w, this.h, this.dpr, this.theme);
    this.back.clear();
    if (options.target) {
      const m = this.scene.target.length / this.scene.dims;
      this.targetScreen = this.view.toScreen(this.scene.target, m, new Float32Array(3 * m), this.w, this.h);
      p.drawTarget(this.back, this.targetScreen, m, this.look, this.targetSizes);
    }
    this.back.show();
  }

  paintTrails(store, pos, options, color) {
    const plan = p.trailPlan(options.trails, Math.floor(pos), store.n);
    const past = this.past?.length === this.x.length ? this.past : (this.past = new Float32Array(this.x.length));
    let newer = this.screen;
    let slot = 0;
    for (const f of plan.frames) {
      if (!store.has(f)) break;
      store.positions(f, past);
      const older = this.view.toScreen(past, store.n, this.older[slot], this.w, this.h);
      slot = 1 - slot;
      const age = (pos - f) / plan.length;
      const progress = f / Math.max(1, store.available - 1);
      const index = color.mode === "time" ? p.colorIndex("time", { progress }, this.look) : color.index;
      const colors = this.look.colors[color.mode];
      p.drawSegment(this.front, newer, older, store.n, plan.every, (i) => colors[index(i)], 0.85 * Math.max(0.08, 1 - age), this.dpr > 1.4);
      newer = older;
    }
  }

  paintTop(store, k, options) {
    this.arrowNote = "";
    const arrows = options.arrows && store.frames.get(k)?.arrows;
    const used = Boolean(arrows || this.hover || this.drawn.length || this.marked >= 0);
    if (!used && !this.topUsed) {
      this.found = -1;
      return; // an untouched canvas costs nothing
    }
    if (used !== this.topUsed) this.layers.top.style.display = used ? "" : "none"; // a hidden layer is not blended
    this.topUsed = used;
    const context = this.layers.top.getContext("2d");
    context.clearRect(0, 0, this.w, this.h);
    if (arrows) this.paintArrows(context, arrows);
    this.found = -1;
    if (this.hover) {
      const [hx, hy] = [this.hover[0] * this.dpr, this.hover[1] * this.dpr];
      this.found = p.nearest(this.screen, store.n, hx, hy, REACH * this.dpr);
      if (this.found >= 0) this.ring(context, this.found);
    }
    if (this.found < 0 && this.marked >= 0 && this.marked < store.n) this.ring(context, this.marked);
    if (this.drawn.length) this.paintDrawn(context);
  }

  /** Ring a particle, or none (-1). */
  mark(i) {
    if (i === this.marked) return;
    [this.marked, this.dirty] = [i, true];
  }

  paintArrows(context, arrows) {
    const d = this.scene.dims;
    const count = this.arrowAt.length;
    const tip = new Float32Array(count * d);
    const lengths = new Float64Array(count);
    const middle = new Float32Array(count * d);
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < d; j++) {
        middle[i * d + j] = this.x[this.arrowAt[i] * d + j];
        lengths[i] += arrows[i * d + j] ** 2;
      }
      lengths[i] = Math.sqrt(lengths[i]);
    }
    this.arrowScale = p.arrowScale(lengths, this.arrowScale, (30 * this.dpr) / this.pixelsPerUnit());
    for (let i = 0; i < count * d; i++) tip[i] = middle[i] + arrows[i] * this.arrowScale;
    const pick = (x) => {
      const screen = this.view.toScreen(x, count, new Float32Array(3 * count), this.w, this.h);
      return Float32Array.from({ length: 2 * count }, (_, i) => screen[3 * (i >> 1) + (i & 1)]);
    };
    p.drawArrows(context, pick(middle), pick(tip), count, this.theme, this.dpr);
    const share = count < this.n ? `; ${count} of ${this.n.toLocaleString("en")} particles have one` : "";
    this.arrowNote = `Arrow length: the distance in ${String(this.arrowScale)} units of time${share}.`;
  }

  pixelsPerUnit() {
    if (this.scene.dims === 3) return ((this.h / 2) * this.view.camera.zoom * 0.92) / this.view.camera.radius;
    const [[x0, x1]] = this.view.range();
    return this.w / Math.abs(x1 - x0);
  }

  ring(context, i) {
    context.beginPath();
    context.arc(this.screen[3 * i], this.screen[3 * i + 1], this.look.radius + 3 * this.dpr, 0, 7);
    context.lineWidth = 2 * this.dpr;
    context.strokeStyle = this.theme.text;
    context.stroke();
  }

  paintDrawn(context) {
    const flat = Float32Array.from(this.drawn.flat(2));
    const screen = this.view.toScreen(flat, flat.length / 2, new Float32Array(1.5 * flat.length), this.w, this.h);
    context.fillStyle = css(rgb(this.theme.drawn), 0.9);
    context.strokeStyle = this.theme.background;
    context.lineWidth = this.dpr;
    for (let i = 0; i < flat.length / 2; i++) {
      context.beginPath();
      context.arc(screen[3 * i], screen[3 * i + 1], 4 * this.dpr, 0, 7);
      context.fill();
      context.stroke();
    }
  }

  /** The tooltip of the particle under the pointer. */
  tell(store, k) {
    if (this.tip.hidden !== this.found < 0) this.tip.hidden = this.found < 0;
    if (this.found < 0) return;
    const i = this.found;
    const d = this.scene.dims;
    const lines = [`particle ${i}`];
    for (let j = 0; j < d; j++) lines.push(`${this.scene.axes[j] ?? "xyz"[j]}  ${number(this.x[i * d + j])}`);
    if (this.scene.label) lines.push(`label  ${this.labelName(this.scene.label[i])}`);
    const speeds = store.speeds(k, this.speedBuffer);
    if (speeds) lines.push(`speed  ${number(speeds[i])}`);
    const words = lines.join("\n");
    if (this.tip.textContent !== words) this.tip.textContent = words;
    const [x, y] = [this.rect.x + this.hover[0], this.rect.y + this.hover[1]];
    const left = x > this.host.clientWidth - 170 ? x - 14 - this.tip.offsetWidth : x + 14;
    const top = Math.min(y + 12, this.host.clientHeight - this.tip.offsetHeight - 4);
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  labelName(label) {
    return label < 0 ? "none" : String(this.scene.label_names[label] ?? label);
  }

  // -- pointers --------------------------------------------------------------------------------------------------

  /** Place of an event in the plot area, CSS pixels; null outside. */
  place2(event) {
    if (!this.rect) return null;
    const box = this.host.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - this.rect.x, event.clientY - box.top - this.rect.y];
    return x >= 0 && y >= 0 && x <= this.rect.w && y <= this.rect.h ? [x, y] : null;
  }

  listen() {
    const { host, pad } = this;
    host.addEventListener("pointermove", (event) => {
      this.hover = event.buttons ? null : this.place2(event);
      this.dirty = true;
      if (this.orbit && event.buttons) this.turn(event);
    }, true);
    host.addEventListener("pointerleave", () => {
      [this.hover, this.dirty] = [null, true];
    });
    host.addEventListener("pointerdown", (event) => {
      if (!this.view?.drag || event.target.closest(".dmv-pad, .dmv-tools button")) return;
      this.orbit = [event.clientX, event.clientY];
      host.setPointerCapture(event.pointerId);
    });
    for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, () => (this.orbit = null));
    host.addEventListener("wheel", (event) => {
      if (!this.view?.drag) return;
      event.preventDefault();
      this.view.wheel(event.deltaY, ...(this.place2(event) ?? [this.rect.w / 2, this.rect.h / 2]));
      this.dirty = true;
    }, { passive: false });
    host.addEventListener("contextmenu", (event) => this.view?.drag && event.preventDefault());
    host.addEventListener("dblclick", () => this.view?.drag && this.view.goHome());
    pad.addEventListener("pointerdown", (event) => {
      pad.setPointerCapture(event.pointerId);
      this.stroke = [];
      this.drawn.push(this.stroke);
      this.addPoint(event, true);
    });
    pad.addEventListener("pointermove", (event) => this.stroke && this.addPoint(event, false));
    for (const end of ["pointerup", "pointercancel"]) {
      pad.addEventListener(end, () => {
        this.stroke = null;
        this.lastDrawn = null;
      });
    }
  }

  turn(event) {
    const [dx, dy] = [event.clientX - this.orbit[0], event.clientY - this.orbit[1]];
    this.orbit = [event.clientX, event.clientY];
    this.view.drag(dx, dy, Math.min(this.rect.w, this.rect.h), event.shiftKey || event.buttons === 2);
  }

  addPoint(event, first) {
    const at = this.place2(event);
    if (!at) return;
    const far = first || Math.hypot(at[0] - this.lastDrawn[0], at[1] - this.lastDrawn[1]) >= DRAW_GAP;
    if (!far) return;
    this.lastDrawn = at;
    this.stroke.push(this.view.toData(...at));
    this.dirty = true;
    this.hear.drew();
  }

  setDrawing(on) {
    this.drawing = on;
    this.pad.hidden = !on;
  }

  undo() {
    this.drawn.pop();
    this.dirty = true;
  }

  clearDrawn() {
    this.drawn = [];
    this.dirty = true;
  }

  /** Names and colours, or the ends of a scale. */
  showLegend(store, options) {
    const mode = p.usable(options.color, { labels: this.scene?.label, speeds: options.color === "speed" ? true : null });
    const key = `${mode}/${this.scene?.id}/${this.theme.dark}/${mode === "speed" ? number(store.speedMax) : ""}`;
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren();
    this.legend.hidden = mode === "plain";
    if (mode === "label") {
      const present = [...new Set(this.scene.label)].sort((a, b) => a - b);
      for (const value of present.slice(0, 12)) {
        const dot = el("i");
        dot.style.background = value < 0 ? this.theme.none : this.theme.labels[value % this.theme.labels.length];
        this.legend.append(el("b", "", {}, dot, this.labelName(value)));
      }
      if (present.length > 12) this.legend.append(el("b", "", {}, `and ${present.length - 12} more; colours repeat`));
    } else if (mode !== "plain") {
      const bar = el("u");
      bar.style.background = `linear-gradient(90deg, ${this.theme[mode].join(", ")})`;
      const [low, high] = mode === "speed" ? ["speed 0", number(store.speedMax)] : ["start", "latest"];
      this.legend.append(el("b", "", {}, low, bar, high));
    }
  }

  /** Axes and layers as one picture. */
  async png() {
    const scale = Math.max(2, this.dpr);
    const { clientWidth: w, clientHeight: h } = this.host;
    const canvas = el("canvas");
    [canvas.width, canvas.height] = [Math.round(w * scale), Math.round(h * scale)];
    const context = canvas.getContext("2d");
    context.fillStyle = this.theme.background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (this.view.gd) {
      const url = await this.Plotly.toImage(this.view.gd, { format: "png", width: w, height: h, scale });
      const image = new Image();
      image.src = url;
      await image.decode();
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
    }
    const r = this.rect;
    for (const layer of Object.values(this.layers)) {
      context.drawImage(layer, r.x * scale, r.y * scale, r.w * scale, r.h * scale);
    }
    return canvas;
  }

  destroy() {
    this.view?.destroy();
  }
}
