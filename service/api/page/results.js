// What came of a job, by its kind.

import { starting } from "./again.js";
import { artifactPath, download, get } from "./api.js";
import { artifactPanels, speedPanels } from "./artifact.js";
import { button, el, note, panel } from "./dom.js";
import { number, seconds } from "./format.js";
import { manifestPanel } from "./manifest.js";
import { profileIn, runsPanel } from "./profiles.js";
import { problemPanel } from "./problem.js";
import { tile } from "./tiles.js";
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

function recordsPanel({ records, model, target, options, result }) {
  if (!records) return panel("Records", sums(result), note("Nothing was found that is faster."));
  const trouble = el("div");
  const told = (problem) => trouble.replaceChildren(problemPanel(problem));
  const save = () => download(`/v1/records/${records}`, `${records.slice(0, 12)}.jsonl`).catch(told);
  const compile = { kind: "compile", model, target, options, records };
  return panel("Records", sums(result), note("The fastest kernels that were found, as records that a compile takes."),
    el("div", { class: "actions" },
      starting("Compile with these", compile, trouble, "primary"), button("Save the records", save)), trouble);
}

/** What a run of the model gains, over the kernels that were tuned. */
function sums({ gain, untuned_s: untuned, tuned_s: tuned, improved, trials, seconds: spent }) {
  return el("div", { class: "tiles" },
    tile("Speed-up", `${number(gain)}×`, "of the tuned kernels together", gain > 1.005 ? "good" : null),
    tile("Untuned", seconds(untuned), "their time in one run"),
    tile("Tuned", seconds(tuned), "their time in one run"),
    tile("Improved", String(improved), "kernels"),
    tile("Trials", String(trials), `in ${seconds(spent)}`));
}
