// The anatomy tab: the served model, drawn by the program of `flash41 anatomy`, behind a border that keeps styles apart.

import { getJson } from "./api.js";
import { byId, h } from "./dom.js";

/** The anatomy tab. */
export class Anatomy {
  constructor() {
    this.isDrawn = false;
  }

  /** Draws the model when somebody looks for the first time; tries again at the next look after a failure. */
  async show() {
    if (this.isDrawn) return;
    this.isDrawn = true;
    byId("anatomy-state").textContent = "Measuring the model.";
    try {
      const [model, { drawAnatomy }] = await Promise.all([getJson("v1/anatomy"), import("./drawing.js")]);
      const host = byId("anatomy-drawing");
      const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
      const sheet = h("link", { rel: "stylesheet", href: "web/drawing.css" });
      const loaded = new Promise((resolve) => sheet.addEventListener("load", resolve, { once: true }));
      const drawing = h("div", { class: "anatomy" });
      root.replaceChildren(sheet);
      await loaded;
      root.append(drawing);
      drawAnatomy(drawing, model);
      byId("anatomy-state").textContent = "";
    } catch (error) {
      this.isDrawn = false;
      byId("anatomy-state").textContent = `The server says: ${error.message}.`;
    }
  }
}
