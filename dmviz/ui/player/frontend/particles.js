// What is drawn in the view: discs, trails, arrows. Works on screen coordinates; knows neither Plotly nor cameras.

import { Sprite } from "./raster.js";
import { css, mix, rgb, scale } from "./palette.js";

const STEPS = 64; // colours along a scale
const SIZES = 12; // sprite sizes: along depth in 3-D, along weight in 2-D
const PLAIN = 4; // the size of a particle of mean weight in 2-D
export const ARROWS = 400;
const MOST_SEGMENTS = 45000;

/** Radius in CSS pixels that suits n points in a view whose smaller side is `side` CSS pixels. */
export function radiusFor(n, side) {
  return Math.max(1.05, Math.min(4.4, 4.4 * (400 / Math.max(n, 1)) ** 0.3) * Math.min(1.1, Math.max(0.7, side / 460)));
}

/** Radius of a size in 2-D, as a multiple of that of mean weight. */
const grown = (size) => 0.4 + 0.15 * size;

/** Sizes whose areas are as the weights, within the sizes there are; null where all weigh the same. */
export function weightSizes(weights) {
  if (!weights?.length) return null;
  const mean = weights.reduce((a, b) => a + b, 0) / weights.length;
  const size = (weight) => Math.round((Math.sqrt(Math.max(0, weight) / mean) - 0.4) / 0.15); // the inverse of `grown`
  const sizes = Uint8Array.from(weights, (weight) => Math.max(0, Math.min(SIZES - 1, size(weight))));
  return sizes.every((s) => s === PLAIN) ? null : sizes;
}

/** Opacity that suits n points: many of them show their density and the target below. */
export function alphaFor(n) {
  return n <= 5000 ? 1 : Math.max(0.22, (5000 / n) ** 0.45);
}

/** Sprites of every colour and depth for one look; made again when theme, number of points or pixel ratio change. */
export class Look {
  constructor(theme, n, dpr, dims, side) {
    this.theme = theme;
    this.radius = radiusFor(n, side) * dpr;
    this.alpha = alphaFor(n);
    this.background = rgb(theme.background);
    this.rim = this.radius >= 2.4 && n <= 6000 ? this.background : null;
    this.dims = dims;
    this.colors = {
      plain: [rgb(theme.particles)],
      label: [...theme.labels, theme.none].map(rgb), // the last one: label missing
      time: scale(theme.time, STEPS),
      speed: scale(theme.speed, STEPS),
    };
    this.sprites = { target: [], plain: [], label: [], time: [], speed: [] };
  }

  /** Sprite of colour `index` in `mode`; `size` 0..SIZES-1 is depth in 3-D (last = nearest), weight in 2-D. */
  sprite(mode, index, size) {
    const shelf = this.sprites[mode];
    let found = shelf[index * SIZES + size];
    if (!found) {
      const t = this.dims === 3 ? size / (SIZES - 1) : 1;
      const fade = this.dims === 3 ? 0.45 * (1 - t) : 0; // far points sink into the background
      const color = mix(this.colors[mode][index], this.background, fade);
      const radius = this.dims === 3 ? this.radius * (0.6 + 0.75 * t) : this.radius * grown(size);
      found = new Sprite(radius, color, this.alpha, this.rim);
      shelf[index * SIZES + size] = found;
    }
    return found;
  }

  /** The same for the target: smaller, quiet. */
  targetSprite(size) {
    let found = this.sprites.target[size];
    if (!found) {
      const t = this.dims === 3 ? size / (SIZES - 1) : 1;
      const radius = this.radius * (this.dims === 3 ? 0.5 + 0.5 * t : 0.82 * grown(size));
      found = new Sprite(radius, rgb(this.theme.target), this.dims === 3 ? 0.25 + 0.3 * t : 0.5);
      this.sprites.target[size] = found;
    }
    return found;
  }
}

/** Colour index of each particle, or one number for all. */
export function colorIndex(mode, { labels, speeds, speedMax, progress }, look) {
  if (mode === "label" && labels) {
    const count = look.colors.label.length - 1;
    return (i) => (labels[i] < 0 ? count : labels[i] % count);
  }
  if (mode === "speed" && speeds) {
    const unit = speedMax > 0 ? 1 / speedMax : 0;
    return (i) => Math.min(STEPS - 1, Math.sqrt(Math.max(0, speeds[i] * unit)) * (STEPS - 1)) | 0;
  }
  if (mode === "time") {
    const index = Math.min(STEPS - 1, Math.max(0, progress * (STEPS - 1))) | 0;
    return () => index;
  }
  return () => 0;
}

/** The mode that can be drawn now: label and speed need their data. */
export function usable(mode, { labels, speeds }) {
  if ((mode === "label" && !labels) || (mode === "speed" && !speeds)) return "plain";
  return mode;
}

const depthSize = (depth) => Math.max(0, Math.min(SIZES - 1, ((depth + 1) / 2) * SIZES)) | 0;

/** Far points first: a counting sort of depths into 256 shelves. */
export function farFirst(screen, n, order) {
  const counts = new Uint32Array(257);
  const shelf = (i) => Math.max(0, Math.min(255, ((screen[3 * i + 2] + 1) / 2) * 256)) | 0;
  for (let i = 0; i < n; i++) counts[shelf(i) + 1]++;
  for (let c = 0; c < 256; c++) counts[c + 1] += counts[c];
  for (let i = 0; i < n; i++) order[counts[shelf(i)]++] = i;
  return order;
}

/** Draw the discs; screen is [x, y, depth] per particle in device pixels, sizes those of the weights in 2-D. */
export function drawDiscs(raster, screen, n, look, mode, index, order, sizes = null) {
  const flat = look.dims === 2;
  for (let j = 0; j < n; j++) {
    const i = order ? order[j] : j;
    const size = flat ? (sizes ? sizes[i] : PLAIN) : depthSize(screen[3 * i + 2]);
    raster.stamp(look.sprite(mode, index(i), size), screen[3 * i], screen[3 * i + 1]);
  }
}

export function drawTarget(raster, screen, n, look, sizes = null) {
  const flat = look.dims === 2;
  for (let i = 0; i < n; i++) {
    const size = flat ? (sizes ? sizes[i] : PLAIN) : depthSize(screen[3 * i + 2]);
    raster.stamp(look.targetSprite(size), screen[3 * i], screen[3 * i + 1]);
  }
}

/** Which frames a trail goes through, newest first, and which particles have one. */
export function trailPlan(kind, k, n) {
  const length = kind === "long" ? 60 : 12;
  const stride = kind === "long" ? 3 : 1;
  const frames = [];
  for (let f = k; f >= 0 && f >= k - length; f -= stride) frames.push(f);
  const every = Math.max(1, Math.ceil((n * Math.max(1, frames.length - 1)) / MOST_SEGMENTS));
  return { frames, every, length };
}

/** Segments between two screens of the same particles; `fade` 1 is new, 0 is old. */
export function drawSegment(raster, a, b, n, every, colorOf, alpha, wide) {
  for (let i = 0; i < n; i += every) {
    raster.line(a[3 * i], a[3 * i + 1], b[3 * i], b[3 * i + 1], colorOf(i), alpha, wide);
  }
}

/** A scale 1, 2 or 5 x 10^k so that a long arrow is about `wish` pixels; the old one stays while it is fair. */
export function arrowScale(lengths, old, wish) {
  const sorted = Float64Array.from(lengths).filter(Number.isFinite).sort();
  const long = sorted[Math.floor(sorted.length * 0.9)] ?? 0;
  if (!(long > 0)) return old;
  const raw = wish / long;
  if (old > 0 && raw / old < 3 && raw / old > 0.4) return old;
  const base = 10 ** Math.floor(Math.log10(raw));
  return [5, 2, 1].map((m) => m * base).find((s) => s <= raw) ?? base;
}

/** Arrows from tails to tips, one path, one stroke. */
export function drawArrows(context, tails, tips, count, theme, dpr) {
  const head = 4.5 * dpr;
  for (const [color, width] of [[css(rgb(theme.background), 0.7), 2.8], [css(rgb(theme.arrow), 0.85), 1.1]]) {
    context.strokeStyle = color;
    context.lineWidth = width * dpr;
    context.lineCap = "round";
    context.beginPath();
    for (let i = 0; i < count; i++) {
      const [x0, y0, x1, y1] = [tails[2 * i], tails[2 * i + 1], tips[2 * i], tips[2 * i + 1]];
      const length = Math.hypot(x1 - x0, y1 - y0);
      if (!(length > 1.5 * dpr) || length > 1e5) continue;
      const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
      const h = Math.min(head, length * 0.5);
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.moveTo(x1 - h * (ux + 0.5 * uy), y1 - h * (uy - 0.5 * ux));
      context.lineTo(x1, y1);
      context.lineTo(x1 - h * (ux - 0.5 * uy), y1 - h * (uy + 0.5 * ux));
    }
    context.stroke();
  }
}

/** Index of the particle nearest to a place on screen within `reach`, or -1. */
export function nearest(screen, n, x, y, reach) {
  let [best, found] = [reach * reach, -1];
  for (let i = 0; i < n; i++) {
    const d = (screen[3 * i] - x) ** 2 + (screen[3 * i + 1] - y) ** 2;
    if (d < best || (d === best && found >= 0 && screen[3 * i + 2] > screen[3 * found + 2])) [best, found] = [d, i];
  }
  return found;
}

/** Evenly spaced particles that carry an arrow, as Python chose them. */
export function arrowIndex(n) {
  const count = Math.min(n, ARROWS);
  return Int32Array.from({ length: count }, (_, i) => Math.floor((i * n) / count));
}
