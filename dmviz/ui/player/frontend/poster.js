// The first picture, drawn while Plotly is still on its way: frame 0 over its target, as points on plain ground.

import { boxOf } from "./picture.js";
import { themeOf } from "./palette.js";
import { MISSING } from "./wire.js";

/** Frame i of a chunk in data coordinates, (n * dims); NaN where a number was not finite. */
export function positions(arrays, i) {
  const { data, shape } = arrays.x;
  const [, n, dims] = shape;
  const box = arrays.box.data;
  return Float32Array.from(data.subarray(i * n * dims, (i + 1) * n * dims), (code, at) =>
    code === MISSING ? NaN : box[at % dims] + box[dims + (at % dims)] * code);
}

/** Scale and shift that show a box whole in width x height with equal axes: screen = [ax + s x, ay - s y]. */
export function fitted([low, high], width, height, room = 0.86) {
  const spans = [high[0] - low[0] || 1, high[1] - low[1] || 1];
  const s = room * Math.min(width / spans[0], height / spans[1]);
  return { s, ax: width / 2 - (s * (low[0] + high[0])) / 2, ay: height / 2 + (s * (low[1] + high[1])) / 2 };
}

/** Put the poster of a message into `parent`; null where there is nothing to draw yet, or three dimensions to draw. */
export function poster(parent, { settings, header, arrays }) {
  if (!header?.scene || !header.count || !arrays.x || !arrays.target || arrays.x.shape[2] !== 2) return null;
  const canvas = document.createElement("canvas");
  canvas.className = "dmv-poster";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "particles at the start, over their target");
  const width = (parent.clientWidth || 800) * (parent.clientWidth > 700 ? 0.62 : 1);
  const ratio = window.devicePixelRatio || 1;
  canvas.style.cssText = `display:block;width:${width}px;height:${settings.height}px`;
  [canvas.width, canvas.height] = [width * ratio, settings.height * ratio];
  parent.append(canvas);
  const theme = themeOf(canvas, settings.colors);
  const particles = positions(arrays, 0);
  const target = arrays.target.data;
  const at = fitted(boxOf(2, target, particles), width, settings.height);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  for (const [points, color, radius, alpha] of [[target, theme.target, 2.2, 0.5], [particles, theme.particles, 3.2, 0.9]]) {
    [pen.fillStyle, pen.globalAlpha] = [color, alpha];
    for (let i = 0; i < points.length; i += 2) {
      if (!Number.isFinite(points[i] + points[i + 1])) continue;
      pen.beginPath();
      pen.arc(at.ax + at.s * points[i], at.ay - at.s * points[i + 1], radius, 0, 2 * Math.PI);
      pen.fill();
    }
  }
  performance.mark("dmviz-first-picture");
  return canvas;
}
