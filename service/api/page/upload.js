// A model on its way to the server: by its SHA-256, resumable, where the browser can compute it, else as a form.

import { authorization, call, get, Problem, problemOf, unreachable } from "./api.js";

const PART_BYTES = 8 << 20;
const MOST_HASHED_BYTES = 1 << 30; // crypto.subtle wants the file whole in memory
const ATTEMPTS = 5;

/** Uploads a model and its external data, and gives what the server says of it. `tell(phase, done, total)` hears. */
export async function upload(model, data, tell, signal) {
  const hashed = !data.length && window.isSecureContext && model.size > 0 && model.size <= MOST_HASHED_BYTES;
  const location = hashed ? await byDigest(model, tell, signal) : await asForm(model, data, tell, signal);
  return get(location);
}

async function byDigest(file, tell, signal) {
  tell("hash", 0, file.size);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  const digest = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const path = `/v1/uploads/${digest}`;
  for (let failures = 0; ; failures += 1) {
    try {
      return await goOn(path, file, (done) => {
        failures = 0;
        tell("upload", done, file.size);
      }, signal);
    } catch (problem) {
      const again = problem.code === "upload-conflict" || problem.status === 0 || problem.status >= 500;
      if (!again || failures >= ATTEMPTS || signal.aborted) throw problem;
      await new Promise((wake) => setTimeout(wake, 300 * 2 ** failures));
    }
  }
}

/** Sends what is missing, a part at a time, and gives the address of the model. */
async function goOn(path, file, tell, signal) {
  const standing = await call(path, { method: "HEAD", signal });
  let location = standing.headers.get("Location");
  // Where every byte came but the end was cut off, the last one sent again finishes it.
  let offset = Math.min(Number(standing.headers.get("Upload-Offset") || 0), file.size - 1);
  while (!location) {
    tell(offset);
    const end = Math.min(offset + PART_BYTES, file.size);
    const range = `bytes ${offset}-${end - 1}/${file.size}`;
    const headers = { "Content-Range": range, "Content-Type": "application/octet-stream" };
    const named = `${path}?name=${encodeURIComponent(file.name)}`;
    const response = await call(named, { method: "PUT", headers, body: file.slice(offset, end), signal });
    location = response.headers.get("Location");
    offset = Number(response.headers.get("Upload-Offset") ?? end);
  }
  tell(file.size);
  return location;
}

/** XMLHttpRequest, for fetch does not tell how much it has sent. */
function asForm(model, data, tell, signal) {
  const form = new FormData();
  form.append("model", model, model.name);
  for (const file of data) form.append("data", file, file.name);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/models");
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => tell("upload", loaded, total));
    request.addEventListener("error", () => reject(unreachable()));
    const stopped = new Problem(0, { code: "stopped", detail: "the upload was stopped" });
    request.addEventListener("abort", () => reject(stopped));
    request.addEventListener("load", async () => {
      if (request.status < 300) resolve(request.getResponseHeader("Location"));
      else reject(await problemOf(request.status, request.responseText));
    });
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}
