// Requests to the server. An error has a title in the language of the page, and the message of the server.

import { say } from "./words.js";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get title() {
    if (this.status === 0) return say("offline");
    const name = [400, 401, 404, 413, 429].includes(this.status) ? `error${this.status}` : this.status < 500 ? "error400" : "error5";
    return say(name);
  }
}

const storedKey = () => sessionStorage.getItem("bertsmith-key") ?? "";
export const storeKey = (key) => sessionStorage.setItem("bertsmith-key", key);

export async function ask(path, body, signal) {
  return (await send(path, body, signal)).json();
}

export async function* streamPieces(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const { piece, error } = JSON.parse(data);
      if (error !== undefined) throw new ApiError(500, error);
      yield piece;
    }
  }
}

export const modelPath = (name, route = "") => `/models/${encodeURIComponent(name)}${route && `/${route}`}`;

async function send(path, body, signal) {
  const headers = storedKey() ? { authorization: `Bearer ${storedKey()}` } : {};
  const options = body === undefined ? { headers, signal } : {
    method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body), signal,
  };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "");
  }
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).error ?? message;
    message = message.message ?? message;
  } catch {} // not JSON: from a proxy in between
  throw new ApiError(response.status, message);
}
