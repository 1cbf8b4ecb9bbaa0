// The engine as it runs: figures of the server, once a second while somebody looks.

import { getJson } from "./api.js";
import { byId, h, svg } from "./dom.js";

const PERIOD = 1000; // milliseconds
const KEPT = 120; // points of a history
const WIDTH = 240;
const HEIGHT = 48;

const CARDS = [
  { name: "speed", title: "Tokens per second", note: speedNote, wide: true },
  { name: "running", title: "Running", note: (now) => `of ${now.max_num_seqs} side by side`, most: (now) => now.max_num_seqs },
  { name: "waiting", title: "Waiting", note: (now) => `${whole(now.engine.num_finished)} finished` },
  { name: "pages", title: "Pages used", note: pagesNote, most: (now) => now.engine.num_pages },
  { name: "images", title: "State images", note: ({ engine }) => `${whole(engine.num_images_made)} made` },
  { name: "hits", title: "Prefix hits", note: hitsNote, unit: "%", most: () => 100 },
  { name: "step", title: "Step time", note: (now) => `${whole(now.engine.num_steps)} steps`, unit: " ms" },
];

const whole = (count) => count.toLocaleString("en");

function speedNote({ engine }) {
  const [accepted, drafted] = [engine.accepted_tokens, engine.drafted_tokens].map((counts) => counts.reduce((a, b) => a + b, 0));
  const drafts = drafted ? `, ${whole(accepted)} of ${whole(drafted)} drafts accepted` : "";
  return `${whole(engine.num_generated_tokens)} generated${drafts}`;
}

function pagesNote({ engine }) {
  const kept = engine.num_kept_pages ? `, ${whole(engine.num_kept_pages)} kept` : "";
  return `of ${whole(engine.num_pages)}${kept}, ${whole(engine.num_free_pages)} free`;
}

function hitsNote({ engine }) {
  return `${whole(engine.cached_tokens)} of ${whole(engine.wanted_tokens)} tokens read`;
}

/** The live tab. */
export class Live {
  constructor() {
    this.last = null;
    this.timer = null;
    this.isShown = false;
    this.cards = CARDS.map((card) => new Card(card));
    byId("cards").append(...this.cards.map((card) => card.element));
    document.addEventListener("visibilitychange", () => this.restart());
  }

  /** Begins or ends to ask the server. */
  show(isShown) {
    this.isShown = isShown;
    this.restart();
  }

  restart() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.isShown && document.visibilityState === "visible") this.tick();
  }

  async tick() {
    const timer = (this.timer = setTimeout(() => this.tick(), PERIOD));
    if (this.isAsking) return; // the last answer is still on its way
    this.isAsking = true;
    try {
      const stats = await getJson("v1/stats");
      if (this.timer !== null && timer) this.take(stats, performance.now());
    } catch (error) {
      this.fail(error);
    } finally {
      this.isAsking = false;
    }
  }

  take(stats, now) {
    const values = figures(stats, this.last, now);
    this.last = { stats, now };
    for (const card of this.cards) card.take(values[card.name], stats);
    const { engine } = stats;
    const troubles = [];
    if (engine.num_failed_steps) troubles.push(`${whole(engine.num_failed_steps)} failed steps`);
    if (engine.num_preemptions) troubles.push(`${whole(engine.num_preemptions)} preemptions`);
    this.say([engine.num_running ? "computing" : "idle", ...troubles].join(", "), false);
    if (!byId("choices").children.length) byId("choices").append(...stats.choices.map((one) => h("li", {}, one)));
  }

  fail(error) {
    this.last = null;
    this.say(error.message, true);
  }

  say(text, isFault) {
    const state = byId("live-state");
    state.classList.toggle("fault", isFault);
    if (state.textContent !== text) state.textContent = text; // said once, not every second
  }
}

/** What the cards show, from two looks at the engine. */
function figures(stats, last, now) {
  const { engine } = stats;
  const before = last?.stats.engine;
  const since = (name) => (before ? Math.max(0, engine[name] - before[name]) : 0);
  const seconds = last ? (now - last.now) / 1000 : 1;
  const steps = since("num_steps");
  return {
    speed: since("num_generated_tokens") / seconds,
    running: engine.num_running,
    waiting: engine.num_waiting,
    pages: engine.num_used_pages,
    images: engine.num_images,
    hits: engine.wanted_tokens ? (100 * engine.cached_tokens) / engine.wanted_tokens : 0,
    step: steps ? (1000 * since("step_seconds")) / steps : 0,
  };
}

/** One figure and its last two minutes. */
class Card {
  constructor({ name, title, note, unit = "", most = () => 0, wide = false }) {
    Object.assign(this, { name, note, unit, most });
    this.history = [];
    this.value = h("output", { class: "figure" }, "\u2013");
    this.remark = h("p", { class: "remark" }, "\u00a0");
    this.area = svg("polygon", { class: "area", points: "" });
    this.line = svg("polyline", { class: "line", points: "" });
    const options = { class: "history", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    const drawing = svg("svg", options, this.area, this.line);
    this.top = h("span", { class: "top", "aria-hidden": "true" });
    const parts = [h("h3", {}, title), this.value, this.remark, h("div", { class: "drawing" }, drawing, this.top)];
    this.element = h("div", { class: wide ? "card wide" : "card", "data-figure": name }, ...parts);
  }

  take(value, stats) {
    this.history.push(value);
    if (this.history.length > KEPT) this.history.shift();
    this.value.textContent = shown(value) + this.unit;
    this.remark.textContent = this.note(stats);
    const peak = Math.max(...this.history);
    const most = this.most(stats) || peak || 1;
    this.top.textContent = peak ? `peak ${shown(peak)}${this.unit}` : "";
    this.draw(most);
  }

  draw(most) {
    const step = WIDTH / (KEPT - 1);
    const start = WIDTH - step * (this.history.length - 1);
    const y = (value) => (HEIGHT - 1.5 - (HEIGHT - 4) * Math.min(1, value / most)).toFixed(1);
    const points = this.history.map((value, index) => `${(start + index * step).toFixed(1)},${y(value)}`);
    this.line.setAttribute("points", points.join(" "));
    this.area.setAttribute("points", `${start.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }
}

function shown(value) {
  return Number.isInteger(value) ? whole(value) : value.toFixed(value < 100 ? 1 : 0);
}
