// One lane of the arena: its frames, its picture, and a line above that names it.

import { Store } from "./store.js";
import { Picture } from "./picture.js";
import { View3D } from "./view3d.js";
import { FlatView } from "./flat.js";
import { sameNumbers } from "./player.js";
import { standing } from "./together.js";
import { number } from "./curves.js";
import { el } from "./toolbar.js";

const MOST_BYTES = 96 * 2 ** 20; // of frames in the browser

export class Lane {
  /** @param {{plane: any, camera: any}} shared what views have in common */
  constructor(index, shared, Plotly) {
    this.index = index;
    this.store = Object.assign(new Store(MOST_BYTES), { gen: -1 });
    Object.assign(this, { run: "", ended: "", ms: null, frameBytes: 0, scene: null, sceneDue: true, staged: false, at: null });
    this.wait = el("div", "dmv-wait", {}, "Setting the stage …");
    this.view = el("div", "dmv-view", {}, this.wait);
    this.swatch = el("i");
    this.name = el("b");
    this.said = el("span");
    this.end = el("div", "dmv-lane-end", { role: "status", hidden: true });
    const head = el("div", "dmv-lane-head", {}, this.swatch, this.name, this.said);
    this.host = el("section", "dmv-lane", { "aria-label": `lane ${index + 1}` }, head, this.view, this.end);
    const own = (dims, changed) => (dims === 3 ? new View3D(changed, shared.camera) : new FlatView(shared.plane, changed));
    this.picture = new Picture(this.view, Plotly, { drew: () => {} }, own);
  }

  /** Take in a chunk. @returns {boolean} whether another run begins with it */
  take({ header, arrays }) {
    if (!header) return false;
    const begins = header.gen !== this.store.gen || header.run !== this.run;
    if (begins) this.begin(header);
    [this.ended, this.ms, this.frameBytes, this.threads] = [header.ended, header.ms, header.frame_bytes, header.threads];
    this.store.add(header, arrays);
    if (header.scene) this.setScene(header.scene, arrays);
    return begins;
  }

  begin(header) {
    this.store.clear();
    this.store.gen = header.gen;
    this.run = header.run;
    this.ended = "";
    this.sceneDue = true;
    this.staged = false;
    this.at = null;
    this.host.classList.add("dmv-stale");
  }

  setScene(words, arrays) {
    const scene = { ...words, id: `${this.run}/${this.store.gen}` };
    for (const name of ["target", "target_weight", "target_label", "weight", "label"]) {
      scene[name] = arrays[name]?.data ?? null;
    }
    this.scene = scene;
    this.sceneDue = false;
    this.staged = false;
  }

  /** Nothing to show: it ended before its first frame. */
  get out() {
    return this.ended !== "" && this.store.available === 0;
  }

  /** Put a new scene on the view once its first frame is here. */
  async stage(theme) {
    if (this.staging || this.staged || !this.scene || this.store.n === 0) return;
    this.staging = true;
    const scene = this.scene;
    const old = this.shown;
    const same = old?.dims === scene.dims && String(old.axes) === String(scene.axes) && sameNumbers(old.target, scene.target);
    const first = new Float32Array(this.store.n * this.store.dims);
    this.store.positions(0, first);
    try {
      await this.picture.setScene(scene, first, theme, same);
    } finally {
      this.staging = false;
    }
    this.shown = scene;
    this.staged = scene === this.scene;
    this.wait.remove();
    if (this.staged) this.host.classList.remove("dmv-stale");
  }

  /** @returns {boolean} whether pixels were written */
  paint(pos, options) {
    this.at = standing(this, pos);
    return this.picture.paint(this.store, this.at, options);
  }

  /** The line above the view, and the sentence below it where the lane has ended. */
  tell(title, color, pos) {
    this.swatch.style.background = color;
    put(this.name, `${this.index + 1} · ${title}`);
    this.name.title = title;
    const at = standing(this, pos);
    const k = Math.min(Math.round(at), Math.max(0, this.store.known - 1));
    const stopped = this.ended !== "" && pos >= this.store.available - 1;
    const loss = this.store.metrics.get("loss")?.[k];
    put(this.said, stopped ? `stays at step ${this.store.step[k] ?? 0}` : `loss ${number(loss ?? NaN)}`);
    this.host.classList.toggle("dmv-over", stopped);
    const words = stopped ? this.ended : "";
    this.end.hidden = words === "";
    put(this.end, words);
    const says = `lane ${this.index + 1}, ${title}: ${this.store.n} particles at step ${this.store.step[k] ?? 0}`;
    this.picture.layers.front.setAttribute("aria-label", says);
  }

  destroy() {
    this.picture.destroy();
    this.host.remove();
  }
}

function put(node, words) {
  if (node.textContent !== words) node.textContent = words;
}
