// The chat: what the user does, the answer that is under way, and the turns as they are kept.

import { ServerError, chat } from "./api.js";
import { isWaiting, messages, newAnswer, takeChunk } from "./conversation.js";
import { byId } from "./dom.js";
import { Attachments } from "./images.js";
import { SettingError, requestBody, systemPrompt } from "./settings.js";
import { AnswerView, userView } from "./view.js";

const STORE = "flash41.turns";
const NEAR = 80; // pixels from the end at which the text keeps following
const SHARE = 4; // drawing may take one part in so many of the time

/** The chat tab; `showField` opens the settings at a field and says why. */
export class Chat {
  constructor(showField) {
    this.showField = showField;
    this.turns = restored();
    this.controller = null;
    this.prompt = byId("prompt");
    this.scroller = byId("scroller");
    this.transcript = byId("transcript");
    this.attachments = new Attachments(() => this.showState());
    this.listen();
    this.showAll();
    this.showState();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
    this.prompt.addEventListener("input", () => this.showState());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.controller && !event.defaultPrevented) this.stop();
    });
  }

  get isBusy() {
    return this.controller !== null;
  }

  /** Sends what stands in the message field, and the pictures above it. */
  send() {
    const turn = { role: "user", content: this.prompt.value.trim() };
    if (this.attachments.urls.length) turn.images = this.attachments.urls;
    if (!this.hasMessage || this.isBusy || isWaiting(this.turns.at(-1))) return;
    this.say(turn);
  }

  get hasMessage() {
    return Boolean(this.prompt.value.trim() || this.attachments.urls.length);
  }

  async say(turn) {
    if (!this.canAsk([...this.turns, turn])) return;
    this.prompt.value = "";
    this.attachments.take();
    this.add(turn);
    await this.ask();
  }

  stop() {
    this.controller?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.showAll();
    this.keep();
    this.showState();
    this.prompt.focus();
  }

  /** Takes a message back into the field, and with it everything that followed. */
  edit(turn) {
    this.stop();
    this.prompt.value = turn.content;
    this.attachments.set(turn.images ?? []);
    this.cut(this.turns.indexOf(turn));
    this.prompt.focus();
  }

  retry(answer) {
    const index = this.turns.indexOf(answer);
    if (this.isBusy || !this.canAsk(this.turns.slice(0, index))) return;
    this.cut(index);
    this.ask();
  }

  cut(index) {
    this.turns.splice(index);
    while (this.transcript.children.length > index) this.transcript.lastElementChild.remove();
    this.keep();
    this.showState();
  }

  /** Asks for an answer to the turns there are. */
  async ask() {
    const body = this.canAsk(this.turns);
    if (!body || this.isBusy) return;
    const answer = newAnswer();
    this.controller = new AbortController();
    const { signal } = this.controller;
    const view = this.add(answer);
    this.showState();
    try {
      await this.receive(answer, view, body, signal);
    } catch (error) {
      note(answer, error, signal);
    }
    this.controller = null;
    answer.finish ??= "stop";
    view.update();
    this.follow();
    this.keep();
    this.showState();
    if (answer.error?.status === 401) this.showField(byId("key"), answer.error.message);
    else if (isWaiting(answer)) view.element.querySelector("textarea").focus();
  }

  async receive(answer, view, body, signal) {
    const painter = new Painter(() => {
      const wasNear = this.isNearEnd();
      view.update();
      if (wasNear) this.follow();
    });
    try {
      const onStart = (headers) => {
        answer.seed = headers.get("x-seed");
        answer.approximate = headers.get("x-approximate");
      };
      for await (const chunk of chat(body, signal, onStart)) {
        takeChunk(answer, chunk, performance.now());
        painter.request();
      }
    } finally {
      painter.end();
    }
  }

  /** The body to send, or nothing where a setting makes no sense: then the settings show it. */
  canAsk(turns) {
    try {
      return requestBody(messages(systemPrompt(), turns));
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      this.showField(error.field, error.message);
      return null;
    }
  }

  add(turn) {
    this.turns.push(turn);
    const view = this.show(turn);
    this.showState();
    this.follow();
    return view;
  }

  show(turn) {
    if (turn.role === "user") {
      this.transcript.append(userView(turn, () => this.edit(turn)));
      return null;
    }
    const view = new AnswerView(turn, { retry: () => this.retry(turn), sendResults: () => this.sendResults() });
    this.transcript.append(view.element);
    return view;
  }

  sendResults() {
    this.ask();
    this.prompt.focus();
  }

  showAll() {
    this.transcript.replaceChildren();
    for (const turn of this.turns) this.show(turn);
    this.follow();
  }

  showState() {
    const waits = isWaiting(this.turns.at(-1));
    const [send, stop, focused] = [byId("send"), byId("stop"), document.activeElement];
    byId("welcome").hidden = this.turns.length > 0;
    stop.hidden = !this.isBusy;
    send.hidden = this.isBusy;
    send.disabled = !this.hasMessage || waits;
    if (focused === send && this.isBusy) stop.focus(); // a button that goes hands its focus on
    if (focused === stop && !this.isBusy) this.prompt.focus();
    this.prompt.placeholder = waits ? "Send the results of the calls first" : "Message";
    this.transcript.setAttribute("aria-busy", String(this.isBusy));
  }

  isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  follow() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  keep() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.turns));
    } catch {
      sessionStorage.removeItem(STORE); // too long to be kept
    }
  }
}

/** Draws at most once a frame, and less often where drawing is slow; at the end whoever asked draws once more. */
class Painter {
  constructor(paint) {
    this.paint = paint;
    this.timer = null;
    this.pause = 0;
  }

  request() {
    this.timer ??= setTimeout(() => requestAnimationFrame(() => this.run()), this.pause);
  }

  run() {
    if (this.isOver) return;
    this.timer = null;
    const started = performance.now();
    this.paint();
    this.pause = (performance.now() - started) * SHARE;
  }

  end() {
    this.isOver = true;
    clearTimeout(this.timer);
  }
}

/** Why an answer ended before its time. */
function note(answer, error, signal) {
  if (signal.aborted) {
    answer.finish = "stopped";
    return;
  }
  answer.finish = "error";
  const { status = 0, code = null } = error;
  const message = error instanceof ServerError ? error.message : "the answer could not be read";
  answer.error = { message, status, code };
}

function restored() {
  try {
    const turns = JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
    return turns.filter((turn) => turn.role === "user" || turn.finish !== null);
  } catch {
    return [];
  }
}
