// Curves of the loss and its referees, with a playhead. Plotly draws them, at most 2.5 times a second.

import { css, mix, rgb } from "./palette.js";
import { frameOfStep } from "./transport.js";

const PACE = 400; // ms between two redraws
const MOST = 1200; // points of a drawn curve

/** Thin a curve to about `most` points, keeping the extremes of every stretch. NaNs are left out. */
export function thinned(x, y, most = MOST) {
  const [fx, fy] = [[], []];
  for (let i = 0; i < y.length; i++) if (Number.isFinite(y[i])) fx.push(x[i]), fy.push(y[i]);
  if (fx.length <= most) return [fx, fy];
  const [ox, oy] = [[], []];
  const bins = Math.floor(most / 2);
  for (let b = 0; b < bins; b++) {
    const from = Math.floor((b * fx.length) / bins);
    const to = Math.floor(((b + 1) * fx.length) / bins);
    let [low, high] = [from, from];
    for (let i = from; i < to; i++) {
      if (fy[i] < fy[low]) low = i;
      if (fy[i] > fy[high]) high = i;
    }
    for (const i of new Set([Math.min(low, high), Math.max(low, high)])) ox.push(fx[i]), oy.push(fy[i]);
  }
  if (ox[ox.length - 1] !== fx[fx.length - 1]) ox.push(fx[fx.length - 1]), oy.push(fy[fy.length - 1]);
  return [ox, oy];
}

/** End of the step axis: grows by halves, so that the curve is not squeezed anew at every redraw. */
export function reach(last) {
  let end = 40;
  while (end < last) end = Math.ceil(end * 1.5);
  return end;
}

/** Four significant digits, short. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const a = Math.abs(value);
  if (a !== 0 && (a >= 1e5 || a < 1e-3)) return value.toExponential(2).replace("e-", "e−").replace("-", "−");
  return value.toPrecision(4).replace("-", "−");
}

export class Curves {
  /** @param {HTMLElement} host @param {(frame: number) => void} jump */
  constructor(host, Plotly, jump) {
    [this.Plotly, this.jump] = [Plotly, jump];
    this.gd = document.createElement("div");
    this.gd.className = "dmv-curve";
    this.head = document.createElement("div");
    this.head.className = "dmv-playhead";
    host.append(this.gd, this.head);
    this.log = true;
    this.level = null; // a value marked across the chart
    this.ready = false;
    this.last = 0;
    this.version = "";
    this.steps = [];
    this.dragging = false;
    const at = (event) => this.jump(this.frameAt(event.clientX));
    this.gd.addEventListener("pointerdown", (event) => {
      if (!this.ready || !this.inside(event)) return;
      this.dragging = true;
      this.gd.setPointerCapture(event.pointerId);
      at(event);
    });
    this.gd.addEventListener("pointermove", (event) => this.dragging && at(event));
    for (const end of ["pointerup", "pointercancel"]) this.gd.addEventListener(end, () => (this.dragging = false));
  }

  inside(event) {
    const box = this.gd.getBoundingClientRect();
    const { xaxis, yaxis } = this.gd._fullLayout;
    const [x, y] = [event.clientX - box.left - xaxis._offset, event.clientY - box.top - yaxis._offset];
    return x >= -4 && x <= xaxis._length + 4 && y >= -4 && y <= yaxis._length + 4;
  }

  frameAt(clientX) {
    const { xaxis } = this.gd._fullLayout;
    const part = (clientX - this.gd.getBoundingClientRect().left - xaxis._offset) / xaxis._length;
    const [from, to] = xaxis.range;
    return frameOfStep(this.steps, from + Math.min(1, Math.max(0, part)) * (to - from));
  }

  layout(theme) {
    const grid = css(mix(rgb(theme.background), rgb(theme.text), theme.dark ? 0.16 : 0.1));
    const soft = css(rgb(theme.text), 0.75);
    const axis = { gridcolor: grid, zeroline: false, fixedrange: true, tickfont: { color: soft, size: 10 } };
    return {
      font: { family: theme.font }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 50, r: 8, t: 8, b: 34 }, showlegend: false, hovermode: false, dragmode: false, autosize: false,
      xaxis: { ...axis, title: { text: "step", font: { size: 11, color: soft }, standoff: 4 }, range: [0, 40], nticks: 6 },
      shapes: this.level > 0 || (this.level === 0 && !this.log) ? [{
        type: "line", xref: "paper", x0: 0, x1: 1, y0: this.level, y1: this.level, line: { color: soft, width: 1, dash: "dot" },
      }] : [],
      yaxis: { ...axis, type: this.log ? "log" : "linear", nticks: 6, exponentformat: "power", minorloglabels: "none" },
    };
  }

  traces(store, colorOf, titleOf) {
    return [...store.metrics].map(([name, list]) => {
      const [x, y] = thinned(store.step, list);
      const width = name === "loss" ? 2.2 : 1.4;
      const mode = x.length <= 12 ? "lines+markers" : "lines"; // a first value alone is a dot, not nothing
      const look = colorOf(name); // a colour, or all that Plotly knows of a line
      const line = typeof look === "string" ? { color: look, width } : { width, ...look };
      return { x, y, name: titleOf(name), type: "scatter", mode, line, marker: { size: 4 }, hoverinfo: "skip" };
    });
  }

  async show(theme, store, w, h, colorOf, titleOf) {
    [this.theme, this.colorOf, this.titleOf] = [theme, colorOf, titleOf];
    this.size = { w, h };
    await this.Plotly.newPlot(this.gd, this.traces(store, colorOf, titleOf), { ...this.layout(theme), width: w, height: h },
      { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, staticPlot: false });
    this.ready = true;
    this.gd.on("plotly_afterplot", () => this.place(this.step ?? 0));
  }

  /** Redraw if there is news and the last redraw is long enough ago. */
  update(store, now, force = false) {
    if (!this.ready || this.busy) return;
    this.steps = store.step;
    const { w, h } = this.size;
    const version = `${store.known}/${store.gen}/${this.log}/${this.level}/${[...store.metrics.keys()]}/${this.theme.dark}/${w}x${h}`;
    if (version === this.version || (!force && now - this.last < PACE)) return;
    this.version = version;
    this.last = now;
    const layout = { ...this.layout(this.theme), width: this.size.w, height: this.size.h };
    layout.xaxis.range = [0, reach(store.step[store.known - 1] ?? 0)];
    const positive = [...store.metrics.values()].some((list) => list.some((v) => v > 0));
    if (this.log && !positive) layout.yaxis.type = "linear";
    this.busy = true;
    this.Plotly.react(this.gd, this.traces(store, this.colorOf, this.titleOf), layout).finally(() => {
      this.busy = false;
      this.place(this.step ?? 0);
    });
  }

  /** Mark a step (may lie between two) without asking Plotly. */
  place(step) {
    this.step = step;
    if (!this.ready) return;
    const { xaxis, yaxis } = this.gd._fullLayout;
    const x = xaxis._offset + ((step - xaxis.range[0]) / (xaxis.range[1] - xaxis.range[0])) * xaxis._length;
    const where = `translate(${x.toFixed(1)}px, ${yaxis._offset}px) scaleY(${yaxis._length})`;
    if (where !== this.where) this.head.style.transform = this.where = where;
  }

  resize(w, h) {
    this.size = { w, h };
  }

  destroy() {
    if (this.ready) this.Plotly.purge(this.gd);
  }
}
