// The forward as a list of steps beside the residual: what is done, with which weights, what shape comes out.

function weightChip(weight) {
  return h(
    "span",
    { class: "weight" },
    h("b", {}, weight.name),
    ` ${shape(weight.shape)} `,
    h("i", {}, weight.storage),
  );
}

function stepItem(step, streams) {
  const rail = h("span", { class: `rail ${step.rail}`, "aria-hidden": "true" });
  const lines = step.rail === "one" ? 1 : Math.min(streams, 8);
  for (let line = 0; line < lines; line += 1) rail.append(h("i"));
  if (step.rail === "branch") rail.append(h("u"));
  return h(
    "li",
    { class: `step ${step.part}` },
    rail,
    h(
      "div",
      { class: "step-text" },
      h("strong", {}, step.name),
      h("p", {}, step.does),
      step.weights.length ? h("div", { class: "weights" }, step.weights.map(weightChip)) : null,
    ),
    h("div", { class: "out" }, h("code", {}, shape(step.out)), h("small", {}, step.dtype)),
  );
}

const stepList = (steps, streams) =>
  h(
    "ol",
    { class: "flow" },
    steps.map((step) => stepItem(step, streams)),
  );

function drawFlow(doc, state) {
  const { before, kinds, kind_of: kindOf, behind, streams, num_layers: count } = doc.forward;
  const heading = h("h3", { class: "block-name" });
  const body = h("div", {});
  state.onLayer((index) => {
    const layer = doc.layers[index];
    const times = layer.draft ? "a draft stage" : `one of ${count} layers`;
    heading.replaceChildren(
      h("span", { class: `cell mode ${layer.mode}`, "aria-hidden": "true" }, LETTERS[layer.mode]),
      `Layer ${layer.label}, ${layer.mode}: ${times}`,
    );
    body.replaceChildren(stepList(kinds[kindOf[index]], streams));
  });
  const picker = h(
    "label",
    { class: "pick-layer" },
    "Layer shown ",
    h(
      "select",
      { change: (event) => state.setLayer(Number(event.target.value)) },
      doc.layers.map((layer, index) =>
        h(
          "option",
          { value: index },
          `${layer.label} ${layer.mode}${layer.engram ? " + Engram" : ""}${layer.tap ? " + tap" : ""}`,
        ),
      ),
    ),
  );
  state.onLayer((index) => (picker.querySelector("select").value = String(index)));
  return [picker, stepList(before, streams), h("div", { class: "block" }, heading, body), stepList(behind, streams)];
}
