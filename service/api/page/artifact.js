// A finished artifact: what it is, how it computes, how fast, whether it is right, and the file itself.

import { starting } from "./again.js";
import { artifactPath, download, get } from "./api.js";
import { calibrationPanel } from "./calibration.js";
import { button, code, el, facts, panel } from "./dom.js";
import { bytes, count, number, short } from "./format.js";
import { kernelPanel } from "./kernels.js";
import { manifestPanel } from "./manifest.js";
import { problemPanel } from "./problem.js";
import { profileOf } from "./profiles.js";
import { rooflinePanel } from "./roofline.js";
import { signaturePanel } from "./signature.js";
import { tile } from "./tiles.js";
import { timesPanel } from "./times.js";
import { verificationPanel } from "./verification.js";
import { rowsOf } from "./work.js";

export function artifactView(signal, digest) {
  const body = el("div", { class: "outcome" });
  artifactPanels(digest, { signal })
    .then((made) => body.replaceChildren(made))
    .catch((problem) => signal.aborted || body.replaceChildren(problemPanel(problem)));
  return el("article", {}, el("h1", { tabindex: "-1" }, `Artifact ${short(digest)}`), body);
}

/** Every panel of an artifact, which `job` made if it is known. */
export async function artifactPanels(digest, { job = null, signal }) {
  const manifest = await get(`${artifactPath(digest)}/manifest`, { signal });
  const work = rowsOf(manifest, await profileOf(digest, signal));
  return el("div", {},
    summaryPanel(manifest, work, digest, job),
    signaturePanel(manifest.signature),
    ...speedPanels(manifest, work),
    verificationPanel(manifest.verification),
    ...calibrationPanel(manifest.passes.calibration),
    manifestPanel("Manifest", manifest));
}

/** How an artifact computes and how fast, with these times if there are any. */
export function speedPanels(manifest, work) {
  return [kernelPanel(manifest, work), timesPanel(work), rooflinePanel(work)];
}

function summaryPanel(manifest, work, digest, job) {
  const trouble = el("div");
  return panel("Result", tiles(manifest, work),
    actions(manifest, digest, job, trouble), trouble,
    facts([["SHA-256", el("code", { class: "digest" }, digest)]]),
    el("details", {}, el("summary", {}, "The command that makes it again"), code(manifest.command)));
}

function actions({ weights }, digest, job, trouble) {
  const told = (problem) => trouble.replaceChildren(problemPanel(problem));
  const name = (job?.name || digest.slice(0, 12)).replace(/\.(onnx|pt2)$/i, "");
  const save = (path, file) => button(`Download ${file}`, () => download(path, file).catch(told), "primary");
  return el("div", { class: "actions" },
    save(artifactPath(digest), `${name}.so`),
    weights.file && save(`${artifactPath(digest)}/weights`, `${name}.safetensors`),
    starting("Measure it", { kind: "bench", artifact: digest }, trouble),
    job?.model && starting("Verify again", { kind: "verify", model: job.model, artifact: digest }, trouble));
}

function tiles({ passes, weights, verification, target }, { rows }) {
  const memory = passes.memory || {};
  const unbounded = memory.unbounded?.length > 0;
  return el("div", { class: "tiles" },
    verdict(verification),
    tile("Kernels", String(passes.kernel_calls ?? rows.length), `${rows.length} different`),
    tile("FLOPs a run", flopsOf(rows), passes.precision),
    tile("Weights", bytes(weights.size_bytes), `${weights.tensors.length} tensors`),
    tile("Working memory", bytes(memory.planned_bytes), unbounded ? "and more by shape" : "planned ahead"),
    tile("Target", target.name, target.arch || `${target.cores} cores, ${target.vector_bits} bits`));
}

function flopsOf(rows) {
  const known = rows.every((row) => typeof row.flops === "number");
  return known ? count(rows.reduce((sum, row) => sum + row.flops * row.calls, 0)) : "by shape";
}

function verdict(verification) {
  if (typeof verification === "string") return tile("Verified", "not compared", verification);
  const worst = Math.max(...verification.outputs.map((row) => row.scaled_error ?? 0));
  const error = `largest error ${number(worst)}`;
  if (verification.passed && verification.weak) return tile("Verified", "weakly", verification.weak[0]);
  return verification.passed ? tile("Verified", "yes", error, "good") : tile("Verified", "no", error, "bad");
}
