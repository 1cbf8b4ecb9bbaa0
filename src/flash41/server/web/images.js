// Pictures that the next message shows: pasted, dropped or chosen; read into data URLs in this page, sent with the message.

import { byId, h } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const REFUSED = "Only PNG, JPEG, WebP and GIF pictures can be shown.";
const UNREADABLE = "This file could not be read.";

/** Whether an address is a picture that came from this page. */
export function isPicture(url) {
  return TYPES.some((type) => url.startsWith(`data:${type};base64,`));
}

/** A picture as the transcript shows it. */
export function thumbnail(url, number) {
  return h("img", { src: isPicture(url) ? url : "", alt: `Picture ${number}`, class: "shown" });
}

/** The pictures beside the message field; `onChange` is called whenever there are more or fewer. */
export class Attachments {
  constructor(onChange) {
    this.onChange = onChange;
    this.urls = [];
    this.strip = byId("attached");
    this.note = byId("attached-note");
    this.listen();
  }

  listen() {
    const chooser = byId("choose");
    byId("add-image").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      await this.add([...chooser.files]);
      chooser.value = ""; // the same file may be chosen again
    });
    byId("prompt").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (!files.length) return;
      if (!event.clipboardData.getData("text/plain")) event.preventDefault();
      this.add(files);
    });
    const isFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!isFiles(event)) return;
      event.preventDefault(); // else the browser would leave the page for the file
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!isFiles(event)) return;
      event.preventDefault();
      if (!byId("chat").hidden) this.add([...event.dataTransfer.files]);
    });
  }

  /** Reads files, in their order; those that are no pictures are left out, and a note says so. */
  async add(files) {
    const pictures = files.filter((file) => TYPES.includes(file.type));
    const note = pictures.length < files.length ? REFUSED : "";
    try {
      const urls = await Promise.all(pictures.map(dataUrl));
      this.set([...this.urls, ...urls]);
      this.note.textContent = note;
    } catch {
      this.note.textContent = UNREADABLE;
    }
  }

  /** Takes the pictures away, as a message does that shows them. */
  take() {
    const taken = this.urls;
    this.set([]);
    return taken;
  }

  set(urls) {
    this.urls = urls.filter(isPicture);
    this.note.textContent = "";
    this.strip.replaceChildren(...this.urls.map((url, index) => this.item(url, index)));
    this.strip.hidden = !this.urls.length;
    this.onChange();
  }

  item(url, index) {
    const remove = () => {
      this.set(this.urls.filter((_, at) => at !== index));
      byId("prompt").focus();
    };
    const button = h("button", { type: "button", class: "remove", "aria-label": `Remove picture ${index + 1}`, click: remove }, "\u00d7");
    return h("li", {}, thumbnail(url, index + 1), button);
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
