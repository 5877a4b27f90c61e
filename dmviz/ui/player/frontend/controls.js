// Transport, options and texts around the view. Calls `act.*`; shows what `show` is given.

import { FACTORS } from "./transport.js";
import { number } from "./curves.js";
import { button, choice, el, face, toggle } from "./toolbar.js";

const TRAILS = [["off", "off"], ["short", "short"], ["long", "long"]];
const COLORS = [["plain", "one colour"], ["label", "label"], ["time", "time"], ["speed", "speed"]];

export class Controls {
  constructor(act, options) {
    this.act = act;
    this.alert = el("div", "dmv-alert", { role: "alert", hidden: true });
    this.said = el("div", "dmv-said", { role: "status", "aria-live": "polite" });
    this.transport = this.buildTransport();
    this.options = this.buildOptions(options);
    this.drawBar = this.buildDrawBar();
    this.status = el("div", "dmv-bar");
    this.clock = el("div", "dmv-clock");
    this.note = el("div", "dmv-note");
    this.status.append(this.clock, this.note);
    this.table = el("table", "dmv-table", { "aria-label": "values at the current step" });
    this.log = toggle("", "Logarithmic scale", "log", (on) => act.log(on));
    this.log.classList.add("dmv-plain");
    this.log.set(options.log);
    this.spoken = 0;
  }

  buildTransport() {
    const { act } = this;
    this.play = button("play", "Play (Space)", () => act.toggle(), { primary: true });
    this.reset = button("reset", "Reset to the start, same seed (R)", () => act.reset());
    this.back = button("back", "One frame back (←)", () => act.step(-1));
    this.forward = button("forward", "One frame forward (→)", () => act.step(1));
    const range = { min: 1, max: 5000, step: 1, value: 10 };
    this.jump = el("input", "dmv-number", { type: "number", ...range, "aria-label": "frames to skip" });
    this.skip = button("skip", "Skip that many frames (Shift+→)", () => act.step(this.stride()));
    this.slider = el("input", "dmv-slider", { type: "range", min: 0, max: 1, step: 1, value: 0, "aria-label": "frame" });
    this.slider.addEventListener("input", () => act.scrub(Number(this.slider.value)));
    this.slider.addEventListener("change", () => act.scrubbed());
    this.count = el("div", "dmv-count");
    this.factor = choice("Speed", FACTORS.map((f) => [String(f), `${f}×`]), (value) => act.setFactor(Number(value)));
    this.factor.select.value = "1";
    this.rate = el("div", "dmv-rate");
    return el("div", "dmv-bar", { role: "group", "aria-label": "transport" },
      this.reset, this.back, this.play, this.forward, this.skip, this.jump, this.slider, this.count, this.factor, this.rate);
  }

  buildOptions(options) {
    const { act } = this;
    this.trails = choice("Trails", TRAILS, (value) => act.option("trails", value));
    this.trails.select.value = options.trails;
    this.color = choice("Colour by", COLORS, (value) => act.option("color", value));
    this.color.select.value = options.color;
    this.arrows = toggle("", "Velocity arrows", "Arrows", (on) => act.option("arrows", on));
    this.arrows.set(options.arrows);
    this.target = toggle("", "Show the target", "Target", (on) => act.option("target", on));
    this.target.set(options.target);
    this.draw = toggle("pen", "Draw a target", "Draw target", (on) => act.draw(on));
    this.seed = button("seed", "New seed: other particles from the same source", () => act.seed(), { word: "New seed" });
    this.png = button("image", "Save the view as a png", () => act.png(), { word: "png" });
    for (const node of [this.arrows, this.target, this.draw]) node.classList.add("dmv-plain");
    return el("div", "dmv-bar", { role: "group", "aria-label": "view" },
      this.trails, this.color, this.arrows, this.target, el("div", "dmv-gap"), this.draw, this.seed, this.png);
  }

  buildDrawBar() {
    const { act } = this;
    this.drawCount = el("div", "dmv-count");
    this.undo = button("", "Undo the last stroke", () => act.undo(), { word: "Undo" });
    this.clear = button("", "Remove all drawn points", () => act.clear(), { word: "Clear" });
    this.use = button("", "Use the drawn points as target", () => act.use(), { word: "Use as target" });
    for (const node of [this.undo, this.clear, this.use]) node.classList.add("dmv-plain");
    this.drawCount.style.textAlign = "left";
    const hint = el("div", "", {}, "Click or drag in the view to place points.");
    return el("div", "dmv-bar", { role: "group", "aria-label": "drawing", hidden: true },
      hint, this.drawCount, el("div", "dmv-gap"), this.undo, this.clear, this.use);
  }

  stride() {
    const value = Math.round(Number(this.jump.value));
    return Number.isFinite(value) && value >= 1 ? Math.min(value, 5000) : 1;
  }

  showDrawing(on, points, drawable) {
    this.drawBar.hidden = !on;
    this.draw.set(on);
    this.draw.disabled = !drawable;
    this.drawCount.textContent = points === 1 ? "1 point" : `${points} points`;
    for (const node of [this.undo, this.clear, this.use]) node.disabled = points === 0;
  }

  /** Texts and positions; called a dozen times a second at most. */
  show(s) {
    face(this.play, s.playing ? "pause" : "play", s.playing ? "Pause (Space)" : "Play (Space)");
    const last = Math.max(0, s.available - 1);
    set(this.slider, "max", String(Math.max(1, last)));
    if (document.activeElement !== this.slider || s.playing) set(this.slider, "value", String(Math.round(s.pos)));
    this.slider.disabled = s.available < 2;
    this.back.disabled = s.pos <= 0;
    this.reset.disabled = s.pos <= 0 && !s.playing;
    this.forward.disabled = this.skip.disabled = s.ended !== "" && s.pos >= last;
    this.slider.setAttribute("aria-valuetext", `step ${s.step}`);
    text(this.count, s.goal !== null ? `computing ${s.available.toLocaleString("en")} / ${(s.goal + 1).toLocaleString("en")}`
      : `frame ${Math.round(s.pos).toLocaleString("en")} / ${last.toLocaleString("en")}`);
    const wanted = s.speed * s.perFrame;
    const slow = s.playing && s.actual > 0 && s.actual < 0.8 * s.speed;
    text(this.rate, slow ? `${short(s.actual * s.perFrame)} of ${short(wanted)} steps/s` : `${short(wanted)} steps/s`);
    const pace = s.ms === null ? "" : ` · ${number(s.ms / s.perFrame)} ms a step`;
    const time = s.time === null ? "" : ` · time ${number(s.time)}`; // lanes of an arena have a time each
    const clock = `step ${s.step.toLocaleString("en")}|${time}${s.device ? ` · ${s.device}` : ""}${pace}`;
    if (this.clockText !== clock) {
      this.clockText = clock;
      const [bold, rest] = clock.split("|");
      this.clock.replaceChildren(el("b", "", {}, bold), rest);
    }
    text(this.note, s.note);
    this.alert.hidden = s.ended === "";
    text(this.alert, s.ended);
    this.speak(s);
  }

  /** What a screen reader is told: step and loss, every four seconds, and when it stops. */
  speak(s) {
    const now = performance.now();
    const due = now - this.spoken > 4000 || s.playing !== this.spokenPlaying;
    if (!due || s.available === 0) return;
    [this.spoken, this.spokenPlaying] = [now, s.playing];
    text(this.said, `${s.playing ? "Playing" : "Paused"}, step ${s.step}, loss ${number(s.loss)}`);
  }

  /** The values of the curves at the current frame: [color, title, value, unit, step of the value]. */
  showTable(rows) {
    while (this.table.rows.length > rows.length) this.table.deleteRow(-1);
    rows.forEach(([color, title, value, unit, at], i) => {
      let row = this.table.rows[i];
      if (!row) {
        row = this.table.insertRow();
        row.insertCell().append(el("i"), el("span"));
        row.insertCell();
        row.insertCell();
      }
      row.cells[0].firstChild.style.background = color;
      text(row.cells[0].lastChild, title);
      text(row.cells[1], number(value));
      text(row.cells[2], at === null ? unit : `${unit}${unit ? ", " : ""}step ${at}`);
    });
  }
}

function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

function set(node, name, value) {
  if (node[name] !== value) node[name] = value;
}

function short(value) {
  return value >= 10 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}
