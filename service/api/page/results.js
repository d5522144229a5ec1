// What came of a job, by its kind.

import { artifactPath, download, get, post } from "./api.js";
import { artifactPanels, speedPanels } from "./artifact.js";
import { button, el, note, panel } from "./dom.js";
import { manifestPanel } from "./manifest.js";
import { profileIn, runsPanel } from "./profiles.js";
import { verificationPanel } from "./verification.js";
import { rowsOf } from "./work.js";

/** The panels for a job that succeeded. */
export async function resultOf(job, signal) {
  const rest = manifestPanel("Result", job.result);
  if (job.kind === "compile") return artifactPanels(job.artifact, { job, signal });
  if (job.kind === "verify") return el("div", {}, verificationPanel(job.result?.verification || job.result), rest);
  if (job.kind === "bench") return el("div", {}, runsPanel(job.result), ...(await benchPanels(job, signal)), rest);
  return el("div", {}, recordsPanel(job), rest);
}

async function benchPanels(job, signal) {
  if (!job.artifact) return [];
  const manifest = await get(`${artifactPath(job.artifact)}/manifest`, { signal });
  return speedPanels(manifest, rowsOf(manifest, profileIn(job.result)));
}

function recordsPanel({ records, model, target, options }) {
  if (!records) return null;
  const compile = async () => {
    const body = { kind: "compile", model, target, options, records };
    location.hash = `#/jobs/${(await post("/v1/jobs", body)).id}`;
  };
  const save = () => download(`/v1/records/${records}`, `${records.slice(0, 12)}.jsonl`);
  return panel("Records", note("The fastest kernels that were found, as records that a compile takes."),
    el("div", { class: "actions" },
      button("Compile with these", compile, "primary"), button("Save the records", save)));
}
