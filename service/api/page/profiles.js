// The numbers in a bench job's result: whole runs, and times by PrimFunc.

import { get } from "./api.js";
import { panel, table } from "./dom.js";
import { number } from "./format.js";

/** The times by PrimFunc, or null. */
export function profileIn(result) {
  const profile = result?.profile || result;
  return Array.isArray(profile?.functions) && profile.functions.length ? profile : null;
}

/** Those of the newest bench of an artifact, or null: what may not be seen, or is not there, is no times. */
export async function profileOf(digest, signal) {
  try {
    const { jobs } = await get("/v1/jobs?kind=bench&state=succeeded&limit=100", { signal });
    const bench = jobs.find((job) => job.artifact === digest);
    return bench ? profileIn((await get(bench.links.self, { signal })).result) : null;
  } catch (problem) {
    if (problem.status === 403 || problem.status === 404) return null;
    throw problem;
  }
}

const TIMES = ["min", "p50", "p90", "p99", "mean"];

/** The table of whole runs, or null. */
export function runsPanel(result) {
  const bench = result?.bench || result;
  if (!Array.isArray(bench?.timings)) return null;
  const numbers = (title, cell) => ({ title, number: true, cell });
  return panel("Time of a run", table("Time of a run in milliseconds", [
    { title: "ms", cell: (row) => row.name },
    ...TIMES.map((name) => numbers(name, (row) => number(row[`${name}_ms`]))),
    numbers("per second", (row) => number(row.throughput)),
    numbers("runs", (row) => String(row.samples)),
  ], bench.timings));
}
