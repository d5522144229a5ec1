// The HTTP API of this server: problems as errors, the key from this tab.

const KEY = "relaxc-key";

/** What the server, or the way to it, refused. `code`, `remedy` and `fields` are those of docs/errors.md. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || "the server gave no reason");
    const { code = `http-${status}`, remedy = "", fault = "", node = null, retryable = false, fields = {} } = body;
    Object.assign(this, { status, code, remedy, fault, node, retryable, fields });
  }
}

export function key() {
  return sessionStorage.getItem(KEY) || "";
}

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

export function authorization() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

export function unreachable() {
  const remedy = "See that it runs and that this machine reaches it; the page goes on by itself.";
  return new Problem(0, { code: "unreachable", detail: "the server does not answer", remedy });
}

/** The Problem of an answer that is not a success; asks for a key where one is missing. */
export async function problemOf(status, text) {
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    body = { detail: text.slice(0, 300) };
  }
  const problem = new Problem(status, body);
  if (status === 401) document.dispatchEvent(new CustomEvent("key-needed", { detail: problem }));
  return problem;
}

/** A fetch that throws a Problem for everything but a success. */
export async function call(path, { headers = {}, ...options } = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...authorization(), ...headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw await problemOf(response.status, await response.text());
  return response;
}

export async function get(path, options) {
  return (await call(path, options)).json();
}

export async function post(path, body, headers = {}) {
  const typed = { "Content-Type": "application/json", ...headers };
  return (await call(path, { method: "POST", body: JSON.stringify(body), headers: typed })).json();
}

export async function remove(path) {
  const text = await (await call(path, { method: "DELETE" })).text();
  return text ? JSON.parse(text) : null;
}

export const jobPath = (id) => `/v1/jobs/${encodeURIComponent(id)}`;
export const artifactPath = (digest) => `/v1/artifacts/${encodeURIComponent(digest)}`;

/** Saves what is at `path` as `name`. With a key it goes through memory, for a link cannot carry one. */
export async function download(path, name) {
  if (key()) saveBlob(await (await call(path)).blob(), name);
  else follow(path, name);
}

function saveBlob(blob, name) {
  const href = URL.createObjectURL(blob);
  follow(href, name);
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function follow(href, name) {
  const link = Object.assign(document.createElement("a"), { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}
