// One panel for each thing that a model can do: its fields, and how its answer is asked for and drawn.

import { ask, modelPath, streamPieces } from "./api.js";
import * as draw from "./draw.js";
import { exampleOf, say } from "./words.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

// The panels of a model, by its description (GET /models/NAME).
export function listPanels(model) {
  const can = new Set(model.can), panels = [];
  const task = { classify: classify, regress: classify, tag, answer, choose, similar, generate: generate }[model.task];
  if (task) panels.push(task(model));
  if (can.has("fill")) panels.push(fill(model));
  if (can.has("generate") && model.task === null) panels.push(generate(model));
  if (can.has("embed")) panels.push(similarity(model));
  if (can.has("embed") || can.has("rerank")) panels.push(nearest(model));
  return [...panels, tokenize(model)];
}

// A panel: {name, title, fields: [{id, label, rows, example, kind}], hasTruncate, run(values, tools)}; `run` returns elements.
function classify(model) {
  const pair = model.fields.includes("text_b"), isScore = model.task === "regress";
  return {
    name: "predict", title: isScore ? "regress" : "predict", hasTruncate: true,
    fields: [
      { id: "text", label: "text", rows: 4, example: "text" },
      { id: "text_b", label: pair ? "textBNeeded" : "textB", rows: 2, example: pair ? "pairB" : undefined },
      { id: "words", label: "words", kind: "check", value: true },
    ],
    async run({ text, text_b, words, truncate }, { signal }) {
      requireText(text);
      if (pair) requireText(text_b);
      const inputs = text_b ? { text, text_b } : { text };
      const body = { inputs, truncate };
      if (!words) return drawPrediction(await ask(modelPath(model.name, "predict"), body, signal));
      const attribution = await ask(modelPath(model.name, "attribute"), body, signal);
      return [...drawPrediction(attribution.answer), ...draw.drawAttribution(inputs, attribution)];
    },
  };
}

const drawPrediction = (answer) => (answer.scores ? draw.drawClassification(answer) : [draw.drawScore(answer.score)]);

function tag(model) {
  return {
    name: "tag", title: "tag", hasTruncate: true, fields: [{ id: "text", label: "text", rows: 4, example: "tag" }],
    async run({ text, truncate }, { signal }) {
      requireText(text);
      return draw.drawEntities(text, await ask(modelPath(model.name, "predict"), { inputs: text, truncate }, signal));
    },
  };
}

function answer(model) {
  return {
    name: "answer", title: "answer", hasTruncate: true,
    fields: [
      { id: "question", label: "question", example: "question" },
      { id: "context", label: "context", rows: 6, example: "context" },
    ],
    async run({ question, context, truncate }, { signal }) {
      requireText(question, context);
      const body = { inputs: { question, context }, top_k: 3, truncate };
      return draw.drawAnswer(context, await ask(modelPath(model.name, "predict"), body, signal));
    },
  };
}

function choose(model) {
  return {
    name: "choose", title: "choose", hasTruncate: true,
    fields: [
      { id: "context", label: "context", rows: 3, example: "chooseContext" },
      { id: "question", label: "questionOptional", example: "chooseQuestion" },
      { id: "options", label: "options", rows: 3, example: "options" },
    ],
    async run({ context, question, options, truncate }, { signal }) {
      requireText(context);
      const choices = lines(options);
      if (choices.length < 2) throw new InputError(say("needOptions"));
      const inputs = { context, options: choices, ...(question ? { question } : {}) };
      const { choice, scores } = await ask(modelPath(model.name, "predict"), { inputs, truncate }, signal);
      const answers = [draw.make("p", { class: "answer" }, choices[choice])];
      return [...answers, draw.drawBars(choices.map((label, index) => ({ label, score: scores[index] })))];
    },
  };
}

function similar(model) {
  return {
    name: "similar", title: "similar", hasTruncate: true,
    fields: [
      { id: "text", label: "text", rows: 2, example: "text" },
      { id: "text_b", label: "textBNeeded", rows: 2, example: "pairB" },
      { id: "words", label: "words", kind: "check", value: true },
    ],
    async run({ text, text_b, words, truncate }, { signal }) {
      requireText(text, text_b);
      const inputs = { text, text_b };
      if (!words) return [draw.drawScore((await ask(modelPath(model.name, "predict"), { inputs, truncate }, signal)).score)];
      const attribution = await ask(modelPath(model.name, "attribute"), { inputs, truncate }, signal);
      return [draw.drawScore(attribution.answer.score), ...draw.drawAttribution(inputs, attribution)];
    },
  };
}

function fill(model) {
  const mask = model.mask_token;
  return {
    name: "fill", title: "fill", hasTruncate: true, mask,
    fields: [
      { id: "text", label: "text", rows: 3, example: "fill", mask },
      { id: "top_k", label: "topK", kind: "number", value: 5, min: 1, max: 100 },
    ],
    async run({ text, top_k, truncate }, { signal, setText }) {
      requireText(text);
      const parts = text.split(mask);
      if (parts.length < 2) throw new InputError(say("needMask", { mask }));
      const rows = await ask(modelPath(model.name, "fill"), { inputs: text, top_k, truncate }, signal);
      const masks = Array.isArray(rows[0]) ? rows : [rows];
      const columns = masks.map((candidates, index) => draw.make("div", {},
        draw.make("h2", {}, masks.length > 1 ? say("mask", { n: index + 1 }) : mask),
        draw.drawBars(candidates.map(({ token_str: token, score }) => ({
          label: token, score, title: `${say("chooseToken", { token, n: index + 1 })}, ${draw.percent(score)}`,
          choose: () => setText("text", replaceMask(parts, mask, index, token), masks.length > 1),
        })))));
      return [draw.make("div", { class: "masks" }, ...columns)];
    },
  };
}

// The text with a token in place of mask `index`; "##ing" continues the word before it.
function replaceMask(parts, mask, index, token) {
  const before = parts.slice(0, index + 1).join(mask), after = parts.slice(index + 1).join(mask);
  return token.startsWith("##") ? `${before.trimEnd()}${token.slice(2)}${after}` : `${before}${token.trim()}${after}`;
}

function similarity(model) {
  return {
    name: "similarity", title: "similarity", hasTruncate: true, fields: [{ id: "texts", label: "texts", rows: 5, example: "texts" }],
    async run({ texts, truncate }, { signal }) {
      const inputs = lines(texts);
      if (inputs.length < 2) throw new InputError(say("needTwo"));
      return [draw.drawMatrix(inputs, await ask(modelPath(model.name, "similarity"), { inputs, truncate }, signal))];
    },
  };
}

function nearest(model) {
  return {
    name: "nearest", title: "nearest", hasTruncate: true,
    fields: [
      { id: "query", label: "query", example: "query" },
      { id: "documents", label: "documents", rows: 5, example: "texts" },
    ],
    async run({ query, documents, truncate }, { signal }) {
      requireText(query, documents);
      const texts = lines(documents);
      const { results, method } = await ask("/v1/rerank", { model: model.name, query, documents: texts, truncate }, signal);
      const rows = results.map(({ index, relevance_score: score }) => ({ label: texts[index], score }));
      return [draw.drawBars(rows, (score) => score.toFixed(3)),
        draw.make("p", { class: "soft" }, say(method === "cross-encoder" ? "byCross" : "byVectors"))];
    },
  };
}

function generate(model) {
  const isTask = model.task === "generate";
  return {
    name: "generate", title: "generate", canStop: true,
    fields: [
      { id: "prompt", label: isTask ? "source" : "prompt", rows: 3, example: isTask ? "source" : "prompt" },
      { id: "kind", label: "kind", kind: "select", values: ["greedy", "sample"] },
      { id: "temperature", label: "temperature", kind: "number", value: 0.8, min: 0.05, max: 5, step: 0.05 },
      { id: "max_new_tokens", label: "newTokens", kind: "number", value: 60, min: 1, max: 2000 },
    ],
    async run({ prompt, kind, temperature, max_new_tokens }, { signal, show }) {
      if (isTask) requireText(prompt);
      const sampling = kind === "sample" ? { temperature, seed: Math.floor(Math.random() * 2 ** 31) } : {};
      const generated = draw.make("span", { class: "generated" });
      const text = draw.make("p", { class: "text" }, isTask ? "" : prompt, generated);
      show([text]);
      const body = { inputs: prompt, kind, stream: true, search: { max_new_tokens, ...sampling } };
      for await (const piece of streamPieces(modelPath(model.name, "generate"), body, signal)) generated.append(piece);
      return generated.textContent ? [text] : [text, draw.make("p", { class: "soft" }, say("nothing"))];
    },
  };
}

function tokenize(model) {
  return {
    name: "tokenize", title: "tokenize", fields: [{ id: "text", label: "text", rows: 3, example: "text" }],
    async run({ text }, { signal }) {
      requireText(text);
      return draw.drawTokens(await ask(modelPath(model.name, "tokenize"), { inputs: text }, signal));
    },
  };
}

// What is missing in the form: said before the server is asked.
export class InputError extends Error {}

function requireText(...texts) {
  if (texts.some((text) => !text.trim())) throw new InputError(say("needText"));
}

export const exampleFor = (field) => (field.example ? exampleOf(field.example, { mask: field.mask }) : "");
