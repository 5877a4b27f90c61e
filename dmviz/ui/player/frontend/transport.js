// The clock of the player and its appetite for frames. Pure: no page, no time of day.

/** The playhead keeps this many seconds of lead, and slows down rather than run into the end of what is here. */
export const LEAD = 0.35;
/** More is asked for when the lead falls below this many seconds. */
export const APPETITE = 1.2;
/** Frames kept ready ahead while paused. */
export const IDLE = 8;
/** A request without an answer is made again after so many ms: not too soon where answers are slow. */
export const watchdog = (roundTrip) => Math.max(1500, 3 * (roundTrip ?? 0));
export const FACTORS = [0.25, 0.5, 1, 2, 4, 8];

/** Frames a second the playhead may move, with `lead` frames ready ahead of it. */
export function rate(wanted, lead, final) {
  return final ? wanted : Math.min(wanted, Math.max(lead, 0) / LEAD);
}

/**
 * Move the playhead by `dt` seconds.
 * @param {number} end last frame here without a gap
 * @param {boolean} final no frame will ever follow `end`
 * @returns {{pos: number, done: boolean}} done: the run is over and its last frame is on screen
 */
export function advance(pos, dt, wanted, end, final) {
  if (end < pos) return { pos, done: false };
  const moved = Math.min(end, pos + Math.min(dt, 0.1) * rate(wanted, end - pos, final));
  return { pos: moved, done: final && moved >= end };
}

/**
 * The next request, or null while nothing is wanted.
 * @param {object} s pos, goal (frame to go to, or null), playing, speed (frames a second), parts, trail (frames behind
 *   that are drawn too), available, ended
 * @param {import("./store.js").Store} store
 */
export function request(s, store) {
  const at = Math.floor(s.pos);
  if (s.goal !== null && s.goal < s.available && !store.has(s.goal)) {
    return { k0: s.goal, parts: missing(store, s.goal, s.parts) };
  }
  const horizon = s.playing ? Math.max(IDLE, Math.ceil(APPETITE * s.speed)) : IDLE;
  const reach = s.goal === null ? at + horizon : Math.max(at, s.goal) + IDLE;
  const next = store.firstMissing(at, s.parts, reach - at + 1);
  const over = s.ended && next >= s.available;
  if (next <= reach && !over) return { k0: next, parts: missing(store, next, s.parts) };
  for (let k = at - 1; k >= Math.max(0, at - s.trail); k--) {
    if (!store.has(k)) return { k0: Math.max(0, k - 40), most: k - Math.max(0, k - 40) + 1, parts: ["x"] };
  }
  if (store.known < s.available) return { k0: at, most: 0, parts: [] }; // curves that lag behind
  return null;
}

/** What of frame k is still to be sent. */
function missing(store, k, parts) {
  const frame = store.frames.get(k);
  const wanted = frame ? parts.filter((name) => !frame[name]) : parts;
  return wanted.length ? wanted : parts;
}

/**
 * How many frames to ask for: as many as come in one go, and of large ones no more than pass while the answer is on its
 * way, so that other widgets do not wait behind them.
 * @param {number} bytes of one frame @param {number | null} roundTrip ms of the last request
 */
export function portion(bytes, speed, roundTrip) {
  if (bytes < 60_000 || roundTrip === null) return 64;
  return Math.max(4, Math.min(64, Math.ceil(1.5 * speed * (roundTrip / 1000))));
}

/** Wait before the next request after `empty` answers without a frame, in ms. */
export function patience(empty) {
  return empty === 0 ? 0 : Math.min(300, 30 * 2 ** empty);
}

/** Steps that one frame covers, from the history of steps. */
export function stepsPerFrame(step) {
  return step.length > 1 ? Math.max(1, step[1] - step[0]) : 1;
}

/** The frame whose step is nearest to `step`; steps grow with the frame. */
export function frameOfStep(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const mid = (low + high) >> 1;
    if (steps[mid] < step) low = mid + 1;
    else high = mid;
  }
  return low > 0 && Math.abs(steps[low - 1] - step) <= Math.abs(steps[low] - step) ? low - 1 : Math.max(low, 0);
}
