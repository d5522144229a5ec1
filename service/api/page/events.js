// Server-sent events through fetch, for EventSource cannot send a key.

import { call } from "./api.js";

const LONGEST_WAIT_MS = 15_000;

/**
 * Yields {id, event, data} of `path` until its `done`; after a cut it comes back with Last-Event-ID.
 * Throws the Problem that coming back would not mend.
 */
export async function* events(path, signal) {
  let last = "";
  for (let failures = 0; ; failures += 1) {
    try {
      const headers = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
      const response = await call(path, { headers, signal, cache: "no-store" });
      if (response.status === 204) return; // its `done` was told
      for await (const message of messages(response.body)) {
        failures = 0;
        if (message.id) last = message.id;
        yield message;
        if (message.event === "done") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    if (signal.aborted) return;
    await new Promise((wake) => setTimeout(wake, Math.min(LONGEST_WAIT_MS, 500 * 2 ** failures)));
  }
}

/** The messages of a stream: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream */
async function* messages(body) {
  let message = { id: "", event: "message", lines: [] };
  for await (const line of linesOf(body)) {
    if (line === "") {
      if (message.lines.length) yield { id: message.id, event: message.event, data: parsed(message.lines.join("\n")) };
      message = { id: "", event: "message", lines: [] };
      continue;
    }
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "data") message.lines.push(value);
    else if (field === "event" || field === "id") message[field] = value;
  }
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      yield* lines;
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { message: text };
  }
}
