// Frames the browser holds: positions of some, and step, time and metrics of all known ones.

import { MISSING } from "./wire.js";

/** Keeps at most `mostBytes` of frames; the ones farthest from the viewer go first and can be asked for again. */
export class Store {
  constructor(mostBytes = 192 * 2 ** 20) {
    this.mostBytes = mostBytes;
    this.clear();
  }

  clear() {
    this.frames = new Map(); // k -> {x, box, arrows, speed, speedBox}
    this.bytes = 0;
    this.step = [];
    this.time = [];
    this.metrics = new Map(); // name -> number[]
    this.notes = new Map(); // k -> sentence
    this.available = 0;
    this.speedMax = 0;
    this.n = 0;
    this.dims = 2;
  }

  /** A branch: frames below `keep` stay, later ones belong to the run that was left. */
  truncate(keep) {
    for (const k of [...this.frames.keys()]) if (k >= keep) this.drop(k);
    for (const list of [this.step, this.time, ...this.metrics.values()]) list.length = Math.min(list.length, keep);
    for (const k of [...this.notes.keys()]) if (k >= keep) this.notes.delete(k);
    this.available = Math.min(this.available, keep);
  }

  /** How many steps, times and metrics are known: all of 0 .. known - 1. */
  get known() {
    return this.step.length;
  }

  /** Take in a chunk; positions may arrive in any order and more than once. */
  add(header, arrays) {
    this.available = Math.max(this.available, header.available);
    this.addHistory(header, arrays);
    const parts = ["x", "arrows", "speed"].filter((name) => arrays[name]);
    for (let i = 0; i < header.count; i++) {
      const k = header.k0 + i;
      const frame = this.frames.get(k) ?? {};
      for (const name of parts) {
        if (frame[name]) continue;
        const { data, shape } = arrays[name];
        const size = shape.slice(1).reduce((a, b) => a * b, 1);
        frame[name] = data.slice(i * size, (i + 1) * size); // its own memory, so that one frame can be let go
        this.bytes += frame[name].byteLength;
        if (name === "x") [this.n, this.dims] = [shape[1], shape[2]];
      }
      if (arrays.x) frame.box ??= arrays.box.data.slice();
      if (arrays.speed) frame.speedBox ??= arrays.speed_box.data.slice();
      this.frames.set(k, frame);
    }
    if (arrays.speed) {
      const [low, unit] = arrays.speed_box.data;
      this.speedMax = Math.max(this.speedMax, low + unit * (MISSING - 1));
    }
  }

  addHistory(header, arrays) {
    const first = header.since;
    if (first > this.known || !arrays.step) return; // a gap: it will be asked for again
    const count = arrays.step.data.length;
    header.metrics.forEach((name) => {
      if (!this.metrics.has(name)) this.metrics.set(name, new Array(this.known).fill(NaN));
    });
    for (let i = 0; i < count; i++) {
      this.step[first + i] = arrays.step.data[i];
      this.time[first + i] = arrays.time.data[i];
      for (const [name, list] of this.metrics) {
        const row = header.metrics.indexOf(name);
        list[first + i] = row < 0 ? NaN : arrays.metric.data[row * count + i];
      }
    }
    for (const [k, note] of header.notes) this.notes.set(k, note);
  }

  /** Is frame k here with all of `parts`? */
  has(k, parts = ["x"]) {
    const frame = this.frames.get(k);
    return frame !== undefined && parts.every((name) => frame[name]);
  }

  /** The first frame at or after k that is not here with all of `parts`. */
  firstMissing(k, parts = ["x"], most = 4096) {
    let end = k;
    while (end - k < most && this.has(end, parts)) end++;
    return end;
  }

  /** The frame nearest to k that is here, looking backwards first; -1 if there is none. */
  nearest(k) {
    if (this.has(k)) return k;
    let best = -1;
    for (const [other, frame] of this.frames) {
      if (!frame.x) continue;
      const better = best < 0 || Math.abs(other - k) < Math.abs(best - k);
      if (better) best = other;
    }
    return best;
  }

  drop(k) {
    const frame = this.frames.get(k);
    if (!frame) return;
    for (const name of ["x", "arrows", "speed"]) this.bytes -= frame[name]?.byteLength ?? 0;
    this.frames.delete(k);
  }

  /** Let go of the frames farthest from k until the rest fits; frames behind go before frames ahead. */
  evict(k) {
    if (this.bytes <= this.mostBytes) return;
    const far = (other) => (other < k ? 2 * (k - other) : other - k);
    const order = [...this.frames.keys()].sort((a, b) => far(b) - far(a));
    for (const other of order) {
      if (this.bytes <= 0.8 * this.mostBytes || this.frames.size < 8) break;
      this.drop(other);
    }
  }

  /**
   * Coordinates at position p between frames, interpolated; exact where p is whole.
   * @returns {number} the frame they start from, or -1 if nothing is here
   */
  positions(p, out) {
    const k = this.has(Math.floor(p)) ? Math.floor(p) : this.nearest(Math.floor(p));
    if (k < 0) return -1;
    const a = this.frames.get(k);
    const t = k === Math.floor(p) && this.has(k + 1) ? p - k : 0;
    const b = t > 0 ? this.frames.get(k + 1) : a;
    const d = this.dims;
    for (let j = 0; j < d; j++) {
      const [lowA, unitA] = [a.box[j] * (1 - t), a.box[d + j] * (1 - t)];
      const [lowB, unitB] = [b.box[j] * t, b.box[d + j] * t];
      const low = lowA + lowB;
      const [xa, xb] = [a.x, b.x];
      if (t === 0) for (let i = j; i < xa.length; i += d) out[i] = xa[i] === MISSING ? NaN : low + unitA * xa[i];
      else {
        for (let i = j; i < xa.length; i += d) {
          out[i] = xa[i] === MISSING || xb[i] === MISSING ? NaN : low + unitA * xa[i] + unitB * xb[i];
        }
      }
    }
    return k;
  }

  /** Speed of each particle in frame k, or null if it was not asked for. */
  speeds(k, out) {
    const frame = this.frames.get(k);
    if (!frame?.speed) return null;
    const [low, unit] = frame.speedBox;
    for (let i = 0; i < frame.speed.length; i++) out[i] = frame.speed[i] === MISSING ? NaN : low + unit * frame.speed[i];
    return out;
  }
}
