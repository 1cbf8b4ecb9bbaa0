// Elements, numbers and figures that know their width. Text only ever enters the page as text nodes.

const SVG_NAMES = "http://www.w3.org/2000/svg";

/** A new element; attributes that are functions are listeners, false and null leave an attribute out. */
function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** A new element of a drawing. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_NAMES, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A drawing that is made anew whenever its width changes; `draw(width)` gives the elements and their height. */
function figure(label, draw) {
  const box = h("div", { class: "figure" });
  let last = 0;
  const redraw = (width) => {
    const { parts, height } = draw(width);
    const options = { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "group", "aria-label": label };
    box.replaceChildren(svg("svg", options, ...parts));
  };
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width > 0 && width !== last) redraw((last = width));
  }).observe(box);
  box.redraw = () => last && redraw(last);
  return box;
}

const whole = (number) => number.toLocaleString("en");

/** Exact below a thousand, else three or more digits and a unit. */
function scaled(number, step, units) {
  let value = number;
  let unit = 0;
  while (Math.round(value * 100) / 100 >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  return `${unit ? value.toFixed(2) : whole(number)} ${units[unit]}`.trim();
}

const counted = (number) => scaled(number, 1000, ["", "K", "M", "B", "T"]);
const sized = (number) => scaled(number, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const shape = (extents) => `[${extents.join(", ")}]`;
const percent = (part) => `${(100 * part).toFixed(part < 0.001 ? 4 : 2)} %`;
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

/** A number of a trace: four digits, or a dash where it was none. */
const digits = (number) => (number === null || number === undefined ? "\u2013" : String(Number(number.toPrecision(4))));

/** A token's text with what one would not see made visible. */
function visible(text) {
  return text.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5").replace(/^ | $/g, "\u2423");
}

/** A table with a caption for those who cannot see the drawing above it. */
function table(headers, rows, right = []) {
  const cell = (tag, value, index) => h(tag, { class: right.includes(index) ? "number" : null }, value);
  const head = h(
    "tr",
    {},
    headers.map((header, index) => filled(cell("th", header, index), { scope: "col" }, [])),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      row.map((value, index) => cell("td", value, index)),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": headers.join(", ") },
    h("table", {}, h("thead", {}, head), h("tbody", {}, body)),
  );
}

/** Buttons of which one is chosen. */
function choices(label, names, chosen, choose) {
  const buttons = names.map((name, index) =>
    h("button", { type: "button", "aria-pressed": String(index === chosen), click: () => pick(index) }, name),
  );
  const pick = (index) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === index)));
    choose(index);
  };
  return h("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}
