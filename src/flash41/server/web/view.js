// Turns of a conversation as elements. An answer's element is updated in place while it grows.

import { isWaiting, speed } from "./conversation.js";
import { copyButton, h } from "./dom.js";
import { thumbnail } from "./images.js";
import { markdown } from "./markdown.js";

/** What the user wrote; `onEdit` takes it back into the message field. */
export function userView(turn, onEdit) {
  const edit = h("button", { type: "button", class: "small", click: onEdit }, "Edit");
  const tools = h("div", { class: "tools" }, ...(turn.content ? [copyButton(() => turn.content)] : []), edit);
  const images = (turn.images ?? []).map((url, index) => thumbnail(url, index + 1));
  const shown = images.length ? [h("div", { class: "pictures" }, ...images)] : [];
  const words = turn.content ? [h("div", { class: "words" }, turn.content)] : [];
  return h("article", { class: "turn user", "aria-label": "You" }, ...shown, ...words, tools);
}

/** An answer; `actions` are retry() and sendResults(). */
export class AnswerView {
  constructor(answer, actions) {
    this.answer = answer;
    this.actions = actions;
    this.thought = h("div", { class: "thought" });
    this.thinkingLabel = h("span");
    this.reasoning = h("details", { class: "reasoning", hidden: true }, h("summary", {}, this.thinkingLabel), this.thought);
    this.content = h("div", { class: "words prose" });
    this.calls = h("div", { class: "calls" });
    this.failure = h("div", { class: "failure", role: "alert", hidden: true });
    this.facts = h("span", { class: "facts" });
    this.buttons = h("span", { class: "buttons" });
    const tools = h("div", { class: "tools" }, this.facts, this.buttons);
    const parts = [this.reasoning, this.content, this.calls, this.failure, tools];
    this.element = h("article", { class: "turn answer", "aria-label": "Answer" }, ...parts);
    this.update();
  }

  /** Shows the answer as it is now. */
  update() {
    const { answer } = this;
    const isOpen = answer.finish === null;
    this.element.classList.toggle("open", isOpen);
    this.reasoning.hidden = !answer.reasoning;
    this.thinkingLabel.textContent = thinkingLabel(answer);
    if (this.thought.textContent !== answer.reasoning) this.thought.textContent = answer.reasoning;
    replaceChanged(this.content, markdown(answer.content));
    this.showCalls(isOpen);
    this.facts.textContent = facts(answer);
    if (!isOpen) this.showEnd();
  }

  showCalls(isOpen) {
    const { answer } = this;
    const state = JSON.stringify([answer.calls, isOpen]);
    if (state === this.shownCalls) return;
    this.shownCalls = state;
    const cards = answer.calls.map((call) => callCard(call, isOpen));
    this.calls.replaceChildren(...cards);
    if (!isWaiting(answer)) return;
    const send = h("button", { type: "submit", class: "main" }, answer.calls.length > 1 ? "Send results" : "Send result");
    const form = h("form", { class: "results", submit: (event) => this.takeResults(event) }, ...cards, send);
    this.calls.replaceChildren(form);
  }

  takeResults(event) {
    event.preventDefault();
    const fields = [...event.target.querySelectorAll("textarea")];
    fields.forEach((field, index) => (this.answer.calls[index].result = field.value));
    this.update();
    this.actions.sendResults();
  }

  showEnd() {
    const { answer } = this;
    this.failure.hidden = !answer.error;
    if (answer.error) this.failure.replaceChildren(h("strong", {}, heading(answer.error)), " ", answer.error.message);
    const retry = h("button", { type: "button", class: "small", click: () => this.actions.retry() }, "Try again");
    const copies = [
      ...(answer.content ? [copyButton(() => answer.content)] : []),
      ...(answer.seed ? [copyButton(() => answer.seed, "Copy seed")] : []),
    ];
    this.buttons.replaceChildren(...copies, retry);
  }
}

function heading(error) {
  if (error.status === 401) return "API key wanted.";
  return error.status ? `Refused (${error.status}).` : "Not finished.";
}

/** Keeps elements that would be replaced by their equals, and with them selection, focus and scroll positions. */
function replaceChanged(parent, nodes) {
  nodes.forEach((node, index) => {
    const shown = parent.children[index];
    if (!shown) parent.append(node);
    else if (!shown.isEqualNode(node)) shown.replaceWith(node);
  });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}

function callCard(call, isOpen) {
  const name = h("div", { class: "call-name" }, h("span", {}, "Call"), h("code", {}, call.name));
  const given = h("pre", { tabindex: "0", "aria-label": "Arguments" }, isOpen ? call.arguments : pretty(call.arguments));
  const card = h("div", { class: "call" }, name, given);
  if (isOpen) return card;
  if (call.result !== null) {
    card.append(h("div", { class: "call-label" }, "Result"), h("pre", { class: "result" }, call.result));
    return card;
  }
  const field = h("textarea", { rows: "2", placeholder: "What the tool returned" });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      field.form?.requestSubmit();
    }
  });
  card.append(h("label", { class: "call-label" }, `Result of ${call.name}`, field));
  return card;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut off, or not what was asked for
  }
}

function thinkingLabel(answer) {
  if (answer.thoughtSeconds !== null) return `Thought for ${seconds(answer.thoughtSeconds)}`;
  return answer.finish === null ? "Thinking" : "Thought, and did not answer";
}

function seconds(count) {
  if (count < 1) return `${Math.round(1000 * count)} ms`;
  return count < 10 ? `${count.toFixed(1)} s` : `${Math.round(count)} s`;
}

const ENDS = { length: "cut at the token limit", stopped: "stopped", error: "broken off" };

function facts(answer) {
  const count = answer.usage?.completion_tokens ?? answer.numTokens;
  if (answer.first === null) return answer.finish === "stopped" ? ENDS.stopped : "";
  const found = [`${count} ${count === 1 ? "token" : "tokens"}`];
  const rate = speed(answer);
  if (rate) found.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  if (answer.finish !== null) found.push(`first after ${seconds((answer.first - answer.started) / 1000)}`);
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens;
  if (cached !== undefined) found.push(`${cached} of ${answer.usage.prompt_tokens} prompt tokens cached`);
  const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = answer.usage?.completion_tokens_details ?? {};
  if (accepted + rejected > 0) found.push(`${accepted} of ${accepted + rejected} drafts accepted`);
  if (answer.approximate) found.push(`approximate: ${answer.approximate}`);
  if (answer.finish in ENDS) found.push(ENDS[answer.finish]);
  return found.join(" \u00b7 ");
}
