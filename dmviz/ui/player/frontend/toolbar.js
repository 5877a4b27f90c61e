// The player's furniture: buttons with inline icons, fields, texts. Builds elements; knows nothing of frames.

const PATHS = {
  play: "M7 4.5v15l13-7.5z",
  pause: "M6 4.5h4v15H6zM14 4.5h4v15h-4z",
  back: "M18 5v14l-9.5-7zM6 5h2v14H6z",
  forward: "M6 5v14l9.5-7zM16 5h2v14h-2z",
  skip: "M4 5v14l7.5-7zM12 5v14l7.5-7z",
  reset: "M12 5V1.8L7.2 6 12 10.2V7a5.5 5.5 0 1 1-5.5 5.5h-2A7.5 7.5 0 1 0 12 5z",
  seed: "M5 3h14a2 2 0 0 1 2 2v14a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2zm0 2v14h14V5zm3.5 2a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3zm7 7a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3zM12 10.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3z",
  pen: "M3 17.2V21h3.8L18 9.8 14.2 6zM20.7 7.1a1 1 0 0 0 0-1.4l-2.4-2.4a1 1 0 0 0-1.4 0L15.1 5.1l3.8 3.8z",
  home: "M12 3l9 8h-2.5v9h-5v-6h-3v6h-5v-9H3z",
  fit: "M3 3h7v2H5v5H3zM14 3h7v7h-2V5h-5zM3 14h2v5h5v2H3zM19 14h2v7h-7v-2h5zM9 9h6v6H9z",
  image: "M12 15.5l-5-5 1.4-1.4 2.6 2.6V3h2v8.7l2.6-2.6L17 10.5zM4 19h16v2H4z",
};

export function icon(name) {
  return `<svg viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path fill="currentColor" d="${PATHS[name]}"/></svg>`;
}

/** An element with classes, attributes and children. */
export function el(tag, classes = "", attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A button with an icon; its label is read aloud and shown on hover. */
export function button(name, label, press, { word = "", primary = false } = {}) {
  const node = el("button", `dmv-button${primary ? " dmv-primary" : ""}`, { type: "button", "aria-label": label, title: label });
  node.innerHTML = (name ? icon(name) : "") + (word ? `<span>${word}</span>` : "");
  node.addEventListener("click", press);
  return node;
}

/** Change what a button shows. */
export function face(node, name, label) {
  if (node.dataset.face === name) return;
  node.dataset.face = name;
  node.querySelector("svg").outerHTML = icon(name);
  node.setAttribute("aria-label", label);
  node.title = label;
}

/** A button that stays pressed. */
export function toggle(name, label, word, change) {
  const node = button(name, label, () => {
    set(!(node.getAttribute("aria-pressed") === "true"));
    change(node.getAttribute("aria-pressed") === "true");
  }, { word });
  const set = (on) => node.setAttribute("aria-pressed", String(on));
  set(false);
  return Object.assign(node, { set });
}

/** A labelled list of choices. */
export function choice(label, options, change) {
  const select = el("select", "dmv-select", { "aria-label": label });
  for (const [value, word] of options) select.append(el("option", "", { value }, word));
  select.addEventListener("change", () => change(select.value));
  return Object.assign(el("label", "dmv-choice", {}, el("span", "", {}, label), select), { select });
}
