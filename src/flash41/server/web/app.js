// The page: its tabs, its settings panel, and what both show of the model.

import { Anatomy } from "./anatomy.js";
import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Live } from "./live.js";
import { bindSettings } from "./settings.js";

const TABS = ["chat", "live", "anatomy"];

function showTab(name, live, anatomy) {
  for (const tab of TABS) {
    const isShown = tab === name;
    byId(tab).hidden = !isShown;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(isShown));
    byId(`tab-${tab}`).tabIndex = isShown ? 0 : -1;
  }
  document.body.dataset.tab = name;
  if (name !== "chat") showSettings(false);
  live.show(name === "live");
  if (name === "anatomy") anatomy.show();
}

function bindTabs(live, anatomy) {
  const named = () => (TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : TABS[0]);
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => (location.hash = tab));
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const at = TABS.indexOf(named());
    const target = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const tab = TABS.at(target % TABS.length);
    location.hash = tab;
    byId(`tab-${tab}`).focus();
  });
  window.addEventListener("hashchange", () => showTab(named(), live, anatomy));
  showTab(named(), live, anatomy);
}

function showSettings(isShown) {
  byId("settings").hidden = !isShown;
  byId("settings-note").textContent = "";
  byId("open-settings").setAttribute("aria-expanded", String(isShown));
}

function bindPanel() {
  const close = () => {
    showSettings(false);
    byId("open-settings").focus();
    showModel();
  };
  byId("open-settings").addEventListener("click", () => {
    if (!byId("settings").hidden) return close();
    showSettings(true);
    return byId("system").focus();
  });
  byId("close-settings").addEventListener("click", close);
  byId("settings").addEventListener("keydown", (event) => {
    const isDone = event.key === "Enter" && event.target.tagName === "INPUT";
    if (event.key !== "Escape" && !isDone) return;
    event.preventDefault(); // closes the panel, and does not stop an answer
    close();
  });
}

/** Opens the settings at a field, and says why. */
function showField(field, reason) {
  showSettings(true);
  byId("settings-note").textContent = reason;
  field.focus();
}

async function showModel() {
  try {
    const { model } = await getJson("v1/stats");
    byId("model").textContent = model.names[0];
    const length = model.max_model_len.toLocaleString("en");
    byId("welcome-model").textContent = `${model.names[0]} reads and writes up to ${length} tokens here.`;
    document.title = `${model.names[0]} \u00b7 flash41`;
  } catch (error) {
    byId("welcome-model").textContent =
      error.status === 401 ? "This server wants an API key: enter it in the settings." : `The server says: ${error.message}.`;
  }
}

bindSettings();
bindPanel();
bindTabs(new Live(), new Anatomy());
new Chat(showField);
showModel();
