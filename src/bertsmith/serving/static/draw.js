// Answers as elements. Offsets of the server count characters (code points), not the UTF-16 units of JavaScript's strings.

import { say } from "./words.js";

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const percent = (share) => `${(100 * share).toFixed(share > 0.0995 && share < 0.9995 ? 1 : 2)} %`;
const decimal = (value) => value.toFixed(Math.abs(value) < 0.1 ? 4 : 3);
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

function makeBar(share) {
  const bar = make("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return bar;
}

// rows: [{label, score}]; a row with `choose` is a button.
export function drawBars(rows, show = percent) {
  return make("ul", { class: "bars" }, ...rows.map(({ label, score, choose, title }) => {
    const parts = [makeBar(score), make("span", {}, label), make("span", { class: "number" }, show(score))];
    if (!choose) return make("li", {}, ...parts);
    return make("li", { class: "plain" }, make("button", { type: "button", title, "aria-label": title, onclick: choose }, ...parts));
  }));
}

export const drawScore = (score) => make("p", { class: "answer" }, say("score", { n: decimal(score) }));

export function drawClassification(answer) {
  const rows = Object.entries(answer.scores).map(([label, score]) => ({ label, score })).sort((a, b) => b.score - a.score);
  const labels = answer.label ?? (answer.labels.map((row) => row.label).join(", ") || say("noLabels"));
  return [make("p", { class: "answer" }, labels), drawBars(rows)];
}

// The text with [start, end) spans in elements: spans are [{start, end, element: (text) => element}], in any order.
export function drawText(text, spans) {
  const characters = [...text], parts = [];
  let position = 0;
  for (const { start, end, element } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < position) continue; // overlaps the one before
    parts.push(characters.slice(position, start).join(""), element(characters.slice(start, end).join("")));
    position = end;
  }
  return make("p", { class: "text" }, ...parts, characters.slice(position).join(""));
}

const KINDS = ["--one", "--two", "--three", "#8a57c2", "#b98a00", "#c8447c", "#2c9aa8", "#7a6652"];

export function drawEntities(text, entities) {
  if (!entities.length) return [make("p", { class: "soft" }, say("noEntities")), drawText(text, [])];
  const groups = [...new Set(entities.map((entity) => entity.entity_group ?? ""))];
  const spans = entities.map(({ start, end, entity_group: group, score }) => ({ start, end, element: (part) => {
    const mark = make("mark", { "data-kind": group ?? "", title: score === undefined ? undefined : percent(score) }, part,
      group === undefined ? undefined : make("small", {}, group));
    const kind = KINDS[groups.indexOf(group ?? "") % KINDS.length];
    mark.style.setProperty("--kind", kind.startsWith("--") ? `var(${kind})` : kind);
    return mark;
  } }));
  const rows = entities.map(({ word, entity_group: group, score }) => ({ label: group === undefined ? word : `${word} · ${group}`, score: score ?? 1 }));
  return [drawText(text, spans), drawBars(rows)];
}

export function drawAnswer(context, { answer, score, start, end, candidates = [] }) {
  if (!answer) return [make("p", { class: "answer" }, say("noAnswer")), drawText(context, [])];
  const others = candidates.filter((row) => row.answer && row.answer !== answer).map((row) => ({ label: row.answer, score: row.score }));
  return [
    make("p", { class: "answer" }, answer, " ", make("span", { class: "number" }, percent(score))),
    drawText(context, [{ start, end, element: (part) => make("mark", {}, part) }]),
    ...(others.length ? [make("h2", {}, say("otherAnswers")), drawBars(others)] : []),
  ];
}

export function drawAttribution(texts, { words, label }) {
  const most = Math.max(1e-9, ...words.map((word) => Math.abs(word.score)));
  const tone = (score) => (score < 0 ? "against" : "for");
  const paragraphs = Object.entries(texts).filter(([, text]) => text).map(([field, text]) => drawText(text,
    words.filter((word) => word.field === field).map(({ start, end, score }) => ({ start, end, element: (part) => {
      const word = make("span", { class: `word ${tone(score)}`, title: signed(score) }, part);
      word.style.setProperty("--share", Math.abs(score) / most);
      return word;
    } }))));
  const strongest = [...words].sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, 5);
  return [
    ...paragraphs,
    make("p", { class: "legend" },
      make("span", { class: "for" }, make("i"), ` ${label === null ? say("raises") : say("raisesLabel", { label })}`),
      make("span", { class: "against" }, make("i"), ` ${say("lowers")}`)),
    make("h2", {}, say("strongest")),
    make("p", { class: "soft strongest" }, strongest.map(({ word, score }) => `${word} ${signed(score)}`).join(" · ")),
    make("p", { class: "soft" }, say("method")),
  ];
}

export function drawMatrix(texts, rows) {
  const least = Math.min(...rows.flat()), range = Math.max(...rows.flat()) - least || 1;
  const numbers = texts.map((_, index) => make("th", { scope: "col" }, String(index + 1)));
  const body = rows.map((row, index) => make("tr", {},
    make("th", { scope: "row", title: texts[index] }, `${index + 1} · ${texts[index]}`),
    ...row.map((value) => {
      const cell = make("td", {}, value.toFixed(2));
      cell.style.setProperty("--share", 0.1 + (0.9 * (value - least)) / range);
      return cell;
    })));
  return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": say("similarity") },
    make("table", { class: "matrix" }, make("thead", {}, make("tr", {}, make("td"), ...numbers)), make("tbody", {}, ...body)));
}

export function drawTokens({ tokens, ids }) {
  const chips = tokens.map((token, index) => make("span", {}, token, make("small", {}, String(ids[index]))));
  return [make("p", { class: "soft" }, say("tokens", { n: tokens.length })), make("div", { class: "tokens" }, ...chips)];
}

export const drawError = (title, message) => make("p", { class: "error", role: "alert" }, make("b", {}, title), message);
