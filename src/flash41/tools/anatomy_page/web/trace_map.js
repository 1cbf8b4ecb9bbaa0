// All layers over all positions: which rows the chosen token read.

const ROW = 13;
const LEFT = 46;
const SHADES = 5;

/** The selection a layer used: its own or that of its top-k owner. */
function selectionOf(doc, token, layer) {
  return layer.topk_owner === null ? null : token.layers[layer.topk_owner];
}

/** Ranks of scores in shades 0 .. SHADES-1, the best the darkest. */
function shades(scores) {
  const order = scores.map((score, index) => [score ?? -Infinity, index]).sort((a, b) => a[0] - b[0]);
  const found = new Array(scores.length);
  order.forEach(
    ([, index], rank) => (found[index] = Math.min(SHADES - 1, Math.floor((SHADES * rank) / scores.length))),
  );
  return found;
}

/** Rows as one path; neighbours become one rectangle. */
function rowsPath(rows, ratio, x, y, height) {
  const runs = [];
  for (const row of rows) {
    const last = runs.at(-1);
    if (last && row === last[1] + 1) last[1] = row;
    else runs.push([row, row]);
  }
  return runs
    .map(([first, last]) => {
      const from = x(first * ratio);
      return `M${from.toFixed(1)} ${y}h${Math.max(1, x((last + 1) * ratio) - from).toFixed(1)}v${height}H${from.toFixed(1)}z`;
    })
    .join("");
}

function drawMapRow(doc, token, layer, y, x) {
  const parts = [];
  const [first, last] = token.window;
  parts.push(
    svg("rect", {
      x: x(first).toFixed(1),
      y: y + 8,
      width: Math.max(1, x(last + 1) - x(first)).toFixed(1),
      height: 3,
      class: "seen-window",
    }),
  );
  const selection = selectionOf(doc, token, layer);
  if (selection?.sel) {
    const own = layer.topk_owner === layer.id;
    if (own && selection.sco) {
      const shade = shades(selection.sco);
      for (let level = 0; level < SHADES; level += 1) {
        const rows = selection.sel.filter((_, index) => shade[index] === level);
        if (rows.length)
          parts.push(
            svg("path", { d: rowsPath(rows, layer.ratio, x, y + 1, 7), class: `seen ${layer.mode} shade${level}` }),
          );
      }
    } else
      parts.push(
        svg("path", { d: rowsPath(selection.sel, layer.ratio, x, y + 1, 7), class: `seen ${layer.mode} shade2` }),
      );
  }
  const runs = layer.candidates && token.layers[doc.candidate_source]?.runs;
  if (runs) {
    const size = doc.candidate_block_size * layer.ratio;
    const d = runs
      .map(
        ([start, count]) =>
          `M${x(start * size).toFixed(1)} ${y + 0.5}H${Math.min(x((start + count) * size), x(token.position + 1)).toFixed(1)}`,
      )
      .join("");
    parts.push(svg("path", { d, class: "seen-blocks" }));
  }
  return parts;
}

function drawTraceMap(doc, state, token) {
  const layers = doc.layers.filter((layer) => !layer.draft);
  const bands = [];
  const told = h(
    "p",
    { class: "told", "aria-live": "polite" },
    "Point at the map: it names the position and the layer.",
  );
  const drawing = figure("Rows that each layer read for this token", (width) => {
    const count = token.position + 1;
    const x = (position) => LEFT + (Math.min(position, count) / count) * (width - LEFT - 1);
    bands.length = 0;
    const parts = layers.flatMap((layer, index) => {
      const y = 4 + index * ROW;
      const band = svg("rect", { x: 0, y: y - 0.5, width, height: ROW, class: "band" });
      bands.push(band);
      return [
        band,
        svg("text", { x: 0, y: y + 9, class: `row-name ${layer.mode}` }, `${layer.label} ${LETTERS[layer.mode]}`),
        ...drawMapRow(doc, token, layer, y, x),
      ];
    });
    const foot = layers.length * ROW + 18;
    parts.push(
      svg("text", { x: LEFT, y: foot, class: "faint" }, "position 0"),
      svg("text", { x: width, y: foot, class: "faint end" }, `position ${token.position}`),
    );
    light();
    return { parts, height: foot + 6 };
  });
  const light = () => bands.forEach((band, index) => band.classList.toggle("lit", index === state.layer));
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const index = Math.floor((event.clientY - box.top - 4) / ROW);
    const at = Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT - 1)) * (token.position + 1));
    if (!layers[index] || at < 0 || at > token.position) return;
    state.setLayer(index);
    told.textContent = `Layer ${layers[index].label}, position ${at}${tokenAt(doc, at)}.`;
  });
  return { element: h("div", { class: "trace-map" }, drawing, told, mapLegend(doc)), light };
}

function mapLegend(doc) {
  const swatch = (look, text) =>
    h(
      "li",
      {},
      svg(
        "svg",
        { viewBox: "0 0 16 12", width: 16, height: 12, "aria-hidden": "true" },
        svg("rect", { y: 2, width: 16, height: 8, class: look }),
      ),
      text,
    );
  const has = (mode) => doc.layers.some((layer) => layer.mode === mode);
  return h(
    "ul",
    { class: "legend" },
    swatch("seen-window", "window"),
    has("FULL") ? swatch("seen FULL shade4", "selected here from the whole plane; darker is a higher score") : null,
    has("REINDEX") ? swatch("seen REINDEX shade4", "selected anew") : null,
    has("REUSE") ? swatch("seen REUSE shade2", "selection of an earlier layer") : null,
    doc.layers.some((layer) => layer.candidates) ? swatch("blocks-swatch", "candidate blocks") : null,
  );
}

/** The token at a position, as ` "text"` or ` (id 5)`; empty where the trace does not know. */
function tokenAt(doc, position) {
  const id = doc.trace.ids?.[position];
  if (id === undefined || id === null) return "";
  const text = doc.trace.texts[id];
  return text === undefined ? ` (id ${id})` : ` \u201c${visible(text)}\u201d (id ${id})`;
}
