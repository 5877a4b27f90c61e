// The plane: Plotly draws axes, grid, zoom and pan; we read its ranges and draw above its plot area.

import { css, mix, rgb } from "./palette.js";

const FIT = {
  width: 1000, height: 1000,
  path: "M100 100h280v90H190v190h-90zM620 100h280v280h-90V190H620zM100 620h90v190h190v90H100zM810 620h90v280H620v-90h190zM400 400h200v200H400z",
};

export class View2D {
  /** @param {HTMLElement} host @param {any} Plotly @param {() => void} changed called when the mapping may have changed */
  constructor(host, Plotly, changed, fit) {
    this.Plotly = Plotly;
    this.gd = document.createElement("div");
    this.gd.className = "dmv-axes";
    host.append(this.gd);
    this.changed = changed;
    this.fit = fit;
    this.dims = 2;
    this.ready = false;
    this.home = [[-1, 1], [-1, 1]];
  }

  layout(theme, axes) {
    const grid = css(mix(rgb(theme.background), rgb(theme.text), theme.dark ? 0.16 : 0.1));
    const soft = css(rgb(theme.text), 0.75);
    const axis = {
      gridcolor: grid, zeroline: false, linecolor: grid, mirror: true, showline: true, ticks: "", automargin: false,
      tickfont: { color: soft, size: 11 }, nticks: 8, fixedrange: false, hoverformat: ".4~g",
    };
    const title = (text) => ({ text, font: { size: 12, color: soft }, standoff: 6 });
    return {
      font: { family: theme.font }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 46, r: 10, t: 30, b: 40, pad: 0 }, showlegend: false, hovermode: false, dragmode: "pan",
      xaxis: { ...axis, title: title(axes[0] ?? "x") },
      yaxis: { ...axis, title: title(axes[1] ?? "y"), scaleanchor: "x", scaleratio: 1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css(rgb(theme.text), 0.45), activecolor: css(rgb(theme.text), 0.9) },
      autosize: false,
    };
  }

  async show(theme, axes, w, h) {
    [this.theme, this.axes] = [theme, axes];
    const layout = { ...this.layout(theme, axes), width: w, height: h };
    layout.xaxis.range = [...this.home[0]];
    layout.yaxis.range = [...this.home[1]];
    const trace = { x: [null], y: [null], type: "scatter", mode: "markers", hoverinfo: "skip" };
    const config = {
      scrollZoom: true, displaylogo: false, responsive: false, displayModeBar: true, doubleClick: "reset",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage", "sendChartToCloud", "hoverClosestCartesian", "toggleHover"],
      modeBarButtonsToAdd: [{ name: "Fit to the points on screen", icon: FIT, click: () => this.fit() }],
    };
    await this.Plotly.newPlot(this.gd, [trace], layout, config);
    this.ready = true;
    for (const event of ["plotly_relayout", "plotly_relayouting", "plotly_afterplot"]) this.gd.on(event, this.changed);
    this.rest = String(this.range());
    this.changed();
  }

  /** The range that a reset goes back to. */
  setHome(low, high) {
    const side = Math.max(high[0] - low[0], high[1] - low[1], 1e-9);
    this.home = [0, 1].map((j) => {
      const pad = 0.06 * (high[j] - low[j]) + 0.03 * side;
      return [low[j] - pad, high[j] + pad];
    });
  }

  /** Go to a range; it becomes the one that double click and "reset axes" return to. */
  async goHome() {
    if (!this.ready) return;
    const { xaxis, yaxis } = this.gd._fullLayout;
    await this.Plotly.relayout(this.gd, { "xaxis.range": [...this.home[0]], "yaxis.range": [...this.home[1]] });
    xaxis._rangeInitial0 = this.gd._fullLayout.xaxis.range[0];
    xaxis._rangeInitial1 = this.gd._fullLayout.xaxis.range[1];
    yaxis._rangeInitial0 = this.gd._fullLayout.yaxis.range[0];
    yaxis._rangeInitial1 = this.gd._fullLayout.yaxis.range[1];
    this.rest = String(this.range());
  }

  async goTo(low, high) {
    const home = this.home;
    this.setHome(low, high);
    const [x, y] = this.home;
    this.home = home;
    await this.Plotly.relayout(this.gd, { "xaxis.range": x, "yaxis.range": y });
  }

  async setAxes(axes) {
    if (!this.ready || (axes[0] === this.axes[0] && axes[1] === this.axes[1])) return;
    this.axes = axes;
    await this.Plotly.relayout(this.gd, { "xaxis.title.text": axes[0] ?? "x", "yaxis.title.text": axes[1] ?? "y" });
  }

  async retheme(theme) {
    this.theme = theme;
    if (!this.ready) return;
    const fresh = this.layout(theme, this.axes);
    const change = { "font.family": theme.font, "modebar.color": fresh.modebar.color };
    change["modebar.activecolor"] = fresh.modebar.activecolor;
    for (const axis of ["xaxis", "yaxis"]) {
      for (const name of ["gridcolor", "linecolor", "tickfont.color"]) {
        change[`${axis}.${name}`] = name === "tickfont.color" ? fresh[axis].tickfont.color : fresh[axis][name];
      }
      change[`${axis}.title.font.color`] = fresh[axis].title.font.color;
    }
    await this.Plotly.relayout(this.gd, change);
  }

  async resize(w, h) {
    if (!this.ready) return;
    const { width, height } = this.gd._fullLayout;
    if (width === w && height === h) return;
    const moved = this.moved();
    await this.Plotly.relayout(this.gd, { width: w, height: h });
    if (!moved) await this.goHome();
  }

  /** Place of the plot area in the host, CSS pixels. */
  rect() {
    const { xaxis, yaxis } = this.gd._fullLayout;
    return { x: xaxis._offset, y: yaxis._offset, w: xaxis._length, h: yaxis._length };
  }

  range() {
    const { xaxis, yaxis } = this.gd._fullLayout;
    return [[...xaxis.range].map(Number), [...yaxis.range].map(Number)];
  }

  /** Did someone zoom or pan? */
  moved() {
    return this.ready && String(this.range()) !== this.rest;
  }

  /** Does the range on screen hold this box, without being far too wide? */
  holds(low, high) {
    if (!this.ready) return false;
    const range = this.range();
    const inside = [0, 1].every((j) => low[j] >= range[j][0] && high[j] <= range[j][1]);
    return inside && [0, 1].some((j) => high[j] - low[j] > 0.4 * (range[j][1] - range[j][0]));
  }

  /** Text that changes whenever a point would land elsewhere. */
  signature() {
    const { xaxis, yaxis } = this.gd._fullLayout;
    return `${xaxis.range}/${yaxis.range}/${xaxis._offset}/${yaxis._offset}/${xaxis._length}/${yaxis._length}`;
  }

  /** Screen x, y, 0 (device pixels of the plot area) of n points. */
  toScreen(x, n, out, w, h) {
    const [[x0, x1], [y0, y1]] = this.range();
    const [sx, sy] = [w / (x1 - x0), h / (y1 - y0)];
    for (let i = 0; i < n; i++) {
      out[3 * i] = (x[2 * i] - x0) * sx;
      out[3 * i + 1] = (y1 - x[2 * i + 1]) * sy;
      out[3 * i + 2] = 0;
    }
    return out;
  }

  /** Data coordinates of a place in the plot area, CSS pixels. */
  toData(px, py) {
    const [[x0, x1], [y0, y1]] = this.range();
    const { w, h } = this.rect();
    return [x0 + (px / w) * (x1 - x0), y1 - (py / h) * (y1 - y0)];
  }

  hide(hidden) {
    this.gd.style.display = hidden ? "none" : "";
  }

  destroy() {
    if (this.ready) this.Plotly.purge(this.gd);
    this.gd.remove();
  }
}
