// Markdown to nodes: what answers use, and nothing that could carry markup or script.
//
// Blocks: paragraphs, headings, fenced code, lists, quotes, tables, rules. Spans: code, strong, emphasis, deleted text,
// links to http, https and mailto. Everything else stays the text it is.

import { copyButton, h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const SPAN =
  /(?<code>`+)(?<codeText>[^`](?:.*?[^`])?)\k<code>(?!`)|\*\*(?<strong>\S(?:.*?\S)?)\*\*|__(?<under>\S(?:.*?\S)?)__(?!\w)|~~(?<gone>\S(?:.*?\S)?)~~|\*(?<em>[^\s*](?:[^*]*[^\s*])?)\*|(?<!\w)_(?<low>[^\s_](?:[^_]*[^\s_])?)_(?!\w)|\[(?<label>[^\]\n]+)\]\((?<target>[^\s()]+(?:\([^\s()]*\)[^\s()]*)*)\)|(?<bare>https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,;:!?])/s;
const SAFE = /^(https?:|mailto:)/i;
const DEEPEST = 8;
const LONGEST = 20_000; // characters of one paragraph that are searched for spans

/** The blocks of a text. */
export function markdown(text) {
  return blocks(text.split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) found.push(node);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return fence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...spans(heading[2])), at + 1];
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) return table(lines, at);
  return paragraph(lines, at, depth);
}

function fence(lines, at) {
  const [, marks, language] = FENCE.exec(lines[at]);
  const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  const head = h("div", { class: "code-head" }, h("span", {}, language || "text"), copyButton(() => text));
  const body = h("pre", { tabindex: "0", "aria-label": "Code" }, h("code", {}, text));
  return [h("div", { class: "code-block" }, head, body), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [h("blockquote", {}, ...blocks(inner, depth + 1)), end];
}

/** Items of one indent; lines that are indented deeper belong to the item above. */
function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    const isDeeper = /^\s+/.exec(lines[end])?.[0].length > indent.length;
    if (found && found[1].length <= indent.length) {
      if (found[1].length < indent.length || /\d/.test(found[2]) !== isOrdered || RULE.test(lines[end])) break;
      items.push([found[3]]);
    } else if (lines[end].trim() && isDeeper) {
      items.at(-1).push(lines[end].slice(Math.min(indent.length + mark.length + 1, /^\s*/.exec(lines[end])[0].length)));
    } else if (!lines[end].trim() && continues(lines, end + 1, indent.length, isOrdered)) {
      items.at(-1).push("");
    } else break;
    end += 1;
  }
  const nodes = items.map((item) => h("li", {}, ...tight(blocks(item, depth + 1))));
  const start = isOrdered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {};
  return [h(isOrdered ? "ol" : "ul", start, ...nodes), end];
}

function continues(lines, at, indent, isOrdered) {
  const line = lines[at] ?? "";
  const found = ITEM.exec(line);
  if (found && found[1].length === indent) return /\d/.test(found[2]) === isOrdered;
  return line.trim() !== "" && /^\s*/.exec(line)[0].length > indent;
}

/** An item of one paragraph shows no paragraph. */
function tight(nodes) {
  const isTight = nodes.filter((node) => node.tagName === "P").length <= 1;
  return isTight ? nodes.flatMap((node) => (node.tagName === "P" ? [...node.childNodes] : [node])) : nodes;
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const row = (line, tag) => h("tr", {}, ...cells(line).map((cell) => h(tag, {}, ...spans(cell))));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const made = h("table", {}, h("thead", {}, row(lines[at], "th")), h("tbody", {}, ...body));
  return [h("div", { class: "table", tabindex: "0" }, made), end];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines[end], depth)) end += 1;
  return [h("p", {}, ...spans(lines.slice(at, end).join("\n"))), end];
}

function begins(line, depth) {
  const nests = depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line));
  return nests || FENCE.test(line) || HEADING.test(line) || RULE.test(line);
}

/** Text with its emphasis, code and links. */
function spans(text, depth = 0) {
  const found = [];
  let rest = text;
  while (rest) {
    const match = depth < DEEPEST && rest.length <= LONGEST ? SPAN.exec(rest) : null;
    if (!match) break;
    if (match.index) found.push(rest.slice(0, match.index));
    found.push(span(match[0], match.groups, depth + 1));
    rest = rest.slice(match.index + match[0].length);
  }
  return rest ? [...found, rest] : found;
}

function span(whole, parts, depth) {
  if (parts.code) return h("code", {}, parts.codeText);
  if (parts.strong ?? parts.under) return h("strong", {}, ...spans(parts.strong ?? parts.under, depth));
  if (parts.gone) return h("del", {}, ...spans(parts.gone, depth));
  if (parts.em ?? parts.low) return h("em", {}, ...spans(parts.em ?? parts.low, depth));
  if (parts.bare) return link(parts.bare, [parts.bare]);
  return SAFE.test(parts.target) ? link(parts.target, spans(parts.label, depth)) : whole;
}

function link(target, children) {
  return h("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
