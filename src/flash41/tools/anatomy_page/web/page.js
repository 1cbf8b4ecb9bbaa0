// The page: head, contents, sections. `drawAnatomy` draws a document into an element.

const FIRST_SHOWN = ["FULL", "REUSE", "WINDOW"];

class State {
  constructor(layer) {
    this.layer = layer;
    this.listeners = [];
  }

  /** Calls `listener` with the chosen layer, now and whenever it changes. */
  onLayer(listener) {
    this.listeners.push(listener);
    listener(this.layer);
  }

  setLayer(layer) {
    if (layer === this.layer) return;
    this.layer = layer;
    for (const listener of this.listeners) listener(layer);
  }
}

const SECTIONS = [
  [
    "layers",
    "Layers",
    () =>
      "Three lists of the configuration give every layer one of four modes. Point at a layer, or go along with the arrow keys: the panel, the forward and the trace follow.",
    drawStrip,
  ],
  [
    "trace",
    "What really happened",
    (doc) => `A trace of ${plural(doc.trace.num_tokens, "token")}: which rows, experts and tables one of them met.`,
    drawTrace,
  ],
  [
    "forward",
    "The forward, shape by shape",
    () =>
      "T rows go through together; n is what a token sees of a plane. The lines at the left are the residual streams, the dot is the sub-layer beside them.",
    drawFlow,
  ],
  [
    "modes",
    "Four modes of attention",
    () =>
      "Query and output are the same in all of them, and so is the own window. They differ in what is written, where the selection comes from, and what is scored.",
    drawModes,
  ],
  [
    "memory",
    "PAGE and STATE to scale",
    (doc) =>
      `A PAGE holds ${doc.memory.block_size} tokens of all planes and grows with history; a STATE entry is what one request needs to go on, whatever its length.`,
    drawMemory,
  ],
  [
    "sizes",
    "Where the parameters are",
    () => "Every area is exact: the ledger is derived from the names and shapes that the configuration implies.",
    drawSizes,
  ],
  [
    "formats",
    "Number formats",
    () => "Weights stay on disk as they are read; what is rounded at run time is part of the model.",
    drawFormats,
  ],
  ["parts", "Mixing, experts, tables, drafter, vision", () => "The mechanisms around attention.", drawParts],
];

function head(doc) {
  const value = ({ value: number, unit }) =>
    ({ count: counted, bytes: sized, plain: whole, text: String })[unit](number);
  const exact = ({ value: number, unit }) => (unit === "count" || unit === "bytes" ? whole(number) : null);
  const facts = doc.facts.map((fact) =>
    h(
      "div",
      { class: "tile-fact", title: exact(fact) },
      h("dt", {}, fact.label),
      h("dd", {}, value(fact)),
      h("p", {}, fact.note),
    ),
  );
  const lead =
    doc.title === doc.name ? "Drawn from its configuration." : `${doc.name[0].toUpperCase()}${doc.name.slice(1)}.`;
  return h(
    "header",
    { class: "head" },
    h("p", { class: "kicker" }, "Anatomy of a model"),
    h("h1", {}, doc.title),
    h("p", { class: "lead" }, lead),
    h("dl", { class: "facts" }, facts),
  );
}

function drawAnatomy(root, doc) {
  const backbone = doc.layers.filter((layer) => !layer.draft);
  const mode = FIRST_SHOWN.find((one) => backbone.some((layer) => layer.mode === one));
  const state = new State(
    Math.max(
      0,
      backbone.findIndex((layer) => layer.mode === mode),
    ),
  );
  const own = SECTIONS.filter(([id]) => id !== "trace" || doc.trace);
  const sections = own.map(([id, title, lead, draw]) =>
    h(
      "section",
      { id: `anatomy-${id}`, class: `section ${id}`, "aria-labelledby": `anatomy-${id}-title` },
      h("h2", { id: `anatomy-${id}-title`, tabindex: "-1" }, title),
      h("p", { class: "lead" }, lead(doc)),
      draw(doc, state),
    ),
  );
  const go = (section) => {
    section.scrollIntoView();
    section.querySelector("h2").focus({ preventScroll: true });
  };
  const contents = h(
    "nav",
    { class: "contents", "aria-label": "Contents" },
    own.map(([, title], index) => h("button", { type: "button", click: () => go(sections[index]) }, title)),
  );
  const foot = h(
    "footer",
    {},
    `flash41 ${doc.version}. Every number follows from config.json${doc.trace ? " and the trace" : ""}.`,
  );
  root.replaceChildren(head(doc), contents, ...sections, foot);
  window.addEventListener("beforeprint", () => root.querySelectorAll("details").forEach((one) => (one.open = true)));
}
