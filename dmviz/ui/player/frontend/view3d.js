// Space: an orbit camera and an axes box that we draw ourselves.

import { Camera, project, ticks, tickText } from "./camera.js";
import { css, mix, rgb } from "./palette.js";

export class View3D {
  constructor(changed, camera = new Camera()) {
    this.camera = camera;
    this.changed = changed;
    this.dims = 3;
    this.ready = true;
    this.axes = ["x", "y", "z"];
    this.low = [-1, -1, -1];
    this.high = [1, 1, 1];
    this.size = { w: 1, h: 1 };
  }

  setHome(low, high) {
    const side = Math.max(...low.map((v, j) => high[j] - v), 1e-9);
    this.low = low.map((v, j) => v - 0.04 * (high[j] - v) - 0.02 * side);
    this.high = high.map((v, j) => v + 0.04 * (v - low[j]) + 0.02 * side);
    this.camera.look(this.low, this.high);
  }

  goHome() {
    this.camera.reset();
    this.changed();
  }

  /** Frame these points, keeping the direction of view. */
  goTo(low, high) {
    this.camera.look(low, high);
    [this.camera.zoom, this.camera.pan] = [1, [0, 0]];
    this.changed();
  }

  setAxes(axes) {
    this.axes = axes;
  }

  /** A drag of dx, dy CSS pixels in a view whose smaller side is `size`: turn, or move. */
  drag(dx, dy, size, move) {
    if (move) this.camera.move(dx, dy, size);
    else this.camera.rotate(dx, dy, size);
  }

  wheel(deltaY) {
    this.camera.wheel(deltaY);
  }

  resize(w, h) {
    this.size = { w, h };
    this.changed();
  }

  rect() {
    return { x: 0, y: 0, ...this.size };
  }

  range() {
    const { yaw, pitch, zoom, pan } = this.camera;
    return [[yaw, pitch], [zoom, ...pan]];
  }

  /** Did someone turn, zoom or pan? */
  moved() {
    const { yaw, pitch, zoom, pan } = this.camera;
    const rest = new Camera();
    return String([yaw, pitch, zoom, pan]) !== String([rest.yaw, rest.pitch, rest.zoom, rest.pan]);
  }

  /** Is this box inside ours, without being far smaller? */
  holds(low, high) {
    const inside = low.every((v, j) => v >= this.low[j] && high[j] <= this.high[j]);
    return inside && low.some((v, j) => high[j] - v > 0.4 * (this.high[j] - this.low[j]));
  }

  signature() {
    const c = this.camera;
    return `${c.yaw}/${c.pitch}/${c.zoom}/${c.pan}/${c.center}/${c.radius}/${this.size.w}/${this.size.h}`;
  }

  toScreen(x, n, out, w, h) {
    const lens = this.camera.lens(w, h);
    const { right: r, up: u, back: b, center: c } = lens;
    const unit = 1 / lens.radius;
    for (let i = 0; i < n; i++) {
      const px = (x[3 * i] - c[0]) * unit;
      const py = (x[3 * i + 1] - c[1]) * unit;
      const pz = (x[3 * i + 2] - c[2]) * unit;
      const depth = px * b[0] + py * b[1] + pz * b[2];
      const f = lens.scale / Math.max(0.05, lens.distance - depth);
      out[3 * i] = lens.x + (px * r[0] + py * r[1] + pz * r[2]) * f;
      out[3 * i + 1] = lens.y - (px * u[0] + py * u[1] + pz * u[2]) * f;
      out[3 * i + 2] = depth;
    }
    return out;
  }

  hide() {}
  retheme() {}
  destroy() {}

  /** The three walls behind the points, their grid, and labelled edges. */
  drawBox(context, w, h, dpr, theme) {
    const lens = this.camera.lens(w, h);
    const at = (p) => project(lens, ...p);
    const line = css(mix(rgb(theme.background), rgb(theme.text), theme.dark ? 0.2 : 0.14));
    const wall = css(rgb(theme.text), theme.dark ? 0.03 : 0.02);
    const marks = [0, 1, 2].map((j) => ticks(this.low[j], this.high[j], 4));
    // A wall is seen from inside when its outward normal points away from the eye.
    const away = [0, 1, 2].map((j) => (lens.back[j] > 0 ? this.low[j] : this.high[j]));
    context.lineWidth = dpr;
    for (let j = 0; j < 3; j++) this.drawWall(context, at, j, away[j], marks, line, wall);
    context.font = `${11 * dpr}px ${theme.font}`;
    context.fillStyle = css(rgb(theme.text), 0.75);
    for (let j = 0; j < 3; j++) this.drawLabels(context, at, j, away, marks[j], dpr);
  }

  drawWall(context, at, j, value, marks, line, wall) {
    const [a, b] = [0, 1, 2].filter((i) => i !== j);
    const point = (u, v) => {
      const p = [0, 0, 0];
      [p[j], p[a], p[b]] = [value, u, v];
      return at(p);
    };
    const [la, ha, lb, hb] = [this.low[a], this.high[a], this.low[b], this.high[b]];
    const corners = [[la, lb], [ha, lb], [ha, hb], [la, hb]].map(([u, v]) => point(u, v));
    context.beginPath();
    corners.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = wall;
    context.fill();
    context.strokeStyle = line;
    for (const u of marks[a]) segment(context, point(u, lb), point(u, hb));
    for (const v of marks[b]) segment(context, point(la, v), point(ha, v));
    context.stroke();
  }

  /** Ticks along the outline edge of axis j: one wall is seen, its neighbour is not. */
  drawLabels(context, at, j, away, marks, dpr) {
    const [a, b] = [0, 1, 2].filter((i) => i !== j);
    const near = (i) => (away[i] === this.low[i] ? this.high[i] : this.low[i]);
    const edges = [[away[a], near(b)], [near(a), away[b]]].map(([u, v]) => (t) => {
      const p = [0, 0, 0];
      [p[j], p[a], p[b]] = [t, u, v];
      return at(p);
    });
    const middle = (this.low[j] + this.high[j]) / 2;
    const rank = j === 2 ? (e) => -e(middle)[0] : (e) => e(middle)[1]; // z on the left, x and y below
    const edge = rank(edges[0]) > rank(edges[1]) ? edges[0] : edges[1];
    const [cx, cy] = at([0, 1, 2].map((i) => (this.low[i] + this.high[i]) / 2));
    const [mx, my] = edge(middle);
    const length = Math.hypot(mx - cx, my - cy) || 1;
    const [ox, oy] = [(mx - cx) / length, (my - cy) / length];
    context.textBaseline = "middle";
    context.textAlign = Math.abs(ox) < 0.35 ? "center" : ox > 0 ? "left" : "right";
    for (const t of marks) {
      const [x, y] = edge(t);
      context.fillText(tickText(t), x + ox * 8 * dpr, y + oy * 11 * dpr);
    }
    context.textAlign = "center";
    context.fillText(this.axes[j] ?? "xyz"[j], mx + ox * 38 * dpr, my + oy * 32 * dpr);
  }
}

function segment(context, [x0, y0], [x1, y1]) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}
