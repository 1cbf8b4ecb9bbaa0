// The four modes side by side: what each writes, reads and scores. A tick is a row, the newest at the right.

const TICKS = 40;
const WINDOW_TICKS = 8;
const BLOCK_TICKS = 4;
const CHOSEN = new Set([1, 4, 5, 11, 17, 18, 22, 29, 33, 38]);
const KEPT_BLOCKS = new Set([0, 1, 2, 4, 5, 7, 8, 9]);

function ticks(look) {
  const step = 100 / TICKS;
  const parts = Array.from({ length: TICKS }, (_, at) =>
    svg("rect", {
      x: (at * step + 0.3).toFixed(2),
      y: 1,
      width: (step - 0.6).toFixed(2),
      height: 14,
      class: `tick ${look(at)}`,
    }),
  );
  return svg(
    "svg",
    { class: "ticks", viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" },
    parts,
  );
}

const inWindow = (at) => at >= TICKS - WINDOW_TICKS;
const inBlocks = (at) => KEPT_BLOCKS.has(Math.floor(at / BLOCK_TICKS));

function resource(verbs, label, look) {
  const badges = verbs.map((verb) => h("span", { class: `verb ${verb}` }, verb));
  return h(
    "li",
    { class: verbs.length ? "resource" : "resource idle" },
    h("div", { class: "verbs" }, badges.length ? badges : h("span", { class: "verb none" }, "\u2013")),
    h("div", {}, h("span", { class: "resource-name" }, label), ticks(look)),
  );
}

function modeCard(doc, mode) {
  const {
    topk,
    window: width,
    channels,
    index_channels: keys,
    candidate_blocks: blocks,
    candidate_block_size: size,
  } = doc;
  const name = mode.mode;
  const isFull = name === "FULL";
  const reads = name !== "WINDOW";
  const scores = isFull || name === "REINDEX";
  const bounded = name === "REINDEX" && mode.bounded;
  const chosen = (at) => CHOSEN.has(at) && (!bounded || inBlocks(at));
  const rows = [
    resource(["writes", "reads"], `own window, ${width} x ${channels}`, (at) => (inWindow(at) ? "read" : "past")),
    resource(
      [...(isFull ? ["writes"] : []), ...(reads ? ["reads"] : [])],
      reads ? `${isFull ? "own" : "owner's"} main plane, n x ${channels}` : "main plane",
      (at) => (reads ? (chosen(at) ? "read" : "there") : "past"),
    ),
    resource(
      [...(isFull ? ["writes"] : []), ...(scores ? ["scores"] : [])],
      scores ? `${isFull ? "own" : "owner's"} index plane, n x ${keys}` : "index plane",
      (at) => (scores ? (!bounded || inBlocks(at) ? "score" : "there") : "past"),
    ),
    resource(scores ? ["writes"] : reads ? ["reads"] : [], reads ? `selection, ${topk} of n` : "selection", (at) =>
      reads && chosen(at) ? (scores ? "made" : "read") : "past",
    ),
  ];
  if (mode.produces || bounded) {
    rows.push(
      resource(
        [mode.produces ? "writes" : "reads"],
        `blocks, ${blocks} x ${size}${isFull ? ` (layer ${doc.candidate_source})` : ""}`,
        (at) => (inBlocks(at) ? (mode.produces ? "made" : "read") : "past"),
      ),
    );
  }
  const extra = mode.extra_parameters
    .map((count) => (count ? `${whole(count)} (${counted(count)})` : "none"))
    .join(" or ");
  const where = [
    mode.num_layers ? `${plural(mode.num_layers, "layer")}: ${mode.layers}` : null,
    mode.num_drafts ? plural(mode.num_drafts, "draft stage") : null,
  ]
    .filter(Boolean)
    .join("; ");
  return h(
    "article",
    { class: where ? "mode-card" : "mode-card absent" },
    h("h3", {}, h("span", { class: `cell mode ${name}`, "aria-hidden": "true" }, LETTERS[name]), name),
    h("p", { class: "where" }, where || "no layer of this model"),
    h("p", {}, mode.meaning),
    h("ul", { class: "resources" }, rows),
    where ? h("p", { class: "extra" }, "extra parameters per layer: ", h("b", {}, extra || "none")) : null,
  );
}

function drawModes(doc) {
  return [
    h(
      "div",
      { class: "mode-cards" },
      doc.modes.map((mode) => modeCard(doc, mode)),
    ),
  ];
}
