// The pure parts of the arena, with Node's own test runner: several runs under one clock, one plane for many views.
import assert from "node:assert/strict";
import { test } from "node:test";

const at = "../../dmviz/ui/player/frontend/";
const { Together, standing, holds, reached, firstLevel, latest } = await import(`${at}together.js`);
const { Plane, FlatView } = await import(`${at}flat.js`);
const { Store } = await import(`${at}store.js`);
const { read } = await import(`${at}wire.js`);
const t = await import(`${at}transport.js`);

/** A lane that has `held` frames of `available`, and has ended or not. */
function lane(held, available, ended = "") {
  const store = new Store();
  for (let k = 0; k < held; k++) store.frames.set(k, { x: new Uint16Array(4), box: Float32Array.of(0, 0, 1, 1) });
  store.available = available;
  store.step = Array.from({ length: available }, (_, k) => k);
  return { store, ended };
}

test("the slowest lane holds the others", () => {
  const all = new Together([lane(30, 40), lane(5, 9), lane(12, 12)]);
  assert.equal(all.available, 9);
  assert.equal(all.firstMissing(0), 5);
  assert.ok(all.has(4) && !all.has(5));
  assert.equal(t.advance(3, 10, 1000, all.firstMissing(3) - 1, false).pos <= 4, true);
});

test("a lane that has ended stays on its last frame and holds nobody", () => {
  const broken = lane(6, 6, "It broke.");
  const all = new Together([lane(30, 40), broken]);
  assert.equal(all.ended, false);
  assert.equal(all.available, 40);
  assert.equal(all.firstMissing(0), 30);
  assert.equal(all.firstMissing(12), 30);
  assert.ok(all.has(20));
  assert.equal(standing(broken, 20), 5);
  assert.equal(standing(broken, 3.5), 3.5);
});

test("an ended lane whose frames are still on their way does hold the others", () => {
  const late = lane(3, 6, "It broke.");
  const all = new Together([lane(30, 40), late]);
  assert.equal(all.firstMissing(0), 3);
  assert.equal(all.firstMissing(10), 10); // its last frame is not here: nothing may be painted there
  assert.ok(!all.has(10) && !holds(late, 10));
});

test("when all lanes have ended the longest one ends the race", () => {
  const all = new Together([lane(9, 9, "a"), lane(4, 4, "b")]);
  assert.equal(all.ended, true);
  assert.equal(all.available, 9);
  assert.equal(all.firstMissing(0), 9);
  assert.equal(all.firstMissing(6), 9);
});

test("a lane that never had a frame stands aside", () => {
  const nothing = lane(0, 0, "It cannot run.");
  const all = new Together([lane(7, 9), nothing]);
  assert.equal(all.firstMissing(2), 7);
  assert.ok(all.has(3) && holds(nothing, 3));
});

test("between two frames both must be here", () => {
  const one = lane(4, 9);
  assert.ok(holds(one, 2.5) && holds(one, 3) && !holds(one, 3.5));
});

test("steps are those of the lane known furthest", () => {
  const all = new Together([lane(2, 3), lane(2, 8)]);
  assert.equal(all.known, 8);
  assert.equal(all.step[7], 7);
  assert.equal(new Together([]).known, 0);
});

test("the threshold is reached at the first step at or below it", () => {
  const values = [4, NaN, 2, NaN, 1, NaN, 3];
  const steps = [0, 5, 10, 15, 20, 25, 30];
  assert.equal(reached(steps, values, 2), 10);
  assert.equal(reached(steps, values, 0.5), null);
  assert.equal(reached(steps, undefined, 1), null);
  assert.equal(firstLevel([NaN, 0.4567]), 0.046);
  assert.equal(firstLevel([0, 1]), null);
  assert.deepEqual(latest(values, 5), [1, 4]);
  assert.deepEqual(latest(values, 100), [3, 6]);
  assert.equal(latest([NaN], 0), null);
});

test("views of one plane have equal axes and hold the box at home", () => {
  const plane = new Plane();
  plane.setHome([-1, -3], [5, 1]);
  plane.goHome();
  for (const [w, h] of [[300, 200], [200, 300], [1000, 90]]) {
    const [[x0, x1], [y0, y1]] = plane.range(w, h);
    assert.ok(x0 < -1 && x1 > 5 && y0 < -3 && y1 > 1);
    assert.ok(Math.abs((x1 - x0) / w - (y1 - y0) / h) < 1e-12);
  }
  assert.ok(!plane.moved());
});

test("zoom keeps the place under the pointer, for all views", () => {
  const plane = new Plane();
  const [one, other] = [new FlatView(plane, () => {}), new FlatView(plane, () => {})];
  one.setHome([0, 0], [2, 2]);
  for (const view of [one, other]) view.show({}, ["x", "y"], 300, 200);
  const before = one.toData(40, 170);
  one.wheel(-300, 40, 170);
  const after = one.toData(40, 170);
  assert.ok(Math.hypot(after[0] - before[0], after[1] - before[1]) < 1e-12);
  assert.deepEqual(one.range(), other.range());
  assert.ok(plane.moved() && one.moved());
  one.drag(30, -20);
  const dragged = other.toData(70, 150);
  assert.ok(Math.hypot(dragged[0] - before[0], dragged[1] - before[1]) < 1e-12);
  other.goTo([10, 10], [11, 14]);
  assert.ok(one.holds([10, 10], [11, 14]));
  other.goHome();
  assert.ok(!one.moved());
});

test("a new view does not move a plane that was zoomed", () => {
  const plane = new Plane();
  const one = new FlatView(plane, () => {});
  one.setHome([0, 0], [2, 2]);
  one.show({}, ["x", "y"], 300, 200);
  one.wheel(-300, 10, 10);
  const seen = one.range();
  const two = new FlatView(plane, () => {});
  two.show({}, ["x", "y"], 300, 200);
  assert.deepEqual(two.range(), seen);
});

test("points land where the range says, and zoom has an end", () => {
  const view = new FlatView(new Plane(), () => {});
  view.setHome([0, 0], [2, 2]);
  view.show({}, ["x", "y"], 400, 400);
  const out = view.toScreen(Float32Array.of(1, 1, ...view.toData(0, 0)), 2, new Float32Array(6), 800, 800);
  assert.ok(Math.abs(out[0] - 400) < 1e-3 && Math.abs(out[1] - 400) < 1e-3);
  assert.ok(Math.abs(out[3]) < 1e-2 && Math.abs(out[4]) < 1e-2);
  for (let i = 0; i < 200; i++) view.wheel(-1000, 0, 0);
  assert.ok(view.range().flat().every(Number.isFinite) && view.range()[0][1] > view.range()[0][0]);
});

/** A block of a message: magic, length of the JSON, the JSON padded to 8. */
function block(magic, json) {
  let text = JSON.stringify(json);
  while ((text.length + 8) % 8) text += " ";
  const bytes = new Uint8Array(8 + text.length);
  bytes.set(new TextEncoder().encode(magic), 0);
  new DataView(bytes.buffer).setUint32(4, text.length, true);
  bytes.set(new TextEncoder().encode(text), 8);
  return bytes;
}

test("a bundle is read lane by lane, and one chunk as before", () => {
  const chunk = (k0) => {
    const head = block("DMV1", { k0, arrays: [["x", "u2", [4], 0]] });
    const bytes = new Uint8Array(head.length + 8);
    bytes.set(head);
    bytes.set(new Uint8Array(Uint16Array.of(k0, 1, 2, 3).buffer), head.length);
    return bytes;
  };
  const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
  const [one, two] = [chunk(7), chunk(9)];
  const message = read(joined(block("DMVP", { key: "arena", chunks: [one.length, 0, two.length] }), one, two));
  assert.equal(message.settings.key, "arena");
  assert.deepEqual(message.lanes.map(({ header }) => header?.k0 ?? null), [7, null, 9]);
  assert.deepEqual([...message.lanes[2].arrays.x.data], [9, 1, 2, 3]);
  const plain = read(joined(block("DMVP", { key: "player" }), one));
  assert.equal(plain.lanes, undefined);
  assert.equal(plain.header.k0, 7);
  assert.equal(read(block("DMVP", {})).header, null);
});
