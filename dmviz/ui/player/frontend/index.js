// Entry of the component: Streamlit calls the default export whenever data or theme change.

import { Arena } from "./arena.js";
import { Player } from "./player.js";
import { poster } from "./poster.js";
import { read } from "./wire.js";

const KEPT = 3000; // ms a player without a parent is kept: Streamlit may mount the component anew while it plays
const players = new Map(); // key -> {player, parent, timer}

/** The vendored plotly.js, loaded once for the page. */
function plotly() {
  window.__dmvizPlotly ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL("./vendor/plotly.min.js", import.meta.url).href;
    script.onload = () => done(window.Plotly ?? window.moduleName);
    script.onerror = () => failed(new Error("the player could not load its copy of plotly.min.js"));
    document.head.append(script);
  });
  return window.__dmvizPlotly;
}

/** Until the browser has painted what was drawn, or at once where it will not: a hidden tab paints nothing. */
function painted() {
  if (window.Plotly || document.hidden) return Promise.resolve();
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
}

function publish() {
  window.__dmviz = Object.fromEntries([...players].map(([key, entry]) => [key, entry.player.hook()]));
}

export default async function mount({ data, parentElement, setTriggerValue }) {
  const message = data ? read(data) : null;
  if (!window.Plotly && message && !parentElement.querySelector(".dmv-poster, .dmv")) poster(parentElement, message);
  await painted(); // the poster is on screen before Plotly takes the thread
  const Plotly = await plotly();
  parentElement.querySelector(".dmv-poster")?.remove();
  if (!message) return undefined;
  const key = message.settings.key;
  let entry = players.get(key);
  if (!entry) {
    const Kind = message.lanes ? Arena : Player;
    entry = { player: new Kind(key, message.settings, Plotly), parent: null, timer: 0 };
    players.set(key, entry);
  }
  clearTimeout(entry.timer);
  if (entry.parent !== parentElement) {
    if (entry.parent) entry.player.inflight = null; // its answer may have gone to the old place
    entry.parent = parentElement;
    parentElement.append(entry.player.host);
  }
  entry.player.send = setTriggerValue;
  entry.player.push(message);
  publish();
  return () => {
    if (entry.parent !== parentElement) return; // moved on already
    entry.timer = setTimeout(() => {
      entry.player.destroy();
      players.delete(key);
      publish();
    }, KEPT);
  };
}
