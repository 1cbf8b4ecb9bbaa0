// The ledger as areas: everything, and what is too small to see there once more.

const SMALL = 0.02; // a leaf below this share is shown in the magnified map

/** Rectangles whose areas are the values, as square as can be; values descend. */
function squarified(items, x, y, width, height) {
  const total = items.reduce((sum, item) => sum + item.value, 0);
  const placed = [];
  let rest = items.map((item) => ({ item, area: (item.value / total) * width * height }));
  while (rest.length) {
    const side = Math.min(width, height);
    let row = [];
    let best = Infinity;
    for (const one of rest) {
      const next = [...row, one];
      const sum = next.reduce((area, { area: own }) => area + own, 0);
      const worst = Math.max(
        ...next.map(({ area }) => Math.max((side * side * area) / (sum * sum), (sum * sum) / (side * side * area))),
      );
      if (row.length && worst > best) break;
      row = next;
      best = worst;
    }
    const sum = row.reduce((area, { area: own }) => area + own, 0);
    const depth = sum / side;
    let at = 0;
    for (const { item, area } of row) {
      const length = area / depth;
      placed.push(
        width >= height
          ? { item, x, y: y + at, width: depth, height: length }
          : { item, x: x + at, y, width: length, height: depth },
      );
      at += length;
    }
    if (width >= height) [x, width] = [x + depth, width - depth];
    else [y, height] = [y + depth, height - depth];
    rest = rest.slice(row.length);
  }
  return placed;
}

function tile({ item, x, y, width, height }, written, tell) {
  const look = svg(
    "rect",
    {
      x: x.toFixed(2),
      y: y.toFixed(2),
      width: Math.max(0, width - 1).toFixed(2),
      height: Math.max(0, height - 1).toFixed(2),
      rx: 2,
      class: `tile ${item.owner}`,
      role: "img",
      tabindex: "0",
      "aria-label": `${item.label}, ${written(item)}`,
    },
    svg("title", {}, `${item.label}: ${written(item)}`),
  );
  look.addEventListener("pointerenter", () => tell(item));
  look.addEventListener("focus", () => tell(item));
  const room = Math.floor((width - 12) / 6.6);
  const label = item.label.length <= room ? item.label : `${item.label.slice(0, room - 1)}\u2026`;
  const fits = room > 4 && height > 18;
  const more = height > 36 && width > 80;
  return [
    look,
    fits ? svg("text", { x: (x + 6).toFixed(2), y: (y + 15).toFixed(2), class: "on-tile strong" }, label) : null,
    fits && more
      ? svg(
          "text",
          { x: (x + 6).toFixed(2), y: (y + 31).toFixed(2), class: "on-tile" },
          written(item).split(",").at(-1).trim(),
        )
      : null,
  ].filter(Boolean);
}

function drawMap(label, items, height, written, tell) {
  const sorted = items.filter((item) => item.value > 0).sort((a, b) => b.value - a.value);
  return figure(label, (width) => ({
    parts: squarified(sorted, 0, 0, width, height).flatMap((place) => tile(place, written, tell)),
    height,
  }));
}

function drawSizes(doc) {
  const { leaves, total, owners } = doc.sizes;
  const body = h("div", {});
  const show = (index) => {
    const key = ["parameters", "bytes"][index];
    const unit = key === "bytes" ? sized : counted;
    const items = leaves.map((leaf) => ({ ...leaf, value: leaf[key] }));
    const share = (value) => value / total[key];
    const written = (item) => `${unit(item.value)}, ${percent(share(item.value))}`;
    const told = h("p", { class: "told", "aria-live": "polite" }, `All of it: ${whole(total[key])} ${key}.`);
    const tell = (item) =>
      (told.textContent = `${item.label}: ${whole(item.parameters)} parameters, ${whole(item.bytes)} bytes, ${plural(item.tensors, "tensor")}; ${percent(share(item.value))} of all ${key}.`);
    const small = items.filter((item) => share(item.value) < SMALL && item.value > 0);
    const sum = small.reduce((value, item) => value + item.value, 0);
    const magnified =
      small.length > 1 && small.length < items.length
        ? [
            h(
              "h3",
              {},
              `The ${small.length} smallest, magnified ${(total[key] / sum).toFixed(0)} times: ${percent(share(sum))} of the ${key}`,
            ),
            drawMap("The smallest parts, magnified", small, 260, written, tell),
          ]
        : [];
    body.replaceChildren(drawMap(`All ${key} by part`, items, 340, written, tell), told, ...magnified);
  };
  show(0);
  const colours = h(
    "ul",
    { class: "legend" },
    owners.map((one) =>
      h(
        "li",
        {},
        h("span", { class: `swatch ${one.owner}` }),
        `${one.label}: ${counted(one.parameters)}, ${sized(one.bytes)}`,
      ),
    ),
  );
  const rows = [...leaves]
    .sort((a, b) => b.parameters - a.parameters)
    .map((leaf) => [
      leaf.label,
      whole(leaf.tensors),
      whole(leaf.parameters),
      whole(leaf.bytes),
      percent(leaf.parameters / total.parameters),
    ]);
  rows.push(["total", whole(total.tensors), whole(total.parameters), whole(total.bytes), percent(1)]);
  return [
    choices("What areas show", ["Parameters", "Bytes"], 0, show),
    colours,
    body,
    h(
      "details",
      { class: "ledger" },
      h("summary", {}, "The ledger, exactly"),
      table(["part", "tensors", "parameters", "bytes", "share of parameters"], rows, [1, 2, 3, 4]),
    ),
    ...active(doc.sizes),
  ];
}

function bars(rows, total, written) {
  return h(
    "ul",
    { class: "bars" },
    rows.map(([label, value]) => {
      const bar = h("span", { class: "bar" });
      bar.style.width = `${Math.max(0.3, (100 * value) / total)}%`;
      return h(
        "li",
        {},
        h("span", { class: "bar-label" }, label),
        h("span", { class: "bar-room" }, bar),
        h("span", { class: "bar-value" }, written(value)),
      );
    }),
  );
}

function active(sizes) {
  return [
    h("h3", {}, `Met by one token: ${whole(sizes.active_total)} parameters`),
    h(
      "p",
      {},
      `${whole(sizes.active_without_embedding)} if the embedding counts as a look-up${sizes.active_encoder === null ? "" : `; ${whole(sizes.active_encoder)} in the layers before the last plane`}.`,
    ),
    bars(
      sizes.active.map((part) => [part.label, part.parameters]),
      sizes.active_total,
      (value) => whole(value),
    ),
  ];
}
