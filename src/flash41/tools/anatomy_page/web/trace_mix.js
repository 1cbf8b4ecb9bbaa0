// Experts, residual mixing and streams of the chosen token, over all layers.

function drawExperts(doc, token, state) {
  const layers = doc.layers.filter((layer) => !layer.draft);
  const count = doc.parts.moe.num_experts;
  const row = 9;
  if (!token.layers.some((layer) => layer.e)) return null;
  return figure("Experts of this token in every layer", (width) => {
    const left = LEFT;
    const step = (width - left) / count;
    const parts = layers.flatMap((layer, index) => {
      const own = token.layers[layer.id];
      const y = 2 + index * row;
      const most = Math.max(...(own.w ?? [1]));
      const line = svg("line", { x1: left, x2: width, y1: y + row / 2, y2: y + row / 2, class: "guide" });
      const marks = (own.e ?? []).map((id, at) =>
        svg(
          "rect",
          {
            x: (left + id * step).toFixed(1),
            y,
            width: Math.max(3, step - 1).toFixed(1),
            height: row - 2,
            class: "chosen-expert",
            opacity: own.w ? (0.25 + (0.75 * own.w[at]) / most).toFixed(2) : 1,
          },
          svg("title", {}, `layer ${layer.label}, expert ${id}, weight ${digits(own.w?.[at])}`),
        ),
      );
      const name = index % 2 === 0 ? svg("text", { x: 0, y: y + 8, class: "row-name" }, layer.label) : null;
      return [line, name, ...marks].filter(Boolean);
    });
    const foot = layers.length * row + 14;
    parts.push(
      svg("text", { x: left, y: foot, class: "faint" }, "expert 0"),
      svg("text", { x: width, y: foot, class: "faint end" }, `expert ${count - 1}`),
    );
    return { parts, height: foot + 6 };
  });
}

/** A matrix as squares, darker for larger; source streams down, destinations across. */
function heat(values, streams, size, written) {
  const parts = values.flatMap((value, index) => {
    const x = (index % streams) * size;
    const y = Math.floor(index / streams) * size;
    const cell = svg(
      "rect",
      {
        x,
        y,
        width: size - 1,
        height: size - 1,
        class: "heat",
        "fill-opacity": Math.min(1, Math.max(0.04, value ?? 0)).toFixed(3),
      },
      svg("title", {}, `from stream ${Math.floor(index / streams)} to ${index % streams}: ${digits(value)}`),
    );
    return written
      ? [
          cell,
          svg(
            "text",
            { x: x + size / 2, y: y + size / 2 + 4, class: (value ?? 0) > 0.55 ? "middle on-heat" : "middle" },
            (value ?? 0).toFixed(2),
          ),
        ]
      : [cell];
  });
  const extent = streams * size;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${extent} ${extent}`,
      width: extent,
      height: extent,
      class: "heat-map",
      role: "img",
      "aria-label": `comb ${streams} by ${streams}: ${values.map((value) => digits(value)).join(" ")}`,
    },
    parts,
  );
}

function drawMixes(doc, token) {
  const streams = doc.forward.streams;
  const layers = doc.layers.filter((layer) => !layer.draft && (token.layers[layer.id].ac || token.layers[layer.id].fc));
  if (!layers.length) return null;
  const size = Math.max(3, Math.round(24 / streams));
  const one = (layer) => {
    const { ac, fc } = token.layers[layer.id];
    return h(
      "li",
      {},
      h("span", {}, layer.label),
      ac ? heat(ac, streams, size, false) : null,
      fc ? heat(fc, streams, size, false) : null,
    );
  };
  return h("ul", { class: "mixes" }, layers.map(one));
}

/** Size of each stream as it enters each layer. */
function drawStreams(doc, token) {
  const layers = doc.layers.filter((layer) => !layer.draft && token.layers[layer.id].rms);
  if (layers.length < 2) return null;
  const series = Array.from({ length: doc.forward.streams }, (_, stream) =>
    layers.map((layer) => Math.max(token.layers[layer.id].rms[stream] ?? 0, 1e-9)),
  );
  const all = series.flat().map(Math.log10);
  const low = Math.min(...all);
  const high = Math.max(...all, low + 1e-6);
  return figure("Root mean square of each stream at the entry of each layer", (width) => {
    const height = 150;
    const x = (index) => LEFT + (index / (layers.length - 1)) * (width - LEFT - 8);
    const y = (value) => 12 + ((high - Math.log10(value)) / (high - low)) * (height - 40);
    const parts = series.map((values, stream) =>
      svg("polyline", {
        points: values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
        class: `stream-line s${stream % 4}`,
      }),
    );
    parts.push(
      svg("text", { x: 0, y: 16, class: "faint" }, digits(10 ** high)),
      svg("text", { x: 0, y: height - 26, class: "faint" }, digits(10 ** low)),
      svg("text", { x: LEFT, y: height - 6, class: "faint" }, `layer ${layers[0].label}`),
      svg("text", { x: width, y: height - 6, class: "faint end" }, `layer ${layers.at(-1).label}`),
    );
    return { parts, height };
  });
}
