// The form for a new job.

import { get, post } from "./api.js";
import { announce, button, el } from "./dom.js";
import { controls, field, kindChoice, option } from "./fields.js";
import { bytes, percent, short } from "./format.js";
import { filePicker } from "./picker.js";
import { problemPanel } from "./problem.js";
import { parseShapes } from "./shapes.js";
import { upload } from "./upload.js";

const NEEDS = {
  compile: ["known", "files", "target", "options"],
  tune: ["known", "files", "target", "options", "trials", "time"],
  verify: ["known", "files", "artifact"],
  bench: ["artifact", "time"],
};
const MOST_KNOWN = 100;

export function submitForm(signal) {
  const files = filePicker();
  const made = controls();
  const parts = partsOf(made, files);
  const kinds = kindChoice(adapt);
  const send = el("button", { type: "submit", class: "primary" }, "Start");
  const stop = button("Stop the upload", () => sending?.abort());
  const progress = el("progress", { max: 1, value: 0, "aria-label": "Upload" });
  const status = el("p", { class: "muted status", role: "status" });
  const trouble = el("div");
  let sending = null;

  const kind = () => kinds.querySelector(":checked").value;

  function adapt() {
    for (const [name, part] of Object.entries(parts)) part.hidden = !NEEDS[kind()].includes(name);
    parts.files.hidden ||= made.known.value !== "";
  }
  function tell(phase, done, total) {
    progress.value = total ? done / total : 0;
    const sent = `${bytes(done)} of ${bytes(total)} sent, ${percent(total ? done / total : 1)}`;
    status.textContent = phase === "hash" ? "Computing its SHA-256" : sent;
  }
  function busy(now) {
    sending = now ? new AbortController() : null;
    [send.disabled, stop.hidden] = [now, !now];
    form.setAttribute("aria-busy", String(now));
  }
  async function start(event) {
    event.preventDefault();
    trouble.replaceChildren();
    busy(true);
    try {
      const job = await post("/v1/jobs", await request());
      announce("The job is accepted");
      if (!signal.aborted) location.hash = `#/jobs/${job.id}`;
    } catch (problem) {
      const stopped = problem.name === "AbortError" || problem.code === "stopped";
      const again = el("p", { role: "alert" }, "The upload was stopped. The same file goes on from there.");
      trouble.replaceChildren(stopped ? again : problemPanel(problem));
      [progress.value, status.textContent] = [0, ""];
    } finally {
      busy(false);
    }
  }
  async function request() {
    const needs = NEEDS[kind()];
    const body = { kind: kind() };
    if (needs.includes("artifact")) body.artifact = digestOf(made.artifact.value);
    if (needs.includes("options")) Object.assign(body, { target: made.target.value, options: optionsOf(made) });
    if (needs.includes("trials")) body.trials = Number(made.trials.value) || 64;
    if (needs.includes("time") && made.time.value) body.time_s = Number(made.time.value);
    if (needs.includes("known")) body.model = made.known.value || (await sendFiles());
    return body;
  }
  async function sendFiles() {
    const { model, data } = files.chosen();
    if (!model) throw new Error("Choose a model first: an ONNX file, or a .pt2.");
    return (await upload(model, data, tell, sending.signal)).digest;
  }

  const form = el("form", { class: "panel submit", novalidate: true, submit: start, "aria-labelledby": "submit-title" },
    el("h2", { id: "submit-title" }, "New job"), kinds, Object.values(parts),
    el("div", { class: "actions" }, send, stop), el("div", { class: "sending" }, progress, status), trouble);
  made.known.addEventListener("change", adapt);
  signal.addEventListener("abort", () => sending?.abort());
  busy(false);
  adapt();
  fillChoices(made, signal).then(adapt, (problem) => {
    if (!signal.aborted && problem.status !== 401) trouble.replaceChildren(problemPanel(problem));
  });
  return form;
}

function partsOf(made, files) {
  return {
    known: field("known", made.known, "Model"),
    files: el("div", { class: "new-file" }, files.node),
    artifact: field("artifact", made.artifact, "Result", "The digest that a finished compile shows."),
    target: field("target", made.target, "Target"),
    trials: field("trials", made.trials, "Trials a kernel, on average"),
    time: field("time", made.time, "Seconds at most"),
    options: el("details", {}, el("summary", {}, "Options"),
      field("precision", made.precision, "Precision of contractions"),
      field("level", made.level, "Optimization level"),
      field("shapes", made.shapes, "Shapes of inputs", "One a line. A name in place of a size keeps it open."),
      field("seed", made.seed, "Seed of the inputs for the verification"),
      field("verify", made.verify, "Verify the numbers against the framework's")),
  };
}

function digestOf(text) {
  const digest = text.trim().toLowerCase();
  if (!/^[0-9a-f]{64}$/.test(digest)) throw new Error("Give the result's digest: 64 hexadecimal digits.");
  return digest;
}

function optionsOf({ level, verify, seed, precision, shapes }) {
  const given = parseShapes(shapes.value);
  return {
    opt_level: Number(level.value),
    verify: verify.checked,
    seed: Number(seed.value) || 0,
    ...(precision.value && { precision: precision.value }),
    ...(Object.keys(given).length && { shapes: given }),
  };
}

async function fillChoices(made, signal) {
  const { targets } = await get("/v1/targets", { signal });
  const named = ({ target, name, missing }) => {
    const text = target === name ? name : `${target}: ${name}`;
    return option([target, missing.length ? `${text} (cannot run here)` : text]);
  };
  made.target.replaceChildren(...targets.map(named));
  const { models } = await get("/v1/models", { signal });
  const known = ({ digest, name, size_bytes: size }) =>
    option([digest, `${name} · ${bytes(size)} · ${short(digest)}`]);
  made.known.append(...models.slice(0, MOST_KNOWN).map(known));
  const wanted = sessionStorage.getItem("relaxc-model");
  sessionStorage.removeItem("relaxc-model");
  if (models.some(({ digest }) => digest === wanted)) made.known.value = wanted;
}
