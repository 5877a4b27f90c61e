// Colours: words to numbers, scales, and the defaults that Python may override. Pure but for `themeOf`.

/** '#rrggbb' or 'rgb(...)' to [r, g, b]. */
export function rgb(color) {
  const hex = /^#?([0-9a-f]{3}|[0-9a-f]{6})([0-9a-f]{2})?$/i.exec(color.trim());
  if (hex) {
    const full = hex[1].length === 3 ? [...hex[1]].map((c) => c + c).join("") : hex[1];
    return [0, 2, 4].map((i) => parseInt(full.slice(i, i + 2), 16));
  }
  const parts = color.match(/[\d.]+/g);
  return parts && parts.length >= 3 ? parts.slice(0, 3).map(Number) : [128, 128, 128];
}

export function css([r, g, b], alpha = 1) {
  return `rgba(${Math.round(r)},${Math.round(g)},${Math.round(b)},${alpha})`;
}

export function mix(a, b, t) {
  return a.map((v, i) => v + (b[i] - v) * t);
}

/** `count` colours evenly along the given stops. */
export function scale(stops, count) {
  const colors = stops.map(rgb);
  return Array.from({ length: count }, (_, i) => {
    const at = (i / Math.max(1, count - 1)) * (colors.length - 1);
    const k = Math.min(colors.length - 2, Math.floor(at));
    return mix(colors[k], colors[k + 1], at - k);
  });
}

export function isDark(background) {
  const [r, g, b] = background;
  return 0.299 * r + 0.587 * g + 0.114 * b < 128;
}

// A pair is (light, dark). Okabe and Ito's palette, darkened or lightened where its contrast is short.
const DEFAULTS = {
  particles: ["#d55e00", "#ff9d3c"],
  none: ["#a9b1ba", "#6d7682"], // particles whose label is missing
  target: ["#5f6b7a", "#aab4c2"],
  labels: [
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#4d4d4d", "#8c510a", "#35978f"],
    ["#4aa8e8", "#ff8c42", "#2fc79a", "#e59ac5", "#f0e442", "#9bd4f5", "#b79ae0", "#c9c9c9", "#d9a05b", "#7fd6cc"],
  ],
  time: [["#3b0f70", "#8c2981", "#de4968", "#fe9f6d"], ["#5b7bf0", "#c774e8", "#ff8a7a", "#ffd88a"]],
  speed: [["#2b4c8c", "#1f8a8c", "#59a14f", "#d98e04"], ["#4f7fd9", "#35b8b0", "#9bd770", "#ffe066"]],
  curves: [["#d55e00", "#0072b2", "#009e73", "#b0568b", "#7a5195", "#8c6d00"],
    ["#ff9d3c", "#56b4e9", "#2fc79a", "#e59ac5", "#b79ae0", "#f0e442"]],
  lanes: [["#d55e00", "#0072b2", "#009e73", "#5a1fd6"], ["#d55e00", "#3d9bdc", "#1fbf8f", "#8355ff"]],
  arrow: ["#1f2937", "#f3f4f6"],
  drawn: ["#0072b2", "#56b4e9"],
};

/** Pick the light or the dark half of a pair; what is not a pair serves both. */
function half(value, dark) {
  const paired = Array.isArray(value) && value.length === 2 && Array.isArray(value[0]) === Array.isArray(value[1]);
  return paired ? value[dark ? 1 : 0] : value;
}

/** The colours in force: Streamlit's variables around `element`, Python's overrides, defaults. */
export function themeOf(element, overrides = {}) {
  const style = getComputedStyle(element);
  const read = (name, fallback) => {
    const value = style.getPropertyValue(name).trim();
    return value && value !== "unset" ? value : fallback;
  };
  const background = read("--st-background-color", "#ffffff");
  const dark = isDark(rgb(background));
  const theme = {
    dark,
    background,
    text: read("--st-text-color", dark ? "#fafafa" : "#31333f"),
    line: read("--st-border-color", dark ? "#41444e" : "#d9dbe0"),
    primary: read("--st-primary-color", "#0072b2"),
    font: read("--st-font", "system-ui, sans-serif"),
  };
  for (const [name, pair] of Object.entries(DEFAULTS)) theme[name] = half(overrides[name] ?? pair, dark);
  return theme;
}
