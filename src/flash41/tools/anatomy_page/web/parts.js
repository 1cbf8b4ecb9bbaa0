// Number formats, experts, residual mixing, Engram, drafter, vision tower.

/** A group of channels and what scales it. */
function groupDrawing(rows, columns) {
  const cell = 7;
  const squares = [];
  for (let y = 0; y < rows; y += 1)
    for (let x = 0; x < columns; x += 1)
      squares.push(`M${x * cell} ${y * cell}h${cell - 1.5}v${cell - 1.5}h-${cell - 1.5}z`);
  const width = columns * cell;
  const height = rows * cell;
  const parts = [
    svg("path", { d: squares.join(""), class: "code-cell" }),
    svg("rect", {
      x: width + 8,
      y: Math.max(0, height / 2 - 6),
      width: 12,
      height: Math.min(12, Math.max(height, 6)),
      class: "scale-cell",
    }),
  ];
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width + 22} ${Math.max(height, 7)}`,
      class: rows > 1 ? "group tall" : "group",
      width: (width + 22) / 1.6,
      "aria-hidden": "true",
    },
    parts,
  );
}

function drawFormats(doc) {
  const { storage, total } = doc.sizes;
  const card = (one) =>
    h(
      "article",
      { class: "format" },
      h("h3", {}, one.element + (one.scale ? ` with ${one.scale} scale` : "")),
      one.group ? groupDrawing(one.group[0], one.group[1]) : null,
      h("p", {}, one.group ? `${one.group[0]} x ${one.group[1]} share a scale` : "no scale"),
      h("p", { class: "where" }, one.users),
      h(
        "p",
        {},
        h("b", {}, sized(one.bytes)),
        `, ${percent(one.bytes / total.bytes)} of the disk; ${counted(one.parameters)} parameters, ${plural(one.tensors, "tensor")}`,
      ),
    );
  const rows = doc.parts.rows.map((row) => [row.label, row.element, `${row.scale} per ${row.group}`, row.where]);
  return [
    h("div", { class: "cards" }, storage.map(card)),
    h("h3", {}, "Rounded while it runs"),
    table(["what", "element", "scale", "where"], rows),
  ];
}

function expertGrid(count, chosen, look = () => "") {
  const perRow = Math.min(count, 48);
  const cell = 12;
  const parts = Array.from({ length: count }, (_, id) =>
    svg(
      "rect",
      {
        x: (id % perRow) * cell,
        y: Math.floor(id / perRow) * cell,
        width: cell - 2,
        height: cell - 2,
        rx: 2,
        class: `expert ${look(id)}`,
      },
      svg("title", {}, `expert ${id}`),
    ),
  );
  const height = Math.ceil(count / perRow) * cell;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${perRow * cell} ${height}`,
      class: "experts",
      role: "img",
      "aria-label": `${count} experts, ${chosen} chosen`,
    },
    parts,
  );
}

function mixDrawing(streams) {
  const gap = 22;
  const height = streams * gap + 74;
  const lines = Array.from({ length: streams }, (_, s) => {
    const y = 14 + s * gap;
    return [
      svg("line", { x1: 4, x2: 150, y1: y, y2: y, class: "stream" }),
      svg("line", { x1: 290, x2: 436, y1: y, y2: y, class: "stream" }),
      svg("path", { d: `M40 ${y}L70 ${height - 34}`, class: "pre" }),
      svg("path", { d: `M330 ${height - 34}L372 ${y}`, class: "post" }),
    ];
  });
  const box = (x, y, width, tall, text, look) => [
    svg("rect", { x, y, width, height: tall, rx: 4, class: `box ${look}` }),
    svg("text", { x: x + width / 2, y: y + tall / 2 + 4, class: "middle" }, text),
  ];
  return svg(
    "svg",
    {
      viewBox: `0 0 440 ${height}`,
      class: "mixing",
      role: "img",
      "aria-label": "Streams are collapsed by pre, mixed by comb, and receive the output by post",
    },
    lines.flat(),
    box(150, 4, 140, streams * gap, `comb ${streams} x ${streams}`, "mhc"),
    box(70, height - 48, 260, 28, "norm, attention or experts", "attn"),
    svg("text", { x: 18, y: height - 54, class: "faint" }, "pre"),
    svg("text", { x: 366, y: height - 54, class: "faint" }, "post"),
  );
}

function drawParts(doc) {
  const { mhc, moe, engram, draft, vision } = doc.parts;
  const streams = doc.forward.streams;
  const made = [
    h(
      "article",
      { class: "part" },
      h("h3", {}, `Residual mixing: ${plural(mhc.streams, "stream")}`),
      mixDrawing(mhc.streams),
      h(
        "p",
        {},
        `${mhc.num_values} values from all ${whole(mhc.num_inputs)} channels, in FP32: ${mhc.streams} pre, ${mhc.streams} post, a comb of ${mhc.streams} x ${mhc.streams} made doubly stochastic in ${mhc.iterations} steps. Only pre is delayed: a sub-layer reads the one that the sub-layer before predicted.`,
      ),
    ),
    h(
      "article",
      { class: "part" },
      h("h3", {}, `Experts: ${moe.num_chosen} of ${moe.num_experts}, and 1 shared`),
      expertGrid(moe.num_experts, moe.num_chosen),
      h(
        "p",
        {},
        `Each ${whole(moe.per_expert)} parameters: two matrices in, ${moe.hidden} to ${moe.inner}, one out. Chosen by score plus bias, weighted by the score alone, times ${moe.scale}.`,
      ),
    ),
  ];
  if (engram) made.push(engramCard(engram));
  else
    made.push(
      h("article", { class: "part absent" }, h("h3", {}, "Engram"), h("p", {}, "No layer of this model has a table.")),
    );
  const flows = [];
  if (draft)
    flows.push(
      h(
        "article",
        { class: "part wide" },
        h("h3", {}, `Drafter: ${draft.block} tokens in ${plural(draft.stages, "stage")}`),
        h(
          "p",
          {},
          `From one checkpoint with the model: embedding and head are shared. A block sees at most ${draft.window} rows of context and itself, in both directions.`,
        ),
        stepList(draft.steps, streams),
      ),
    );
  else
    flows.push(
      h("article", { class: "part absent" }, h("h3", {}, "Drafter"), h("p", {}, "This model has no draft stages.")),
    );
  flows.push(
    h(
      "article",
      { class: "part wide" },
      h("h3", {}, `Vision tower: ${plural(vision.layers, "block")}`),
      h(
        "p",
        {},
        `Pictures of at least ${whole(vision.min_pixels)} pixels become at most ${whole(vision.max_tokens)} positions. P counts patches.`,
      ),
      stepList(vision.steps, 1),
    ),
  );
  return [h("div", { class: "cards" }, made), ...flows];
}

function engramCard(engram) {
  const cell = 24;
  const left = 64;
  const grid = engram.orders.flatMap((order, row) => [
    svg("text", { x: 0, y: row * cell + 16, class: "faint" }, `${order}-gram`),
    ...Array.from({ length: engram.heads }, (_, head) =>
      svg(
        "rect",
        { x: left + head * cell, y: row * cell, width: cell - 3, height: cell - 3, rx: 2, class: "engram-cell" },
        svg("title", {}, `order ${order}, head ${head}: one row of ${engram.channels}`),
      ),
    ),
  ]);
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${left + engram.heads * cell} ${engram.orders.length * cell}`,
      class: "columns-drawing",
      role: "img",
      "aria-label": `${engram.columns} rows per token and layer`,
    },
    grid,
  );
  const tables = engram.tables.map((one) =>
    h(
      "li",
      {},
      `layer ${one.layer}: ${whole(one.rows)} rows`,
      h("div", { class: "weights" }, one.weights.map(weightChip)),
    ),
  );
  return h(
    "article",
    { class: "part" },
    h("h3", {}, `Engram: ${engram.columns} rows of ${engram.channels} per token and layer`),
    drawing,
    h(
      "p",
      {},
      `${engram.orders.length} orders times ${engram.heads} hash heads, each with a prime modulus of its own; together ${whole(engram.width)} channels, known from token ids alone before the forward.`,
    ),
    h("ul", {}, tables),
  );
}
