// The page: model, tabs and form; language, colours and key are kept in the browser.

import { ApiError, ask, modelPath, storeKey } from "./api.js";
import { drawError, make } from "./draw.js";
import { exampleFor, InputError, listPanels } from "./panels.js";
import { say, setLanguage } from "./words.js";

const find = (id) => document.getElementById(id);
const state = { models: [], model: null, panels: [], panel: null, values: {}, running: null };

function applyLanguage(name) {
  document.documentElement.lang = setLanguage(name) === "zh" ? "zh-CN" : "en";
  find("language").value = name;
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = say(element.dataset.word);
  if (state.models.length) drawModels();
  if (state.model) describeModel();
  drawTabs();
  drawPanel();
}

function applyTheme(name) {
  find("theme").value = name;
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

function drawModels() {
  find("model").replaceChildren(...state.models.map((model) => make("option", { value: model.name, selected: model.name === state.model?.name },
    model.loaded ? model.name : `${model.name} (${say("notLoaded")})`)));
}

function describeModel() {
  const { task, labels, max_length: length, parameters } = state.model;
  const size = parameters >= 1e5 ? say("millions", { n: (parameters / 1e6).toFixed(1) }) : say("parameters", { n: parameters });
  const facts = [task ?? say("noTask"), parameters && size, say("maxLength", { n: length })];
  if (labels.length) facts.push(`${say("labels")}: ${labels.slice(0, 8).join(", ")}${labels.length > 8 ? " …" : ""}`);
  find("facts").textContent = facts.filter(Boolean).join(" · ");
}

async function loadModels() {
  try {
    state.models = await ask("/models");
    find("key-form").hidden = true;
  } catch (error) {
    return showError(error);
  }
  drawModels();
  const wanted = new URLSearchParams(location.hash.slice(1));
  await chooseModel(state.models.some((model) => model.name === wanted.get("model")) ? wanted.get("model") : state.models[0].name, wanted.get("tab"));
}

async function chooseModel(name, tab) {
  stop();
  find("facts").textContent = say("loading");
  try {
    state.model = await ask(modelPath(name));
  } catch (error) {
    find("facts").textContent = "";
    state.model = null;
    state.panels = [];
    drawTabs();
    return showError(error);
  }
  state.models = state.models.map((model) => (model.name === name ? state.model : model));
  drawModels();
  describeModel();
  state.panels = listPanels(state.model);
  choosePanel(tab);
}

function choosePanel(name) {
  stop();
  state.panel = state.panels.find((panel) => panel.name === name) ?? state.panels[0] ?? null;
  if (state.panel) history.replaceState(null, "", `#${new URLSearchParams({ model: state.model.name, tab: state.panel.name })}`);
  drawTabs();
  drawPanel();
}

function drawTabs() {
  find("tabs").replaceChildren(...state.panels.map((panel) => {
    const isChosen = panel.name === state.panel?.name;
    return make("button", {
      role: "tab", type: "button", id: `tab-${panel.name}`, "aria-selected": String(isChosen), "aria-controls": "panel",
      tabindex: isChosen ? "0" : "-1", onclick: () => choosePanel(panel.name), onkeydown: moveTab,
    }, say(panel.title));
  }));
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const index = state.panels.indexOf(state.panel) + step;
  choosePanel(state.panels[(index + state.panels.length) % state.panels.length].name);
  find(`tab-${state.panel.name}`).focus();
}

function drawPanel() {
  const { panel } = state, element = find("panel");
  if (!panel) return element.replaceChildren();
  element.setAttribute("aria-labelledby", `tab-${panel.name}`);
  const isOption = (field) => field.kind !== undefined;
  const buttons = [
    make("button", { class: "primary", id: "run", title: say("runHint") }, say("run")),
    panel.canStop && make("button", { type: "button", id: "stop", disabled: true, onclick: stop }, say("stop")),
    make("button", { type: "button", id: "example", onclick: fillExample }, say("example")),
    panel.mask && make("button", { type: "button", id: "add-mask", onclick: insertMask }, say("addMask", { mask: panel.mask })),
  ].filter(Boolean);
  const options = [...panel.fields.filter(isOption).map(makeOption), panel.hasTruncate && makeTruncate()].filter(Boolean);
  element.replaceChildren(
    make("form", { id: "form", onsubmit: run, onkeydown: runOnEnter, oninput: keepValues },
      ...panel.fields.filter((field) => !isOption(field)).map(makeText),
      make("div", { class: "row options" }, ...options), make("div", { class: "row" }, ...buttons)),
    make("div", { class: "output", id: "output", "aria-live": "polite" }));
}

const valuesOf = () => (state.values[state.panel.name] ??= {});

function makeText(field) {
  const value = valuesOf()[field.id] ?? "";
  const input = field.rows ? make("textarea", { id: field.id, rows: String(field.rows), spellcheck: "false" }) : make("input", { id: field.id, class: "wide" });
  input.value = value;
  return make("div", { class: "field" }, make("label", { for: field.id }, say(field.label)), input);
}

function makeOption(field) {
  const value = valuesOf()[field.id] ?? field.value;
  if (field.kind === "check") return make("label", {}, make("input", { type: "checkbox", id: field.id, checked: value }), say(field.label));
  if (field.kind === "select") return make("label", {}, say(field.label), makeSelect(field.id, field.values, value));
  const { min, max, step = 1 } = field;
  return make("label", {}, say(field.label), make("input", { type: "number", id: field.id, value, min, max, step }));
}

const makeTruncate = () => make("label", {}, say("truncate"), makeSelect("truncate", ["refuse", "right", "left"], valuesOf().truncate));

const makeSelect = (id, values, chosen) => make("select", { id }, ...values.map((value) => make("option", { value, selected: value === chosen }, say(value))));

function readValues() {
  const values = {};
  for (const input of find("form").querySelectorAll("[id]")) {
    if (input.matches("input[type=checkbox]")) values[input.id] = input.checked;
    else if (input.matches("input[type=number]")) values[input.id] = input.valueAsNumber;
    else if (input.matches("input, textarea, select")) values[input.id] = input.value;
  }
  return values;
}

function keepValues() {
  state.values[state.panel.name] = readValues();
}

function setText(id, text, runAgain) {
  find(id).value = text;
  keepValues();
  if (runAgain) find("form").requestSubmit();
  else find(id).focus();
}

function fillExample() {
  for (const field of state.panel.fields) if (field.example) find(field.id).value = exampleFor(field);
  keepValues();
  find("form").requestSubmit();
}

function insertMask() {
  const text = find("text");
  text.setRangeText(state.panel.mask, text.selectionStart, text.selectionEnd, "end");
  keepValues();
  text.focus();
}

function runOnEnter(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  find("form").requestSubmit();
}

async function run(event) {
  event.preventDefault();
  stop();
  const controller = new AbortController(), { panel } = state, output = find("output");
  state.running = controller;
  const show = (elements) => { if (state.running === controller) output.replaceChildren(...elements); };
  output.setAttribute("aria-busy", "true");
  show([make("p", { class: "soft" }, say("working"))]);
  if (panel.canStop) find("stop").disabled = false;
  const values = readValues();
  try {
    const truncate = values.truncate === "refuse" ? false : values.truncate;
    show(await panel.run({ ...values, truncate }, { signal: controller.signal, setText, show }));
  } catch (error) {
    if (error.name !== "AbortError" && state.running === controller) showError(error);
  }
  if (state.running !== controller) return;
  state.running = null;
  output.setAttribute("aria-busy", "false");
  if (panel.canStop) find("stop").disabled = true;
}

function stop() {
  state.running?.abort();
  state.running = null;
  find("output")?.setAttribute("aria-busy", "false");
  if (find("stop")) find("stop").disabled = true;
}

function showError(error) {
  if (error instanceof ApiError && error.status === 401) find("key-form").hidden = false;
  const title = error instanceof ApiError ? error.title : error instanceof InputError ? error.message : say("error5");
  const message = error instanceof InputError ? "" : error.message;
  (find("output") ?? find("panel")).replaceChildren(drawError(title, message));
}

find("language").addEventListener("change", (event) => {
  localStorage.setItem("bertsmith-language", event.target.value);
  applyLanguage(event.target.value);
});
find("theme").addEventListener("change", (event) => {
  localStorage.setItem("bertsmith-theme", event.target.value);
  applyTheme(event.target.value);
});
find("model").addEventListener("change", (event) => chooseModel(event.target.value, state.panel?.name));
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  storeKey(find("key").value);
  loadModels();
});

applyTheme(localStorage.getItem("bertsmith-theme") ?? "auto");
applyLanguage(localStorage.getItem("bertsmith-language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
loadModels();
