// What came of a job, by its kind.

import { call, get, post } from "./api.js";
import { artifactPanels } from "./artifact.js";
import { el, table } from "./dom.js";
import { number } from "./format.js";
import { manifestPanel } from "./manifest.js";
import { verificationPanel } from "./verification.js";

/** The panels for a job that succeeded. */
export async function resultOf(job, signal) {
  const { result, artifact } = job;
  if (job.kind === "compile") return artifactPanels(artifact, { job, signal });
  if (job.kind === "verify") return el("div", {}, verificationPanel(verificationIn(result)), manifestPanel("Result", result));
  if (job.kind === "bench") return benchPanels(job, signal);
  return el("div", {}, tuned(job), manifestPanel("Result", result));
}

function verificationIn(result) {
  return result?.verification || result;
}

async function benchPanels(job, signal) {
  const digest = job.artifact || job.result?.artifact;
  const panels = [timingsPanel(benchIn(job.result)), manifestPanel("Result", job.result)];
  if (digest) panels.push(await artifactPanels(digest, { signal, profile: profileIn(job.result), brief: true }));
  return el("div", {}, panels);
}

/** The whole-run timings in a bench job's result. */
export function benchIn(result) {
  return result?.bench?.timings ? result.bench : result?.timings ? result : null;
}

/** The times by PrimFunc in a bench job's result, where it has them. */
export function profileIn(result) {
  const profile = result?.profile || result;
  return Array.isArray(profile?.functions) && profile.functions.length ? profile : null;
}

const PERCENTILES = [["min_ms", "min"], ["p50_ms", "p50"], ["p90_ms", "p90"], ["p99_ms", "p99"], ["mean_ms", "mean"]];

function timingsPanel(bench) {
  if (!bench) return null;
  return el("section", { class: "panel" }, el("h2", {}, "Time of a run"), table("Time of a run in milliseconds", [
    { title: "ms", cell: (row) => row.name },
    ...PERCENTILES.map(([name, title]) => ({ title, number: true, cell: (row) => number(row[name]) })),
    { title: "per second", number: true, cell: (row) => number(row.throughput) },
    { title: "runs", number: true, cell: (row) => String(row.samples) },
  ], bench.timings));
}

function tuned(job) {
  if (!job.records) return null;
  const compile = async () => {
    const body = { kind: "compile", model: job.model, target: job.target, options: job.options, records: job.records };
    location.hash = `#/jobs/${(await post("/v1/jobs", body)).id}`;
  };
  const save = async () => {
    const text = await (await call(`/v1/records/${job.records}`)).text();
    const link = el("a", { href: URL.createObjectURL(new Blob([text])), download: `${job.records.slice(0, 12)}.jsonl` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
  return el("section", { class: "panel" }, el("h2", {}, "Records"),
    el("p", {}, "The fastest kernels that were found, as records that a compile takes."),
    el("div", { class: "actions" }, job.model && el("button", { type: "button", class: "primary", click: compile }, "Compile with these"),
      el("button", { type: "button", click: save }, "Save the records")));
}

/** The newest bench of an artifact that has times by PrimFunc, or null. */
export async function profileOf(digest, model, signal) {
  const query = new URLSearchParams({ kind: "bench", state: "succeeded", limit: 50, ...(model && { model }) });
  const { jobs } = await get(`/v1/jobs?${query}`, { signal });
  const bench = jobs.find((job) => (job.artifact === digest || job.result?.artifact === digest) && profileIn(job.result));
  return bench ? profileIn(bench.result) : null;
}
