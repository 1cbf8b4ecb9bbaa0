// A conversation as data: turns as the page shows them, messages as the server reads them. Knows no page.
//
// A turn of the user is {role, content} and may have images, data URLs; an answer adds reasoning, calls, how it ended, and what it took.

/** An answer before its first token. */
export function newAnswer() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    calls: [], // {id, name, arguments, result}
    finish: null, // stop, length, tool_calls; "stopped" by the user; "error"
    error: null, // {message, status, code}
    seed: null,
    approximate: null, // what makes it so, by name
    numTokens: 0,
    usage: null,
    started: performance.now(),
    first: null,
    last: null,
    thoughtSeconds: null,
  };
}

/** Adds one chunk of a stream to an answer. */
export function takeChunk(answer, chunk, now) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const isText = Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
  if (isText) {
    answer.first ??= now;
    answer.last = now;
    answer.numTokens += 1;
  }
  if (delta.reasoning_content) answer.reasoning += delta.reasoning_content;
  if (delta.content || delta.tool_calls) answer.thoughtSeconds ??= (now - answer.started) / 1000;
  if (delta.content) answer.content += delta.content;
  for (const call of delta.tool_calls ?? []) takeCall(answer.calls, call);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function takeCall(calls, delta) {
  const call = (calls[delta.index] ??= { id: "", name: "", arguments: "", result: null });
  if (delta.id) call.id = delta.id;
  if (delta.function?.name) call.name = delta.function.name;
  call.arguments += delta.function?.arguments ?? "";
}

/** Tokens per second of an answer, without the wait for the first; null while there is nothing to say. */
export function speed(answer) {
  const count = answer.usage?.completion_tokens ?? answer.numTokens;
  const seconds = (answer.last - answer.first) / 1000;
  return count > 1 && seconds > 0 ? (count - 1) / seconds : null;
}

/** Whether an answer waits for the results of its calls. */
export function isWaiting(answer) {
  return Boolean(answer?.calls?.length) && answer.finish === "tool_calls" && answer.calls.some((call) => call.result === null);
}

/** The messages of a conversation. Answers without words, such as failed ones, are left out. */
export function messages(system, turns) {
  const found = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") found.push({ role: "user", content: userContent(turn) });
    else found.push(...answerMessages(turn));
  }
  return found;
}

/** A text, or pictures in front of it. */
function userContent(turn) {
  if (!turn.images?.length) return turn.content;
  const parts = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return turn.content ? [...parts, { type: "text", text: turn.content }] : parts;
}

function answerMessages(answer) {
  const calls = answer.calls.filter((call) => call.result !== null);
  if (!answer.content && !calls.length) return [];
  const message = { role: "assistant", content: answer.content };
  if (answer.reasoning) message.reasoning_content = answer.reasoning;
  if (!calls.length) return [message];
  message.tool_calls = calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return [message, ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }))];
}
