// What really happened to one token: a slider over tokens, maps over all layers, all numbers of one layer.

const MOST_LISTED = 16;

function drawTrace(doc, state) {
  const { trace } = doc;
  const tokens = trace.tokens;
  const start = Math.max(
    0,
    tokens.findIndex((token) => token.position === trace.chosen),
  );
  const slider = h("input", { type: "range", min: 0, max: tokens.length - 1, value: start, "aria-label": "Token" });
  const name = h("output", { class: "token-name" });
  const chips = h(
    "div",
    { class: "chips", "aria-hidden": "true" },
    tokens.map((token, index) => h("span", { class: "chip", click: () => show(index) }, chipText(doc, token.position))),
  );
  const maps = h("div", {});
  const detail = h("div", { class: "panel trace-detail" });
  let shown = start;
  let light = () => {};
  const show = (index) => {
    shown = index;
    const token = tokens[index];
    slider.value = index;
    const spoken = `position ${token.position} of ${trace.num_tokens}${tokenAt(doc, token.position)}`;
    slider.setAttribute("aria-valuetext", spoken);
    name.textContent = spoken;
    [...chips.children].forEach((chip, at) => chip.classList.toggle("shown", at === index));
    const map = drawTraceMap(doc, state, token);
    light = map.light;
    maps.replaceChildren(...overview(doc, token, map.element, state));
    detail.replaceChildren(...layerDetail(doc, token, doc.layers[state.layer]));
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  const step = (by, label, sign) =>
    h(
      "button",
      { type: "button", "aria-label": label, click: () => show(Math.min(tokens.length - 1, Math.max(0, shown + by))) },
      sign,
    );
  state.onLayer((index) => {
    light();
    detail.replaceChildren(...layerDetail(doc, tokens[shown], doc.layers[index]));
  });
  show(start);
  const notes = [...trace.notes, ...trace.missing.map((missing) => `Not in this trace: ${missing}.`)];
  return [
    h("div", { class: "token-bar" }, step(-1, "Token before", "\u2039"), slider, step(1, "Next token", "\u203a"), name),
    chips,
    notes.length
      ? h(
          "ul",
          { class: "faults" },
          notes.map((note) => h("li", {}, note)),
        )
      : null,
    maps,
    h("h3", {}, "One layer in numbers"),
    h("p", { class: "hint" }, "Chosen in the layer strip, in the list of layers, or on the map."),
    detail,
    ...draftBlock(doc),
  ];
}

function chipText(doc, position) {
  const id = doc.trace.ids?.[position];
  const text = doc.trace.texts[id];
  return text === undefined ? String(id ?? position) : visible(text) || "\u2205";
}

function overview(doc, token, map, state) {
  const part = (title, ...children) => (children.some(Boolean) ? [h("h3", {}, title), ...children] : []);
  return [
    ...part("Rows that were read", map),
    ...part("What came out", best(doc, token)),
    ...part("Experts, darker for a larger weight", drawExperts(doc, token, state)),
    ...part("Residual mixing: comb of attention and of experts in each layer", drawMixes(doc, token)),
    ...part("Size of each stream at the entry of each layer, logarithmic", drawStreams(doc, token)),
  ];
}

function named(doc, id) {
  const text = doc.trace.texts[id];
  return text === undefined ? `id ${id}` : `\u201c${visible(text)}\u201d (${id})`;
}

function best(doc, token) {
  if (!token.best) return null;
  const rows = token.best.map(([id, , chance]) => [named(doc, id), chance ?? 0]);
  const follows = token.next
    ? h("p", { class: "hint" }, `The token that follows is ${named(doc, token.next[0])}, rank ${whole(token.next[1])}.`)
    : null;
  const list = bars(rows, 1, (value) => percent(value));
  list.classList.add("best");
  return h("div", {}, list, follows);
}

function layerDetail(doc, token, layer) {
  const head = h(
    "h4",
    {},
    h("span", { class: `cell mode ${layer.mode}`, "aria-hidden": "true" }, LETTERS[layer.mode]),
    `Layer ${layer.label} \u00b7 ${layer.mode} \u00b7 position ${token.position}`,
  );
  if (layer.draft)
    return [
      head,
      h("p", {}, "Draft stages run behind the last token; their block is shown below where the trace has it."),
    ];
  const own = token.layers[layer.id];
  const [first, last] = token.window;
  const facts = [["window", `positions ${first} to ${last}: ${plural(last - first + 1, "row")}`]];
  const lists = [];
  const selection = selectionOf(doc, token, layer);
  if (selection?.sel) {
    const whose = layer.topk_owner === layer.id ? "chosen here" : `chosen by layer ${layer.topk_owner}`;
    facts.push([
      "selection",
      `${plural(selection.sel.length + (selection.more ?? 0), "row")} of ${whole(selection.n)} visible, ${whose}`,
    ]);
    if (selection.sco?.length)
      facts.push([
        "cut",
        selection.cut === null || selection.cut === undefined
          ? "every row that could be chosen was"
          : `lowest chosen ${digits(Math.min(...selection.sco.map((score) => score ?? Infinity)))}, best left out ${digits(selection.cut)}`,
      ]);
    lists.push(selectedRows(doc, selection, layer));
  } else if (layer.ratio && selection) facts.push(["selection", "not in this trace"]);
  const source = layer.candidates ? token.layers[doc.candidate_source] : null;
  if (source?.runs)
    facts.push([
      "candidate blocks",
      `${plural(source.blocks, "block")} of ${doc.candidate_block_size} rows: ${source.runs.map(([start, count]) => (count === 1 ? start : `${start}\u2013${start + count - 1}`)).join(", ")}`,
    ]);
  if (own.e) facts.push(["experts", own.e.map((id, at) => `${id}: ${digits(own.w?.[at])}`).join("   ")]);
  if (own.rows) facts.push(["Engram rows", own.rows.map(whole).join("   ")]);
  if (own.gate)
    facts.push(["Engram gate", own.gate.map((gate, stream) => `stream ${stream}: ${digits(gate)}`).join("   ")]);
  const mixing = [
    ["attention", own.ac, own.ap, own.ao],
    ["experts", own.fc, own.fp, own.fo],
  ]
    .filter(([, comb]) => comb)
    .map(([label, comb, pre, post]) =>
      h(
        "div",
        { class: "mix" },
        h("b", {}, label),
        heat(comb, doc.forward.streams, 38, true),
        h("p", {}, `pre ${pre?.map(digits).join(" ") ?? "\u2013"}`),
        h("p", {}, `post ${post?.map(digits).join(" ") ?? "\u2013"}`),
      ),
    );
  return [
    head,
    h(
      "dl",
      {},
      facts.map(([name, value]) =>
        h("div", { class: "fact", "data-fact": name }, h("dt", {}, name), h("dd", {}, value)),
      ),
    ),
    ...lists,
    mixing.length ? h("div", { class: "mix-pair" }, mixing) : null,
  ];
}

function selectedRows(doc, selection, layer) {
  const rows = selection.sel.map((row, index) => [row, selection.sco?.[index] ?? null]);
  const byScore = [...rows].sort((a, b) => (b[1] ?? -Infinity) - (a[1] ?? -Infinity)).slice(0, MOST_LISTED);
  const where = (row) => {
    const first = row * layer.ratio;
    const text = Array.from({ length: layer.ratio }, (_, at) => chipText(doc, first + at)).join(" ");
    return layer.ratio === 1 ? `${first}: ${text}` : `${first}\u2013${first + layer.ratio - 1}: ${text}`;
  };
  if (!rows.length) return h("p", {}, "No row is visible yet.");
  return h(
    "div",
    { class: "columns" },
    h(
      "div",
      {},
      h("b", {}, rows.length > MOST_LISTED ? `the best ${MOST_LISTED}` : "by score"),
      table(
        ["row", "score", "positions"],
        byScore.map(([row, score]) => [whole(row), digits(score), where(row)]),
        [0, 1],
      ),
    ),
    h(
      "details",
      { class: "all-rows" },
      h("summary", {}, `all ${whole(rows.length)} rows, ascending`),
      h("p", { class: "row-list" }, rows.map(([row]) => row).join(" ")),
    ),
  );
}

function draftBlock(doc) {
  const { draft } = doc.trace;
  if (!draft) return [];
  const rows = draft.map(([id, text, chance], index) => [
    String(index + 1),
    text === null ? `id ${id}` : `\u201c${visible(text)}\u201d (${id})`,
    percent(chance ?? 0),
  ]);
  return [
    h("h3", {}, "Drafted behind the last token"),
    h("p", { class: "hint" }, "The chance is the confidence head's, given that the drafts before it are accepted."),
    table(["draft", "token", "chance"], rows, [0, 2]),
  ];
}
