// The settings form: what is asked for besides the messages. Kept in the browser, except for the key.

import { apiKey } from "./api.js";
import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"];
const KEPT = [...NUMBERS, "seed", "system", "tools", "effort"];
const STORE = "flash41.settings";

/** A setting that cannot be sent. */
export class SettingError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Fills the form from the browser's store and keeps it there. */
export function bindSettings() {
  const form = byId("settings-form");
  restore();
  byId("key").value = apiKey.get();
  for (const place of [form, byId("composer")]) place.addEventListener("change", keep);
  byId("key").addEventListener("input", () => apiKey.set(byId("key").value.trim()));
  byId("thinking").addEventListener("change", showEffort);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    apiKey.set("");
    setTimeout(keep); // the fields are reset behind this event
  });
  showEffort();
}

function showEffort() {
  byId("effort").disabled = !byId("thinking").checked;
}

function restore() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORE) ?? "{}");
  } catch {
    localStorage.removeItem(STORE);
  }
  for (const name of KEPT) if (typeof kept[name] === "string") byId(name).value = kept[name];
  if (typeof kept.thinking === "boolean") byId("thinking").checked = kept.thinking;
}

function keep() {
  const kept = Object.fromEntries(KEPT.map((name) => [name, byId(name).value]));
  localStorage.setItem(STORE, JSON.stringify({ ...kept, thinking: byId("thinking").checked }));
}

/** The system prompt, or an empty text. */
export const systemPrompt = () => byId("system").value.trim();

/** The body of a request as JSON text; throws a SettingError for a field that makes no sense. */
export function requestBody(messages) {
  const thinks = byId("thinking").checked;
  const body = { messages, stream: true, thinking: { type: thinks ? "enabled" : "disabled" } };
  if (thinks) body.reasoning_effort = byId("effort").value;
  for (const name of NUMBERS) {
    const value = checked(byId(name)).value.trim();
    if (value) body[name] = Number(value);
  }
  const tools = givenTools();
  if (tools) body.tools = tools;
  const seed = checked(byId("seed")).value.trim();
  const text = JSON.stringify(body);
  // A seed may have more digits than a number of this language can carry.
  return seed ? `${text.slice(0, -1)},"seed":${BigInt(seed)}}` : text;
}

function checked(field) {
  if (!field.checkValidity()) {
    const label = field.closest("label").firstChild.textContent.trim();
    throw new SettingError(field, `${label}: ${field.validationMessage}`);
  }
  return field;
}

function givenTools() {
  const field = byId("tools");
  if (!field.value.trim()) return null;
  try {
    const tools = JSON.parse(field.value);
    if (Array.isArray(tools)) return tools.length ? tools : null;
  } catch (error) {
    throw new SettingError(field, `Tools: ${error.message}`);
  }
  throw new SettingError(field, "Tools: expected a JSON list");
}
