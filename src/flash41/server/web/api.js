// The server: JSON, streams of events, and errors in the server's own words.

const KEY = "flash41.key";

/** The API key, which lives as long as the browser's tab. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** What the server, or the way to it, refused. */
export class ServerError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The JSON at a path. */
export async function getJson(path) {
  return (await asked(path, {})).json();
}

/** Chunks of an answer as they come; `onStart` is given the response's headers. */
export async function* chat(body, signal, onStart) {
  const headers = { "content-type": "application/json" };
  const response = await asked("v1/chat/completions", { method: "POST", headers, body, signal });
  onStart(response.headers);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, 0, chunk.error.code);
    yield chunk;
  }
  throw new ServerError("the connection broke off before the answer ended");
}

async function asked(path, options) {
  const key = apiKey.get();
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server cannot be reached");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? `${response.status} ${response.statusText}`;
  return new ServerError(message, response.status, body.error?.code ?? null);
}

/** The data of each server-sent event; an event may come in any number of pieces. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let data = [];
  for (;;) {
    const { value, done } = await next(reader);
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

async function next(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the connection broke off before the answer ended");
  }
}
