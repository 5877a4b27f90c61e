// The pure parts of the player, with Node's own test runner: node --test tests/player
import assert from "node:assert/strict";
import { test } from "node:test";
import { fitted, positions } from "../../dmviz/ui/player/frontend/poster.js";

const at = "../../dmviz/ui/player/frontend/";
const { read, MISSING } = await import(`${at}wire.js`);
const { Store } = await import(`${at}store.js`);
const t = await import(`${at}transport.js`);
const { Camera, project, ticks, tickText } = await import(`${at}camera.js`);
const raster = await import(`${at}raster.js`);
const palette = await import(`${at}palette.js`);
const particles = await import(`${at}particles.js`);
const { thinned, reach, number } = await import(`${at}curves.js`);

/** A chunk as Python makes it, here for frames whose particle i of frame k stands at (k, i). */
function chunk(k0, count, { n = 3, available = 100, since = k0, gen = 1, parts = ["x"], rows = count } = {}) {
  const x = new Uint16Array(count * n * 2);
  for (let i = 0; i < count * n; i++) [x[2 * i], x[2 * i + 1]] = [k0 + Math.floor(i / n), i % n];
  const arrays = {
    step: { data: Int32Array.from({ length: rows }, (_, i) => since + i), shape: [rows] },
    time: { data: Float32Array.from({ length: rows }, (_, i) => 0.1 * (since + i)), shape: [rows] },
    metric: { data: Float32Array.from({ length: rows }, (_, i) => 1 / (1 + since + i)), shape: [1, rows] },
  };
  if (parts.includes("x")) Object.assign(arrays, { x: { data: x, shape: [count, n, 2] }, box: { data: Float32Array.of(0, 0, 1, 1), shape: [2, 2] } });
  if (parts.includes("speed")) {
    arrays.speed = { data: new Uint16Array(count * n).fill(7), shape: [count, n, 1] };
    arrays.speed_box = { data: Float32Array.of(1, 0.5), shape: [2, 1] };
  }
  return [{ k0, count, available, since, gen, notes: [], metrics: ["loss"] }, arrays];
}

function filled(count, options) {
  const store = new Store();
  store.add(...chunk(0, count, options));
  return store;
}

// -- wire --------------------------------------------------------------------------------------------------------------

function bytes(...parts) {
  return Uint8Array.from(parts.flatMap((p) => (typeof p === "string" ? [...new TextEncoder().encode(p)] : [...p])));
}

function padded(json) {
  const text = JSON.stringify(json);
  const length = text.length + ((8 - ((text.length + 8) % 8)) % 8);
  return bytes(new Uint8Array(Uint32Array.of(length).buffer), text.padEnd(length));
}

test("a message is read at any alignment of its bytes", () => {
  const header = padded({ k0: 5, arrays: [["x", "u2", [2, 2], 0], ["step", "i4", [1], 8]] });
  const body = bytes(new Uint8Array(Uint16Array.of(1, 2, 3, 4).buffer), new Uint8Array(Int32Array.of(-7).buffer), [0, 0, 0, 0]);
  const message = bytes("DMVP", padded({ title: "x" }), "DMV1", header, body);
  for (let shift = 0; shift < 8; shift++) {
    const buffer = new Uint8Array(message.length + shift);
    buffer.set(message, shift);
    const { settings, header: h, arrays } = read(buffer.subarray(shift));
    assert.equal(settings.title, "x");
    assert.equal(h.k0, 5);
    assert.deepEqual([...arrays.x.data], [1, 2, 3, 4]);
    assert.deepEqual([...arrays.step.data], [-7]);
  }
});

test("bytes of another kind are refused", () => {
  assert.throws(() => read(bytes("PK..", new Uint8Array(16))), /expected DMVP/);
});

// -- store -------------------------------------------------------------------------------------------------------------

test("positions are exact at whole frames and on the line between them", () => {
  const store = filled(4);
  const out = new Float32Array(6);
  assert.equal(store.positions(2, out), 2);
  assert.deepEqual([...out], [2, 0, 2, 1, 2, 2]);
  store.positions(2.25, out);
  assert.deepEqual([...out], [2.25, 0, 2.25, 1, 2.25, 2]);
});

test("frames of chunks with different boxes blend to the right place", () => {
  const store = filled(1);
  const [header, arrays] = chunk(1, 1);
  arrays.box.data = Float32Array.of(10, 20, 2, 3);
  store.add(header, arrays);
  const out = new Float32Array(6);
  store.positions(0.5, out);
  assert.deepEqual([...out].slice(2, 4), [(0 + 12) / 2, (1 + 23) / 2]);
});

test("a missing coordinate is NaN, also between frames, and moves nobody else", () => {
  const store = filled(2);
  store.frames.get(1).x[0] = MISSING;
  const out = new Float32Array(6);
  store.positions(0.5, out);
  assert.ok(Number.isNaN(out[0]));
  assert.equal(out[2], 0.5);
});

test("a chunk may come twice, late or in any order", () => {
  const store = new Store();
  store.add(...chunk(4, 4, { since: 0, rows: 8 }));
  store.add(...chunk(0, 4, { since: 0, rows: 8 }));
  const before = store.bytes;
  store.add(...chunk(0, 4, { since: 0, rows: 8 }));
  assert.equal(store.bytes, before);
  assert.equal(store.firstMissing(0), 8);
  assert.deepEqual(store.step, [0, 1, 2, 3, 4, 5, 6, 7]);
});

test("history with a gap is not taken, so that it can be asked for again", () => {
  const store = filled(3);
  store.add(...chunk(10, 2, { since: 10 }));
  assert.equal(store.known, 3);
  assert.ok(store.has(10) && !store.has(3));
});

test("memory is bounded and the frames around the viewer stay", () => {
  const store = new Store(40 * 12);
  store.add(...chunk(0, 100));
  store.evict(50);
  assert.ok(store.bytes <= 40 * 12);
  assert.ok([48, 49, 50, 51, 60].every((k) => store.has(k)));
  assert.ok(!store.has(0));
  assert.equal(store.known, 100); // curves stay
});

test("a branch keeps the frames before it and no later one", () => {
  const store = filled(20);
  store.truncate(8);
  assert.equal(store.firstMissing(0), 8);
  assert.ok(!store.has(8));
  assert.deepEqual([store.known, store.available, store.metrics.get("loss").length], [8, 8, 8]);
});

test("parts that come later join the frame that is here", () => {
  const store = filled(2);
  assert.ok(!store.has(0, ["x", "speed"]));
  store.add(...chunk(0, 2, { parts: ["speed"] }));
  assert.ok(store.has(0, ["x", "speed"]));
  assert.deepEqual([...store.speeds(0, new Float32Array(3))], [4.5, 4.5, 4.5]);
  assert.equal(store.speedMax, 1 + 0.5 * 65534);
});

// -- transport -----------------------------------------------------------------------------------------------------------

test("the playhead keeps its speed with a lead and never passes the end", () => {
  assert.equal(t.advance(10, 0.016, 30, 100, false).pos, 10 + 0.016 * 30);
  let pos = 0;
  for (let i = 0; i < 6000; i++) pos = t.advance(pos, 0.016, 240, 20, false).pos;
  assert.ok(pos <= 20 && pos > 19.9);
});

test("a long gap, as of a hidden tab, moves it by a tenth of a second at most", () => {
  assert.equal(t.advance(0, 60, 30, 1000, false).pos, 3);
});

test("the last frame of a finished run is reached, and said", () => {
  let state = { pos: 0, done: false };
  for (let i = 0; i < 100 && !state.done; i++) state = t.advance(state.pos, 0.016, 30, 20, true);
  assert.deepEqual(state, { pos: 20, done: true });
});

const viewer = { pos: 0, goal: null, playing: false, speed: 30, parts: ["x"], trail: 0, available: 100, ended: false };

test("paused, a few frames ahead are wanted and then nothing", () => {
  assert.deepEqual(t.request(viewer, new Store()), { k0: 0, parts: ["x"] });
  const store = new Store();
  store.add(...chunk(0, 9, { rows: 100 }));
  assert.equal(t.request(viewer, store), null);
});

test("playing, more is asked for when the lead is short, from the first frame that is missing", () => {
  const store = new Store();
  store.add(...chunk(0, 30, { rows: 100 }));
  assert.deepEqual(t.request({ ...viewer, playing: true }, store), { k0: 30, parts: ["x"] });
  store.add(...chunk(30, 30, { since: 100, rows: 0 }));
  assert.equal(t.request({ ...viewer, playing: true }, store), null);
});

test("nothing is asked for beyond the end of a finished run", () => {
  const store = filled(20, { available: 20 });
  assert.equal(t.request({ ...viewer, pos: 19, playing: true, available: 20, ended: true }, store), null);
  assert.notEqual(t.request({ ...viewer, pos: 19, playing: true, available: 20 }, store), null);
});

test("a goal that Python has is asked for at once; one it has not yet, by way of all frames before it", () => {
  const store = new Store();
  store.add(...chunk(0, 9, { rows: 100 }));
  assert.equal(t.request({ ...viewer, goal: 70 }, store).k0, 70);
  assert.equal(t.request({ ...viewer, goal: 170 }, store).k0, 9);
});

test("only what a frame lacks is asked for", () => {
  const store = new Store();
  store.add(...chunk(0, 20, { rows: 100 }));
  assert.deepEqual(t.request({ ...viewer, parts: ["x", "speed"] }, store), { k0: 0, parts: ["speed"] });
});

test("frames behind are fetched again for the trails", () => {
  const store = new Store();
  store.add(...chunk(40, 20, { since: 0, rows: 100 }));
  assert.equal(t.request({ ...viewer, pos: 45 }, store), null);
  const wanted = t.request({ ...viewer, pos: 45, trail: 12 }, store);
  assert.ok(wanted.k0 <= 39 && wanted.k0 + wanted.most === 40);
});

test("small frames come 64 at a time, large ones as many as pass during a round trip", () => {
  assert.equal(t.portion(8_000, 30, 900), 64);
  assert.equal(t.portion(200_000, 30, null), 64);
  assert.equal(t.portion(200_000, 30, 200), 9);
  assert.equal(t.portion(200_000, 30, 10), 4);
  assert.equal(t.portion(200_000, 240, 5000), 64);
});

test("patience grows with empty answers and has an end", () => {
  assert.equal(t.patience(0), 0);
  assert.ok(t.patience(1) < t.patience(2));
  assert.equal(t.patience(50), 300);
});

test("a step finds its frame, also with several steps a frame", () => {
  const steps = [0, 5, 10, 15, 20];
  assert.equal(t.frameOfStep(steps, 11), 2);
  assert.equal(t.frameOfStep(steps, 13), 3);
  assert.equal(t.frameOfStep(steps, -4), 0);
  assert.equal(t.frameOfStep(steps, 99), 4);
  assert.equal(t.frameOfStep([], 3), 0);
  assert.equal(t.stepsPerFrame(steps), 5);
});

// -- camera --------------------------------------------------------------------------------------------------------------

const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];

test("right, up and back are a right-handed frame from every direction, so nothing is mirrored", () => {
  const camera = new Camera();
  for (const [yaw, pitch] of [[0, 0], [1, 0.4], [-2.3, -1.1], [3, 1.5]]) {
    Object.assign(camera, { yaw, pitch });
    const { right, up, back } = camera.lens(200, 100);
    cross(right, up).forEach((v, j) => assert.ok(Math.abs(v - back[j]) < 1e-12));
    assert.ok(Math.abs(Math.hypot(...up) - 1) < 1e-12);
    assert.ok(up[2] >= 0); // z never hangs down
  }
});

test("seen from above, the nearer of two points is lower on the screen and larger", () => {
  const camera = new Camera();
  camera.look([-1, -1, -1], [1, 1, 1]);
  [camera.yaw, camera.pitch] = [0, 0.5];
  const lens = camera.lens(400, 400);
  const near = project(lens, 0, -1, 0); // the eye is on the side of negative y
  const far = project(lens, 0, 1, 0);
  assert.ok(near[2] > far[2] && near[1] > far[1] && near[3] > far[3]);
});

test("the whole box is inside the view from every direction", () => {
  const camera = new Camera();
  camera.look([0, 10, -5], [4, 30, 5]);
  for (let i = 0; i < 40; i++) {
    [camera.yaw, camera.pitch] = [i, 1.4 * Math.sin(i)];
    const lens = camera.lens(500, 300);
    for (let c = 0; c < 8; c++) {
      const [x, y] = project(lens, c & 1 ? 4 : 0, c & 2 ? 30 : 10, c & 4 ? 5 : -5);
      assert.ok(x >= 0 && x <= 500 && y >= 0 && y <= 300, `${x} ${y}`);
    }
  }
});

test("ticks are round, inside, and about as many as asked", () => {
  assert.deepEqual(ticks(-1, 1, 4), [-1, -0.5, 0, 0.5, 1]);
  for (const [low, high] of [[0, 7], [-3e-5, 2e-5], [1000, 1003], [-2e6, 5e6]]) {
    const found = ticks(low, high, 5);
    assert.ok(found.length >= 3 && found.length <= 11);
    assert.ok(found.every((v) => v >= low - 1e-9 * Math.abs(low) && v <= high + 1e-9 * Math.abs(high)));
  }
  assert.deepEqual(ticks(2, 2), [2]);
  assert.equal(tickText(0.1 + 0.2), "0.3");
});

// -- pixels --------------------------------------------------------------------------------------------------------------

class FakeCanvas {
  getContext() {
    return { createImageData: (w, h) => ({ data: new Uint8ClampedArray(4 * w * h) }), putImageData() {} };
  }
}

function image(w = 40, h = 30) {
  const one = new raster.Raster(new FakeCanvas());
  one.resize(w, h);
  return one;
}

test("a disc covers its area, in its colour, around its centre", () => {
  const one = image();
  one.stamp(new raster.Sprite(5, [255, 0, 0]), 20.3, 15.6);
  let [area, mx, my] = [0, 0, 0];
  one.data.forEach((value, i) => {
    const a = (value >>> 24) / 255;
    [area, mx, my] = [area + a, mx + a * ((i % 40) + 0.5), my + a * (Math.floor(i / 40) + 0.5)];
    if (a > 0) assert.equal(value & 0xffffff, 0x0000ff); // red is the lowest byte
  });
  assert.ok(Math.abs(area / (Math.PI * 25) - 1) < 0.03, String(area));
  assert.ok(Math.abs(mx / area - 20.3) < 0.13 && Math.abs(my / area - 15.6) < 0.13); // a quarter pixel is the grid
});

test("discs at the border and far outside write nothing else", () => {
  const one = image(10, 10);
  const sprite = new raster.Sprite(3, [9, 9, 9]);
  for (const [x, y] of [[0, 0], [9.9, 9.9], [-2, 5], [12, 5], [1e9, 1e9], [-1e9, 3], [NaN, 2]]) one.stamp(sprite, x, y);
  assert.equal(one.data.length, 100);
  assert.equal(one.data[0] >>> 24, 255);
  one.clear();
  for (const [x, y] of [[-50, 5], [NaN, NaN], [1e12, 0]]) one.stamp(sprite, x, y);
  assert.ok(one.data.every((value) => value === 0));
});

test("over: opaque hides, transparent leaves, half mixes", () => {
  const [red, blue] = [raster.pixel([255, 0, 0], 255), raster.pixel([0, 0, 255], 255)];
  assert.equal(raster.over(red, blue), red);
  assert.equal(raster.over(raster.pixel([255, 0, 0], 128), 0), raster.pixel([255, 0, 0], 128));
  const mixed = raster.over(raster.pixel([255, 0, 0], 128), blue);
  assert.equal(mixed >>> 24, 255);
  assert.ok(Math.abs((mixed & 255) - 128) <= 1 && Math.abs(((mixed >>> 16) & 255) - 127) <= 1);
});

test("a line reaches both ends, steep or flat, and stays in the image", () => {
  for (const [x0, y0, x1, y1] of [[2, 3, 30, 9], [30, 9, 2, 3], [5, 25, 9, 2], [-500, 10, 500, 12], [4, 4, 4, 4]]) {
    const one = image();
    one.line(x0, y0, x1, y1, [255, 0, 0], 1);
    assert.ok(one.data.some((value) => value !== 0));
    if (x0 === 2) {
      const near = (x, y) => [-1, 0, 1].some((d) => one.data[Math.floor(y + d) * 40 + Math.floor(x)] >>> 24);
      assert.ok(near(2.5, 3) && near(29.5, 9));
    }
  }
});

// -- colours and particles ---------------------------------------------------------------------------------------------

test("colours are read in all spellings", () => {
  assert.deepEqual(palette.rgb("#fff"), [255, 255, 255]);
  assert.deepEqual(palette.rgb("#0072B2"), [0, 114, 178]);
  assert.deepEqual(palette.rgb("rgb(1, 2, 3)"), [1, 2, 3]);
  assert.deepEqual(palette.rgb("rgba(1,2,3,0.5)"), [1, 2, 3]);
  assert.equal(palette.scale(["#000000", "#ffffff"], 3)[1][0], 127.5);
  assert.ok(palette.isDark([14, 17, 23]) && !palette.isDark([255, 255, 255]));
});

test("far particles come first, each once", () => {
  const screen = Float32Array.from([0, 0, 0.5, 0, 0, -0.9, 0, 0, 0.1, 0, 0, 0.95]);
  assert.deepEqual([...particles.farFirst(screen, 4, new Uint32Array(4))], [1, 2, 0, 3]);
});

test("labels keep their colour, repeat after the palette, and a missing one is grey", () => {
  const look = { colors: { label: [1, 2, 3, "none"] } };
  const index = particles.colorIndex("label", { labels: [0, 1, 2, 3, -1] }, look);
  assert.deepEqual([0, 1, 2, 3, 4].map(index), [0, 1, 2, 0, 3]);
  assert.equal(particles.usable("label", { labels: null }), "plain");
});

test("speed colours stay on the scale also for the fastest, the resting and the unknown", () => {
  const index = particles.colorIndex("speed", { speeds: [0, 1, 4, 9, NaN], speedMax: 4 }, {});
  assert.deepEqual([0, 1, 2, 3].map(index), [0, 31, 63, 63]);
  assert.equal(index(4), 0);
});

test("arrows are scaled by 1, 2 or 5 times a power of ten and the scale stays while it is fair", () => {
  const scale = particles.arrowScale([0.1, 0.1, 0.1], 0, 3);
  assert.equal(scale, 20);
  assert.equal(particles.arrowScale([0.15, 0.15], scale, 3), scale);
  assert.equal(particles.arrowScale([0.001, 0.001], scale, 3), 2000);
  assert.equal(particles.arrowScale([0, 0], scale, 3), scale);
  for (const long of [1e-6, 0.3, 7, 1e5]) assert.match((particles.arrowScale([long], 0, 40)).toExponential(0), /^[125]e/);
});

test("arrows stand at the particles that Python chose", () => {
  assert.deepEqual([...particles.arrowIndex(3)], [0, 1, 2]);
  const index = particles.arrowIndex(1000);
  assert.equal(index.length, 400);
  assert.deepEqual([...index.slice(0, 4)], [0, 2, 5, 7]); // floor(i * 1000 / 400)
});

test("trails stay within their budget of lines", () => {
  for (const [kind, n] of [["short", 50_000], ["long", 10_000], ["long", 500]]) {
    const { frames, every } = particles.trailPlan(kind, 1000, n);
    assert.ok(Math.ceil(n / every) * (frames.length - 1) <= 46_000);
    assert.equal(frames[0], 1000);
  }
  assert.equal(particles.trailPlan("long", 500, 500).every, 1);
  assert.deepEqual(particles.trailPlan("short", 2, 10).frames, [2, 1, 0]);
});

test("areas are as the weights, within limits, and equal weights need no sizes", () => {
  assert.equal(particles.weightSizes(null), null);
  assert.equal(particles.weightSizes(Float32Array.of(0.25, 0.25, 0.25, 0.25)), null);
  const sizes = particles.weightSizes(Float32Array.of(0, 1, 1, 1, 2, 1000));
  assert.equal(sizes[0], 0);
  assert.equal(sizes[5], 11);
  assert.ok(sizes[0] <= sizes[1] && sizes[1] === sizes[2] && sizes[1] <= sizes[4]);
  const four = particles.weightSizes(Float32Array.of(0.5, 0.5, 0.5, 2, 1.5)); // 2 weighs four times 0.5
  assert.ok(Math.abs((0.4 + 0.15 * four[3]) / (0.4 + 0.15 * four[0]) - 2) < 0.3);
});

test("the nearest particle is found within reach only", () => {
  const screen = Float32Array.from([10, 10, 0, 20, 10, 0]);
  assert.equal(particles.nearest(screen, 2, 17, 10, 8), 1);
  assert.equal(particles.nearest(screen, 2, 90, 90, 8), -1);
});

// -- curves --------------------------------------------------------------------------------------------------------------

test("a thinned curve keeps its extremes and its ends, and leaves out what is not a number", () => {
  const x = Array.from({ length: 10_000 }, (_, i) => i);
  const y = x.map((i) => Math.sin(i / 50));
  [y[1234], y[7777], y[3]] = [9, -9, NaN];
  const [tx, ty] = thinned(x, y, 500);
  assert.ok(tx.length <= 520);
  assert.ok(ty.includes(9) && ty.includes(-9) && !ty.some(Number.isNaN));
  assert.equal(tx[0], 0);
  assert.equal(tx.at(-1), 9999);
  assert.ok(tx.every((v, i) => i === 0 || v > tx[i - 1]));
});

test("the step axis grows by halves", () => {
  assert.equal(reach(3), 40);
  assert.equal(reach(41), 60);
  assert.ok(reach(5000) >= 5000 && reach(5000) <= 7500);
});

test("numbers are short", () => {
  assert.equal(number(0.0621), "0.06210");
  assert.equal(number(-1.25), "−1.250");
  assert.equal(number(4.66e-4), "4.66e−4");
  assert.equal(number(NaN), "–");
});

test("the poster shows what was sent, and a number that was not finite stays none", () => {
  const arrays = {
    x: { data: Uint16Array.from([0, 0, 10, 20, 65535, 5]), shape: [1, 3, 2] },
    box: { data: Float32Array.from([-1, 2, 0.5, 0.25]), shape: [4] },
  };
  assert.deepEqual([...positions(arrays, 0)], [-1, 2, 4, 7, NaN, 3.25]);
});

test("the poster's axes are equal, its box is whole and upright", () => {
  const at = fitted([[-2, 0], [2, 1]], 400, 300);
  const screen = ([x, y]) => [at.ax + at.s * x, at.ay - at.s * y];
  const [left, bottom] = screen([-2, 0]);
  const [right, top] = screen([2, 1]);
  assert.ok(left >= 0 && right <= 400 && top >= 0 && bottom <= 300);
  assert.ok(bottom > top);
  assert.equal((right - left) / 4, (bottom - top) / 1);
});
