// The layer strip: a column per layer, a lane per question, and a panel that tells about the chosen layer.

const LETTERS = { WINDOW: "W", FULL: "F", REINDEX: "I", REUSE: "U" };
const SMALLEST_CELL = 25;
const LABELS = 92;

const LANES = [
  ["mode", (layer) => [LETTERS[layer.mode], `mode ${layer.mode}`]],
  ["ratio", (layer) => [String(layer.ratio), "plain"]],
  [
    "plane of",
    (layer, tints) => [
      layer.kv_owner ?? "",
      layer.kv_owner === null ? "none" : `plane tint${tints.kv.get(layer.kv_owner)}`,
    ],
  ],
  [
    "selection of",
    (layer, tints) => [
      layer.topk_owner ?? "",
      layer.topk_owner === null ? "none" : `pick tint${tints.topk.get(layer.topk_owner)}`,
    ],
  ],
  [
    "candidates",
    (layer) => [{ makes: "\u25cf", uses: "\u25cb" }[layer.candidates] ?? "", layer.candidates ? "cand" : "none"],
  ],
  ["Engram", (layer) => [layer.engram ? "E" : "", layer.engram ? "engram" : "none"]],
  ["draft tap", (layer) => [layer.tap ? "T" : layer.draft ? "D" : "", layer.tap || layer.draft ? "draft" : "none"]],
];

/** Lanes that have something to show. */
function usedLanes(layers) {
  const hasRows = (l) => l.kv_owner !== null;
  const isUsed = {
    "plane of": hasRows,
    "selection of": hasRows,
    candidates: (l) => l.candidates,
    Engram: (l) => l.engram,
    "draft tap": (l) => l.tap || l.draft,
  };
  return LANES.filter(([name]) => !isUsed[name] || layers.some(isUsed[name]));
}

function tintsOf(layers) {
  const order = (key) =>
    new Map([...new Set(layers.map((l) => l[key]).filter((o) => o !== null))].map((o, i) => [o, i % 2]));
  return { kv: order("kv_owner"), topk: order("topk_owner") };
}

function drawStrip(doc, state) {
  const { layers } = doc;
  const lanes = usedLanes(layers);
  const tints = tintsOf(layers);
  const columns = layers.map((layer, index) => {
    const cells = lanes.map(([, cell]) => {
      const [text, look] = cell(layer, tints);
      return h("span", { class: `cell ${look}` }, String(text));
    });
    const column = h(
      "button",
      { type: "button", class: "column", "data-layer": layer.id, "aria-label": spoken(layer), tabindex: "-1" },
      h("span", { class: "cell id" }, layer.draft ? layer.label.replace("mtp.", "m") : layer.label),
      cells,
    );
    column.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && state.setLayer(index));
    column.addEventListener("focus", () => state.setLayer(index));
    column.addEventListener("click", () => state.setLayer(index));
    column.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: layers.length - 1 }[event.key];
      if (to === undefined || !columns[to]) return;
      event.preventDefault();
      columns[to].focus();
    });
    return column;
  });
  const strip = h("div", { class: "strip", role: "group", "aria-label": "Layers: arrow keys go from one to the next" });
  const names = () =>
    h(
      "div",
      { class: "lane-names", "aria-hidden": "true" },
      h("span", { class: "cell id" }, "layer"),
      lanes.map(([name]) => h("span", { class: "cell" }, name)),
    );
  let perRow = 0;
  new ResizeObserver(([entry]) => {
    const fit = Math.max(4, Math.floor((entry.contentRect.width - LABELS) / SMALLEST_CELL));
    const rows = Math.ceil(layers.length / fit);
    const next = Math.ceil(layers.length / rows);
    if (next === perRow || entry.contentRect.width === 0) return;
    perRow = next;
    const focused = strip.getRootNode().activeElement;
    strip.replaceChildren(
      ...Array.from({ length: rows }, (_, row) => {
        const own = columns.slice(row * perRow, (row + 1) * perRow);
        const gap = Array.from({ length: perRow - own.length }, () => h("span", { class: "gap" }));
        return h("div", { class: "strip-row" }, names(), own, rows > 1 ? gap : []);
      }),
    );
    if (columns.includes(focused)) focused.focus();
  }).observe(strip);
  const panel = h("div", { class: "panel layer-panel", "aria-live": "polite" });
  state.onLayer((index) => {
    const chosen = layers[index];
    columns.forEach((column, at) => {
      const layer = layers[at];
      column.setAttribute("aria-pressed", String(at === index));
      column.tabIndex = at === index ? 0 : -1;
      column.classList.toggle(
        "reader",
        at !== index && !layer.draft && !chosen.draft && [layer.kv_owner, layer.topk_owner].includes(chosen.id),
      );
      column.classList.toggle(
        "kin",
        !layer.draft && !chosen.draft && (layer.id === chosen.kv_owner || layer.id === chosen.topk_owner),
      );
    });
    panel.replaceChildren(...layerFacts(doc, chosen));
  });
  return [strip, legend(doc), panel, groupTable(doc)];
}

const spoken = (layer) =>
  `Layer ${layer.label}: ${layer.mode}, ratio ${layer.ratio}` +
  (layer.kv_owner === null ? "" : `, plane of layer ${layer.kv_owner}, selection of layer ${layer.topk_owner}`) +
  (layer.engram ? ", Engram in front" : "") +
  (layer.tap ? ", feeds the drafter" : "");

function legend(doc) {
  const entry = (look, letter, text) => h("li", {}, h("span", { class: `cell ${look}` }, letter), text);
  const modes = doc.modes
    .filter((m) => m.num_layers + m.num_drafts)
    .map((m) =>
      entry(
        `mode ${m.mode}`,
        LETTERS[m.mode],
        `${m.mode}, ${m.num_layers}${m.num_drafts ? ` + ${m.num_drafts} draft` : ""}`,
      ),
    );
  const has = (test) => doc.layers.some(test);
  return h(
    "ul",
    { class: "legend" },
    modes,
    has((l) => l.candidates)
      ? [entry("cand", "\u25cf", "makes candidate blocks"), entry("cand", "\u25cb", "scores inside them")]
      : [],
    has((l) => l.engram) ? entry("engram", "E", "Engram table in front") : [],
    has((l) => l.tap) ? entry("draft", "T", "its input feeds the drafter") : [],
    has((l) => l.draft) ? entry("draft", "D", "draft stage") : [],
  );
}

function layerFacts(doc, layer) {
  const list = (items) =>
    h(
      "ul",
      {},
      items.map((item) => h("li", {}, item)),
    );
  const fact = (name, value) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value));
  const marks = [
    layer.engram ? "an Engram table in front" : null,
    layer.tap ? "its input feeds the drafter" : null,
    layer.candidates === "makes" ? "its scores choose the candidate blocks" : null,
    layer.candidates === "uses" ? `bounded by the candidate blocks of layer ${doc.candidate_source}` : null,
  ].filter(Boolean);
  const ratio =
    layer.ratio === 0 ? "window only" : layer.ratio === 1 ? "a row per token" : `a row per ${layer.ratio} tokens`;
  return [
    h(
      "h3",
      {},
      h("span", { class: `cell mode ${layer.mode}`, "aria-hidden": "true" }, LETTERS[layer.mode]),
      `Layer ${layer.label} \u00b7 ${layer.mode}`,
    ),
    h(
      "dl",
      {},
      fact("ratio", `${layer.ratio}: ${ratio}`),
      layer.kv_owner === null
        ? null
        : fact("owners", `rows of layer ${layer.kv_owner}, selection of layer ${layer.topk_owner}`),
      fact("writes", list(layer.writes)),
      fact("reads", list(layer.reads)),
      fact("scores", layer.scores),
      layer.read_by ? fact("read by layers", layer.read_by) : null,
      fact(
        "adds",
        layer.extra_parameters
          ? `${whole(layer.extra_parameters)} parameters (${counted(layer.extra_parameters)}) of compressor and indexer`
          : "no parameters to the common path",
      ),
      marks.length ? fact("also", list(marks)) : null,
    ),
  ];
}

function groupTable(doc) {
  const owner = (id) => (id === null ? "\u2013" : String(id));
  const rows = doc.groups.map((g) => [
    g.layers + (g.draft ? " (draft)" : ""),
    String(g.ratio),
    owner(g.kv_owner),
    owner(g.topk_owner),
    g.summary,
  ]);
  return h(
    "details",
    {},
    h("summary", {}, `${plural(doc.groups.length, "index group")}: runs of layers that read the same rows`),
    table(["layers", "ratio", "KV owner", "top-k owner", "modes"], rows, [1, 2, 3]),
  );
}
