// The form for a new job.

import { get, post } from "./api.js";
import { announce, el } from "./dom.js";
import { bytes, percent, short } from "./format.js";
import { filePicker } from "./picker.js";
import { problemPanel } from "./problem.js";
import { upload } from "./upload.js";

const KINDS = [
  ["compile", "Compile", "One verified .so"],
  ["tune", "Tune", "Search for faster kernels"],
  ["verify", "Verify", "Compare a result with the model"],
  ["bench", "Bench", "Time a result on the server"],
];

const NEEDS = { compile: ["model", "options"], tune: ["model", "options", "budget"], verify: ["model", "artifact"], bench: ["artifact", "time"] };

/** `["x=1,3,224,224"]` as dims by input name, as the command line's --shape takes them. Throws an Error for what is none. */
export function parseShapes(text) {
  const shapes = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not NAME=DIMS, like x=1,3,224,224`);
    const dims = line.slice(at + 1).split(",").map((dim) => dim.trim()).filter(Boolean);
    shapes[line.slice(0, at).trim()] = dims.map((dim) => (/^\d+$/.test(dim) ? Number(dim) : dim));
  }
  return shapes;
}

function field(name, label, control, hint = null) {
  control.id = `submit-${name}`;
  if (hint) control.setAttribute("aria-describedby", `${control.id}-hint`);
  return el("div", { class: "field", "data-part": control.dataset.part || name }, el("label", { for: control.id }, label), control,
    hint && el("p", { class: "hint", id: `${control.id}-hint` }, hint));
}

const select = (options, part) => el("select", { "data-part": part }, options.map(([value, text]) => el("option", { value }, text)));

export function submitForm(signal) {
  const files = filePicker();
  const known = select([["", "a file of mine"]], "model");
  const controls = {
    target: select([["auto", "auto"]], "options"),
    precision: select([["", "as the model"], ["fp32", "fp32"], ["fp16", "fp16"], ["bf16", "bf16"]], "options"),
    level: select([["2", "2, the default"], ["0", "0, as imported"], ["1", "1, fusion"], ["3", "3, fast math"]], "options"),
    verify: el("input", { type: "checkbox", checked: true, "data-part": "options" }),
    seed: el("input", { type: "number", min: 0, max: 2 ** 32 - 1, value: 0, "data-part": "options" }),
    shapes: el("textarea", { rows: 2, spellcheck: "false", placeholder: "x=1,3,224,224", "data-part": "options" }),
    artifact: el("input", { type: "text", spellcheck: "false", autocomplete: "off", pattern: "[0-9a-f]{64}", placeholder: "SHA-256 of a result" }),
    trials: el("input", { type: "number", min: 1, max: 100000, value: 64, "data-part": "budget" }),
    time: el("input", { type: "number", min: 1, max: 86400, placeholder: "no limit" }),
  };
  const kinds = KINDS.map(([value, title, hint], at) => el("label", { class: "kind" },
    el("input", { type: "radio", name: "kind", value, checked: at === 0, change: adapt }), el("span", {}, el("strong", {}, title), el("small", {}, hint))));
  const send = el("button", { type: "submit", class: "primary" }, "Start");
  const stop = el("button", { type: "button", hidden: true, click: () => sending?.abort() }, "Stop the upload");
  const progress = el("progress", { max: 1, value: 0, "aria-label": "Upload" });
  const status = el("p", { class: "muted status", role: "status" });
  const trouble = el("div");
  let sending = null;

  const form = el("form", { class: "panel submit", novalidate: true, submit: start, "aria-labelledby": "submit-title" },
    el("h2", { id: "submit-title" }, "New job"),
    el("fieldset", { class: "kinds" }, el("legend", { class: "unseen" }, "Kind of job"), kinds),
    field("known", "Model", known),
    el("div", { "data-part": "model", class: "new-file" }, files.node),
    field("artifact", "Result", controls.artifact, "The digest that a finished compile shows."),
    field("target", "Target", controls.target),
    field("trials", "Trials a kernel, on average", controls.trials),
    field("time", "Seconds at most", controls.time),
    el("details", { "data-part": "options" }, el("summary", {}, "Options"),
      field("precision", "Precision of contractions", controls.precision),
      field("level", "Optimization level", controls.level),
      field("shapes", "Shapes of inputs", controls.shapes, "One a line. A name in place of a size keeps that dimension open."),
      field("seed", "Seed of the inputs it is verified with", controls.seed),
      field("verify", "Verify the numbers against the framework's", controls.verify)),
    el("div", { class: "actions" }, send, stop),
    el("div", { class: "sending" }, progress, status), trouble);

  const kind = () => form.querySelector("input[name=kind]:checked").value;

  function adapt() {
    const parts = NEEDS[kind()];
    for (const part of form.querySelectorAll(".field[data-part], div[data-part], details[data-part]")) {
      const name = part.dataset.part;
      part.hidden = !(parts.includes(name) || (name === "time" && parts.includes("budget")));
    }
    form.querySelector(".new-file").hidden ||= known.value !== "";
  }
  function tell(phase, done, total) {
    progress.value = total ? done / total : 0;
    status.textContent = phase === "hash" ? "Computing its SHA-256" : `${bytes(done)} of ${bytes(total)} sent, ${percent(total ? done / total : 1)}`;
  }
  async function start(event) {
    event.preventDefault();
    trouble.replaceChildren();
    sending = new AbortController();
    signal.addEventListener("abort", () => sending?.abort());
    form.setAttribute("aria-busy", "true");
    [send.disabled, stop.hidden] = [true, false];
    try {
      const job = await post("/v1/jobs", await request());
      announce("The job is accepted");
      if (!signal.aborted) location.hash = `#/jobs/${job.id}`;
    } catch (problem) {
      const stopped = problem.name === "AbortError" || problem.code === "stopped";
      trouble.replaceChildren(stopped ? el("p", { role: "alert" }, "The upload was stopped. Sending the same file again goes on from there.") : problemPanel(problem));
      [progress.value, status.textContent] = [0, ""];
    } finally {
      sending = null;
      form.removeAttribute("aria-busy");
      [send.disabled, stop.hidden] = [false, true];
    }
  }
  async function request() {
    const parts = NEEDS[kind()];
    const body = { kind: kind() };
    if (parts.includes("options")) Object.assign(body, { target: controls.target.value, options: options() });
    if (parts.includes("artifact")) body.artifact = controls.artifact.value.trim();
    if (parts.includes("budget")) body.trials = Number(controls.trials.value) || 64;
    if (controls.time.value && !controls.time.closest(".field").hidden) body.time_s = Number(controls.time.value);
    if (parts.includes("artifact") && !/^[0-9a-f]{64}$/.test(body.artifact)) throw new Error("Give the result's digest: 64 hexadecimal digits.");
    if (parts.includes("model")) body.model = known.value || (await sendFiles());
    return body;
  }
  function options() {
    const shapes = parseShapes(controls.shapes.value);
    return {
      opt_level: Number(controls.level.value),
      verify: controls.verify.checked,
      seed: Number(controls.seed.value) || 0,
      ...(controls.precision.value && { precision: controls.precision.value }),
      ...(Object.keys(shapes).length && { shapes }),
    };
  }
  async function sendFiles() {
    const { model, data } = files.chosen();
    if (!model) throw new Error("Choose a model first: an ONNX file, or a .pt2.");
    return (await upload(model, data, tell, sending.signal)).digest;
  }
  async function fillChoices() {
    const { targets } = await get("/v1/targets", { signal });
    controls.target.replaceChildren(...targets.map((row) => el("option", { value: row.target },
      row.target === row.name ? row.name : `${row.target}: ${row.name}`, row.missing.length ? " (cannot run here)" : "")));
    const { models } = await get("/v1/models", { signal });
    known.append(...models.slice(0, 100).map((row) => el("option", { value: row.digest }, `${row.name} · ${bytes(row.size_bytes)} · ${short(row.digest)}`)));
    const wanted = sessionStorage.getItem("relaxc-model");
    sessionStorage.removeItem("relaxc-model");
    if (models.some((row) => row.digest === wanted)) known.value = wanted;
    adapt();
  }

  known.addEventListener("change", adapt);
  adapt();
  fillChoices().catch((problem) => signal.aborted || problem.status === 401 || trouble.replaceChildren(problemPanel(problem)));
  return form;
}
