// The plane without Plotly: axes of our own and one range for any number of views, which so move as one.

import { ticks, tickText } from "./camera.js";
import { css, mix, rgb } from "./palette.js";

const [NEAREST, FARTHEST] = [400, 0.05]; // zoom, as a multiple of home

/** What views of one plane share: a middle, a zoom, and the box that zoom 1 shows whole. */
export class Plane {
  constructor() {
    this.home = null;
    [this.middle, this.zoom] = [[0, 0], 1];
  }

  setHome(low, high) {
    this.home = boxAround(low, high);
  }

  goHome() {
    this.middle = [...this.home.middle];
    this.zoom = 1;
  }

  /** Show a box whole, whatever the home is. */
  goTo(low, high) {
    const box = boxAround(low, high);
    this.middle = [...box.middle];
    this.zoom = clamp(Math.min(this.home.size[0] / box.size[0], this.home.size[1] / box.size[1]));
  }

  /** Pixels of a unit of length in a view of w x h pixels; the same along both axes. */
  scale(w, h) {
    return this.zoom * Math.min(w / this.home.size[0], h / this.home.size[1]);
  }

  /** The part of the plane that a view of w x h pixels shows. */
  range(w, h) {
    const s = this.scale(w, h);
    return [w, h].map((side, j) => [this.middle[j] - side / (2 * s), this.middle[j] + side / (2 * s)]);
  }

  /** Zoom by a factor; what is under x, y (pixels of a view of w x h) stays there. */
  zoomBy(factor, x, y, w, h) {
    const before = this.scale(w, h);
    const at = [this.middle[0] + (x - w / 2) / before, this.middle[1] - (y - h / 2) / before];
    this.zoom = clamp(this.zoom * factor);
    const after = this.scale(w, h);
    this.middle = [at[0] - (x - w / 2) / after, at[1] + (y - h / 2) / after];
  }

  move(dx, dy, w, h) {
    const s = this.scale(w, h);
    this.middle = [this.middle[0] - dx / s, this.middle[1] + dy / s];
  }

  moved() {
    return this.home !== null && (this.zoom !== 1 || String(this.middle) !== String(this.home.middle));
  }
}

const clamp = (zoom) => Math.min(NEAREST, Math.max(FARTHEST, zoom));

/** Middle and size of a box with some room around it. */
function boxAround(low, high) {
  const side = Math.max(high[0] - low[0], high[1] - low[1], 1e-9);
  const size = [0, 1].map((j) => 1.12 * (high[j] - low[j]) + 0.06 * side);
  return { middle: [0, 1].map((j) => (low[j] + high[j]) / 2), size };
}

/** One window on a plane; speaks as View2D does. */
export class FlatView {
  constructor(plane, changed) {
    [this.plane, this.changed] = [plane, changed];
    this.dims = 2;
    this.ready = true;
    this.axes = ["x", "y"];
    this.size = { w: 1, h: 1 };
  }

  show(theme, axes, w, h) {
    this.axes = axes;
    this.size = { w, h };
    if (!this.plane.shown) this.plane.goHome();
    this.plane.shown = true;
  }

  setHome(low, high) {
    this.plane.setHome(low, high);
  }

  goHome() {
    this.plane.goHome();
    this.changed();
  }

  goTo(low, high) {
    this.plane.goTo(low, high);
    this.changed();
  }

  setAxes(axes) {
    this.axes = axes;
  }

  retheme() {}

  resize(w, h) {
    this.size = { w, h };
    this.changed();
  }

  rect() {
    return { x: 0, y: 0, ...this.size };
  }

  range() {
    return this.plane.range(this.size.w, this.size.h);
  }

  moved() {
    return this.plane.moved();
  }

  /** Does the range on screen hold this box, without being far too wide? */
  holds(low, high) {
    const range = this.range();
    const inside = [0, 1].every((j) => low[j] >= range[j][0] && high[j] <= range[j][1]);
    return inside && [0, 1].some((j) => high[j] - low[j] > 0.4 * (range[j][1] - range[j][0]));
  }

  signature() {
    return `${this.plane.middle}/${this.plane.zoom}/${this.plane.home.size}/${this.size.w}/${this.size.h}`;
  }

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

  toData(px, py) {
    const [[x0, x1], [y0, y1]] = this.range();
    return [x0 + (px / this.size.w) * (x1 - x0), y1 - (py / this.size.h) * (y1 - y0)];
  }

  drag(dx, dy) {
    this.plane.move(dx, dy, this.size.w, this.size.h);
    this.changed();
  }

  wheel(deltaY, x, y) {
    this.plane.zoomBy(Math.exp(-deltaY * 0.0015), x, y, this.size.w, this.size.h);
    this.changed();
  }

  /** Grid, its numbers along the lower and left edge, and the titles of the axes at their ends. */
  drawBox(context, w, h, dpr, theme) {
    const [[x0, x1], [y0, y1]] = this.range();
    const [across, up] = [ticks(x0, x1, this.size.w / 55), ticks(y0, y1, this.size.h / 45)];
    const place = { x: (v) => ((v - x0) / (x1 - x0)) * w, y: (v) => ((y1 - v) / (y1 - y0)) * h };
    context.lineWidth = dpr;
    context.strokeStyle = css(mix(rgb(theme.background), rgb(theme.text), theme.dark ? 0.16 : 0.1));
    context.beginPath();
    for (const v of across) line(context, place.x(v), 0, place.x(v), h);
    for (const v of up) line(context, 0, place.y(v), w, place.y(v));
    context.stroke();
    context.font = `${10 * dpr}px ${theme.font}`;
    context.fillStyle = css(rgb(theme.text), 0.75);
    const room = 26 * dpr; // the corners belong to the titles
    context.textAlign = "center";
    context.textBaseline = "bottom";
    for (const v of across) if (inside(place.x(v), w, room)) context.fillText(tickText(v), place.x(v), h - 2 * dpr);
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const v of up) if (inside(place.y(v), h, room)) context.fillText(tickText(v), 4 * dpr, place.y(v));
    context.textBaseline = "bottom";
    context.textAlign = "right";
    context.fillText(this.axes[0] ?? "x", w - 5 * dpr, h - 2 * dpr);
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText(this.axes[1] ?? "y", 4 * dpr, 4 * dpr);
  }

  destroy() {}
}

const inside = (at, side, room) => at > room && at < side - room;

function line(context, x0, y0, x1, y1) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}
