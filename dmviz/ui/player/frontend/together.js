// Several runs under one clock: what the lanes have in common. Pure: works on {store, ended} only.

/** Will no frame come any more? */
const over = (lane) => lane.ended !== "" && lane.ended !== undefined;

const last = (lane) => Math.max(0, lane.store.available - 1);

/** The frame position at which a lane stands when the clock shows `pos`: a lane that has ended stays on its last frame. */
export function standing(lane, pos) {
  return over(lane) ? Math.min(pos, last(lane)) : pos;
}

/** Does a lane hold what it shows at `pos`? A lane that ended before its first frame has nothing to show. */
export function holds(lane, pos) {
  if (over(lane) && lane.store.available === 0) return true;
  const at = standing(lane, pos);
  return lane.store.has(Math.floor(at)) && (at === Math.floor(at) || lane.store.has(Math.floor(at) + 1));
}

/**
 * Speaks as `Store` does, for all lanes at once: a frame is here when every lane that goes on has it, and no lane is
 * shown further than the slowest.
 */
export class Together {
  /** @param {{store: import("./store.js").Store, ended: string}[]} lanes the list itself, which may change */
  constructor(lanes) {
    this.lanes = lanes;
    this.gen = -1;
  }

  /** All lanes have ended. */
  get ended() {
    return this.lanes.length > 0 && this.lanes.every(over);
  }

  get available() {
    const running = this.lanes.filter((lane) => !over(lane));
    if (running.length === 0) return Math.max(0, ...this.lanes.map((lane) => lane.store.available));
    return Math.min(...running.map((lane) => lane.store.available));
  }

  has(k) {
    return this.lanes.length > 0 && this.lanes.every((lane) => holds(lane, k));
  }

  /** The first frame at or after k that is not here; where all lanes ended, one past the last frame. */
  firstMissing(k) {
    const limits = this.lanes.map((lane) => {
      if (!over(lane)) return lane.store.firstMissing(k);
      if (k >= lane.store.available) return holds(lane, k) ? Infinity : k;
      const found = lane.store.firstMissing(k);
      return found >= lane.store.available ? Infinity : found;
    });
    const first = Math.min(...limits);
    return first === Infinity ? this.available : first;
  }

  /** The lane whose steps are known furthest. */
  get longest() {
    return this.lanes.reduce((best, lane) => (lane.store.known > best.known ? lane.store : best), this.lanes[0].store);
  }

  get step() {
    return this.lanes.length ? this.longest.step : [];
  }

  get time() {
    return this.lanes.length ? this.longest.time : [];
  }

  get known() {
    return this.step.length;
  }

  get n() {
    return this.lanes.length ? this.lanes[0].store.n : 0;
  }

  get dims() {
    return this.lanes.length ? this.lanes[0].store.dims : 2;
  }

  get held() {
    return Math.min(...this.lanes.map((lane) => lane.store.frames.size));
  }

  get bytes() {
    return this.lanes.reduce((sum, lane) => sum + lane.store.bytes, 0);
  }
}

/** The first step at which a measure was at or below `level`; null where it never was. */
export function reached(steps, values, level) {
  const k = (values ?? []).findIndex((value) => value <= level);
  return k < 0 ? null : steps[k];
}

/** A tenth of a measure's first value, to two digits. */
export function firstLevel(values) {
  const first = values?.find(Number.isFinite);
  return first > 0 ? Number((0.1 * first).toPrecision(2)) : null;
}

/** The last value known at frame k, and the frame it belongs to; null where there is none. */
export function latest(values, k) {
  for (let i = Math.min(k, (values?.length ?? 0) - 1); i >= 0; i--) if (Number.isFinite(values[i])) return [values[i], i];
  return null;
}
