// Particles drawn straight into pixels: at ten thousand points this is several times faster than any path or chart call.

/** [r, g, b] and alpha 0..255 as one pixel, a signed 32-bit number: those stay out of the heap (browsers run on little-endian machines only). */
export function pixel([r, g, b], alpha) {
  const [R, G, B, A] = [r, g, b, alpha].map((v) => Math.max(0, Math.min(255, Math.round(v))));
  return (A << 24) | (B << 16) | (G << 8) | R;
}

/** Straight-alpha "source over destination" of two pixels. */
export function over(s, d) {
  const sa = s >>> 24;
  const da = d >>> 24;
  if (da === 0 || sa === 255) return s;
  if (da === 255) {
    // The common case, two channels at a time. x + (x >> 8) + 1 would round exactly; an error of 1 is not seen.
    const rb = (Math.imul(s & 0xff00ff, sa) + Math.imul(d & 0xff00ff, 255 - sa) + 0x800080) >>> 8;
    const g = (Math.imul((s >>> 8) & 0xff, sa) + Math.imul((d >>> 8) & 0xff, 255 - sa) + 0x80) >>> 8;
    return (255 << 24) | (rb & 0xff00ff) | ((g & 0xff) << 8);
  }
  const t = (da * (255 - sa)) / 255;
  const a = sa + t;
  const r = ((s & 255) * sa + (d & 255) * t) / a;
  const g = (((s >>> 8) & 255) * sa + ((d >>> 8) & 255) * t) / a;
  const b = (((s >>> 16) & 255) * sa + ((d >>> 16) & 255) * t) / a;
  return ((a + 0.5) << 24) | ((b + 0.5) << 16) | ((g + 0.5) << 8) | (r + 0.5);
}

const SUB = 4; // sprites exist for a 4 x 4 grid of positions inside a pixel

/** A disc of one colour, at each place inside a pixel: offsets and pixels. */
export class Sprite {
  /**
   * @param {number} radius device pixels
   * @param {number[]} fill @param {number[] | null} rim colour of a thin outline that parts touching discs
   */
  constructor(radius, fill, alpha = 1, rim = null) {
    this.reach = Math.ceil(radius + 1.5);
    this.versions = [];
    for (let v = 0; v < SUB * SUB; v++) {
      const cx = ((v % SUB) + 0.5) / SUB;
      const cy = (Math.floor(v / SUB) + 0.5) / SUB;
      this.versions.push(disc(radius, cx, cy, this.reach, fill, alpha, rim));
    }
  }
}

function disc(radius, cx, cy, reach, fill, alpha, rim) {
  const [dx, dy, px, core] = [[], [], [], []];
  const outer = rim ? radius + 0.9 : radius;
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const r = Math.hypot(x + 0.5 - cx, y + 0.5 - cy);
      const cover = Math.max(0, Math.min(1, outer - r + 0.5));
      if (cover <= 0.02) continue;
      const inner = rim ? Math.max(0, Math.min(1, radius - 0.2 - r + 0.5)) : 1;
      const color = rim ? fill.map((f, i) => rim[i] + (f - rim[i]) * inner) : fill;
      const strength = rim ? inner + (1 - inner) * 0.55 : 1;
      const value = pixel(color, 255 * cover * alpha * strength);
      if (value >>> 24 === 255) {
        core.push(x, y, value);
        continue;
      }
      dx.push(x);
      dy.push(y);
      px.push(value);
    }
  }
  const soft = dx.length; // pixels that blend come first, pixels that hide what is below follow
  for (let i = 0; i < core.length; i += 3) dx.push(core[i]), dy.push(core[i + 1]), px.push(core[i + 2]);
  return { dx: Int16Array.from(dx), dy: Int16Array.from(dy), px: Int32Array.from(px), soft, width: 0, at: new Int32Array(px.length) };
}

/** Offsets of a version's pixels in an image `w` wide. */
function offsets(version, w) {
  if (version.width !== w) {
    version.width = w;
    for (let j = 0; j < version.at.length; j++) version.at[j] = version.dy[j] * w + version.dx[j];
  }
  return version.at;
}

/** An image of w x h device pixels on a canvas. */
export class Raster {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.resize(1, 1);
  }

  resize(w, h) {
    if (this.w === w && this.h === h) return;
    [this.w, this.h] = [w, h];
    this.canvas.width = w;
    this.canvas.height = h;
    this.image = this.context.createImageData(w, h);
    this.data = new Int32Array(this.image.data.buffer);
  }

  clear() {
    this.data.fill(0);
  }

  show() {
    this.context.putImageData(this.image, 0, 0);
  }

  /** Stamp a sprite at x, y (device pixels). */
  stamp(sprite, x, y) {
    const ix = Math.floor(x);
    const iy = Math.floor(y);
    const { w, h, data } = this;
    const reach = sprite.reach;
    if (!(ix >= -reach && iy >= -reach && ix < w + reach && iy < h + reach)) return; // also NaN
    const version = sprite.versions[((y - iy) * SUB | 0) * SUB + ((x - ix) * SUB | 0)];
    const { dx, dy, px, soft } = version;
    if (ix >= reach && iy >= reach && ix < w - reach && iy < h - reach) {
      const at = offsets(version, w);
      const middle = iy * w + ix;
      for (let j = 0; j < soft; j++) {
        const k = middle + at[j];
        const d = data[k];
        data[k] = d === 0 ? px[j] : over(px[j], d);
      }
      for (let j = soft; j < px.length; j++) data[middle + at[j]] = px[j];
      return;
    }
    for (let j = 0; j < px.length; j++) {
      const ax = ix + dx[j];
      const ay = iy + dy[j];
      if (ax < 0 || ay < 0 || ax >= w || ay >= h) continue;
      data[ay * w + ax] = over(px[j], data[ay * w + ax]);
    }
  }

  /** A line with soft edges, one pixel thin or two pixels `wide`; `color` is [r, g, b], alpha 0..1. Long jumps are cut at 3,000 pixels. */
  line(x0, y0, x1, y1, color, alpha, wide = false) {
    const { w, h } = this;
    if (!(Math.max(x0, x1) >= 0 && Math.max(y0, y1) >= 0 && Math.min(x0, x1) < w && Math.min(y0, y1) < h)) return;
    const steep = Math.abs(y1 - y0) > Math.abs(x1 - x0);
    if (steep) [x0, y0, x1, y1] = [y0, x0, y1, x1];
    if (x0 > x1) [x0, x1, y0, y1] = [x1, x0, y1, y0];
    const slope = (y1 - y0) / Math.max(1e-6, x1 - x0);
    const [lastU, lastV] = steep ? [h, w] : [w, h];
    const from = Math.max(0, Math.floor(x0));
    const to = Math.min(lastU - 1, Math.floor(x1), from + 3000);
    const strengths = lineColors(color, alpha);
    for (let u = from; u <= to; u++) {
      const v = y0 + slope * (Math.min(Math.max(u + 0.5, x0), x1) - x0) - (wide ? 1 : 0.5);
      const iv = Math.floor(v);
      const part = ((v - iv) * 8) | 0;
      if (iv >= 0 && iv < lastV) this.dot(steep, u, iv, strengths[8 - part]);
      if (iv + 1 >= 0 && iv + 1 < lastV) this.dot(steep, u, iv + 1, strengths[wide ? 8 : part]);
      if (wide && iv + 2 >= 0 && iv + 2 < lastV) this.dot(steep, u, iv + 2, strengths[part]);
    }
  }

  dot(steep, u, v, s) {
    const at = steep ? u * this.w + v : v * this.w + u;
    this.data[at] = over(s, this.data[at]);
  }
}

const cache = new Map();

function lineColors(color, alpha) {
  const key = (pixel(color, 255) & 0xffffff) * 64 + Math.round(alpha * 63);
  let found = cache.get(key);
  if (!found) {
    if (cache.size > 4096) cache.clear();
    found = Int32Array.from({ length: 9 }, (_, i) => pixel(color, (255 * alpha * i) / 8));
    cache.set(key, found);
  }
  return found;
}
