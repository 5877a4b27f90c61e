// The orbit camera of 3-D views. Pure.

/** Looks at the middle of a box from `yaw`, `pitch`; z points up on the screen. */
export class Camera {
  constructor() {
    this.reset();
    this.center = [0, 0, 0];
    this.radius = 1;
  }

  reset() {
    this.yaw = -0.65;
    this.pitch = 0.42;
    this.zoom = 1;
    this.pan = [0, 0]; // in units of the view's smaller half
  }

  /** Frame a box [[x0, y0, z0], [x1, y1, z1]]. */
  look(low, high) {
    this.center = low.map((v, j) => (v + high[j]) / 2);
    this.radius = Math.max(1e-12, Math.hypot(...low.map((v, j) => high[j] - v)) / 2);
  }

  /** Drag by so many pixels; `size` is the smaller side of the view. */
  rotate(dx, dy, size) {
    this.yaw -= (dx / size) * Math.PI;
    const most = Math.PI / 2 - 0.01;
    this.pitch = Math.min(most, Math.max(-most, this.pitch + (dy / size) * Math.PI));
  }

  move(dx, dy, size) {
    this.pan = [this.pan[0] + (2 * dx) / size, this.pan[1] + (2 * dy) / size];
  }

  /** Wheel: positive moves away. */
  wheel(delta) {
    this.zoom = Math.min(40, Math.max(0.1, this.zoom * Math.exp(-delta * 0.0015)));
  }

  /** Numbers of the projection for a view of w x h pixels. */
  lens(w, h) {
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const half = Math.min(w, h) / 2;
    return {
      right: [cy, sy, 0],
      up: [-sy * sp, cy * sp, cp],
      back: [sy * cp, -cy * cp, sp], // from the center towards the eye
      distance: 3.4,
      scale: half * 0.92 * 3.4 * this.zoom,
      x: w / 2 + this.pan[0] * half,
      y: h / 2 + this.pan[1] * half,
      center: this.center,
      radius: this.radius,
    };
  }
}

/** Screen x, y, and depth (1 nearest, -1 farthest of the box) and size factor of a point. */
export function project(lens, px, py, pz) {
  const x = (px - lens.center[0]) / lens.radius;
  const y = (py - lens.center[1]) / lens.radius;
  const z = (pz - lens.center[2]) / lens.radius;
  const depth = x * lens.back[0] + y * lens.back[1] + z * lens.back[2];
  const f = 1 / Math.max(0.05, lens.distance - depth);
  const sx = lens.x + (x * lens.right[0] + y * lens.right[1] + z * lens.right[2]) * f * lens.scale;
  const sy = lens.y - (x * lens.up[0] + y * lens.up[1] + z * lens.up[2]) * f * lens.scale;
  return [sx, sy, depth, f * lens.distance];
}

/** Round numbers that divide [low, high] into about `count` parts. */
export function ticks(low, high, count = 5) {
  const span = high - low;
  if (!(span > 0) || !isFinite(span)) return [low];
  const raw = span / count;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i === 0 ? 0 : i * step);
  return found;
}

/** A tick as text, without the noise of binary fractions. */
export function tickText(value) {
  if (value === 0) return "0";
  const a = Math.abs(value);
  return a >= 1e5 || a < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(6)));
}
