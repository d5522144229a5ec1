// A finished artifact: what it is, how it computes, how fast, whether it is right, and the file itself.

import { artifactPath, download, get, post } from "./api.js";
import { el, facts } from "./dom.js";
import { bytes, count, number, short } from "./format.js";
import { kernelPanel } from "./kernels.js";
import { manifestPanel } from "./manifest.js";
import { problemPanel } from "./problem.js";
import { profileOf } from "./results.js";
import { rooflinePanel } from "./roofline.js";
import { signaturePanel } from "./signature.js";
import { timesPanel } from "./times.js";
import { rowsOf } from "./work.js";
import { verificationPanel } from "./verification.js";

export function artifactView(signal, digest) {
  const body = el("div", { class: "outcome" });
  artifactPanels(digest, { signal }).then((made) => body.replaceChildren(made))
    .catch((problem) => signal.aborted || body.replaceChildren(problemPanel(problem)));
  return el("article", {}, el("h1", { tabindex: "-1" }, `Artifact ${short(digest)}`), body);
}

/** The panels of an artifact; `brief` leaves out what its compile shows, `profile` has times if they are known. */
export async function artifactPanels(digest, { job = null, signal, profile = null, brief = false }) {
  const manifest = await get(`${artifactPath(digest)}/manifest`, { signal });
  const times = profile || (await profileOf(digest, job?.model, signal).catch(() => null));
  const work = rowsOf(manifest, times);
  return el("div", {},
    brief || summaryPanel(manifest, work, digest, job),
    brief || signaturePanel(manifest.signature),
    kernelPanel(manifest, work),
    timesPanel(work),
    rooflinePanel(work),
    brief || verificationPanel(manifest.verification),
    brief || manifestPanel("Manifest", manifest));
}

function summaryPanel(manifest, work, digest, job) {
  const name = (job?.name || digest.slice(0, 12)).replace(/\.(onnx|pt2)$/i, "");
  const { passes, weights, verification } = manifest;
  const flops = work.rows.every((row) => typeof row.flops === "number") ? work.rows.reduce((sum, row) => sum + row.flops * row.calls, 0) : null;
  const worst = Math.max(...(verification.outputs || []).map((row) => row.scaled_error ?? NaN));
  const trouble = el("div");
  const start = (kind) => async () => {
    try {
      const body = { kind, ...(job?.model && kind === "verify" && { model: job.model }), artifact: digest };
      location.hash = `#/jobs/${(await post("/v1/jobs", body)).id}`;
    } catch (problem) {
      trouble.replaceChildren(problemPanel(problem));
    }
  };
  const save = (path, as) => () => download(path, as).catch((problem) => trouble.replaceChildren(problemPanel(problem)));
  return el("section", { class: "panel" }, el("h2", {}, "Result"),
    el("div", { class: "tiles" },
      tile("Verified", verification.passed ? "yes" : typeof verification === "string" ? "not compared" : "no", worst >= 0 ? `largest error ${number(worst)}` : "", verification.passed ? "good" : "bad"),
      tile("Kernels", String(passes.kernel_calls ?? work.rows.length), `${work.rows.length} different`),
      tile("FLOPs a run", flops === null ? "by shape" : count(flops), passes.precision),
      tile("Weights", bytes(weights.size_bytes), `${weights.tensors.length} tensors`),
      tile("Working memory", bytes(passes.memory?.planned_bytes), passes.memory?.unbounded?.length ? "and more by shape" : "planned ahead"),
      tile("Target", manifest.target.name, `${manifest.target.cores} cores, ${manifest.target.vector_bits} bit vectors`)),
    el("div", { class: "actions" },
      el("button", { type: "button", class: "primary", id: "download", click: save(artifactPath(digest), `${name}.so`) }, `Download ${name}.so`),
      weights.file && el("button", { type: "button", click: save(`${artifactPath(digest)}/weights`, `${name}.safetensors`) }, `Download ${name}.safetensors`),
      el("button", { type: "button", click: start("bench") }, "Measure it"),
      job?.model && el("button", { type: "button", click: start("verify") }, "Verify again")),
    trouble,
    facts([["SHA-256", el("code", { class: "digest" }, digest)]]),
    el("details", {}, el("summary", {}, "The command that makes it again"), el("pre", { class: "code", tabindex: "0" }, manifest.command)));
}

function tile(title, value, note, state = null) {
  return el("div", { class: "tile", "data-state": state }, el("span", { class: "tile-title" }, title), el("strong", {}, value), el("small", {}, note || "\u00a0"));
}
