// The kernels of an artifact as rows: what each computes, how often, its work, its time if measured, and its limit.

import { limitOf, peakOf } from "./peak.js";

const KINDS = [
  ["attention", /attention/],
  ["contraction", /matmul|conv\dd|conv|dense|einsum|lstm|gru/],
  ["norm", /norm|softmax/],
  ["reduction", /pool|avg|sum|mean|(^|_)(max|min|prod)$|argmax|argmin|reduce|topk|cumsum|sort/],
  ["movement", /transpose|reshape|concat|split|pack|take|gather|scatter|slice|pad|resize|tile|broadcast|cast|flip/],
];

/** The family of a kernel, by what leads its chain of operators. */
export function familyOf(computes) {
  const chain = computes.split(" + ");
  const found = KINDS.find(([, pattern]) => chain.some((name) => pattern.test(name)));
  return found ? found[0] : "elementwise";
}

/** `{rows, peak, measured, total}`: rows by PrimFunc, the longest first; times are of all calls in one run, in ms. */
export function rowsOf(manifest, profile) {
  const peak = profile?.peak ? { ...profile.peak, nominal: false } : peakOf(manifest);
  const calls = new Map();
  for (const [name] of manifest.passes.graph?.calls || []) calls.set(name, (calls.get(name) || 0) + 1);
  const measured = new Map((profile?.functions || []).map((row) => [row.function, row]));
  const rows = manifest.schedule.map((row) =>
    rowOf(row, manifest.passes, calls.get(row.function) ?? 1, measured.get(row.function), peak));
  const key = profile ? "ms" : "limitMs";
  const total = rows.reduce((sum, row) => sum + (row[key] || 0), 0);
  for (const row of rows) row.share = total ? (row[key] || 0) / total : 0;
  rows.sort((one, other) => other.share - one.share || (other.flops || 0) - (one.flops || 0));
  return { rows, peak, measured: Boolean(profile), total };
}

function rowOf(row, passes, planned, timed, peak) {
  const computes = passes.computes?.[row.function] || row.function.replace(/\d+$/, "");
  const calls = timed?.calls ?? planned;
  const [flops, moved] = [timed?.flops ?? row.flops, timed?.bytes ?? row.bytes];
  const limit = limitOf(peak, flops, moved, row.dtype);
  const ms = timed?.time_ms ?? null;
  const limitMs = timed?.limit_ms ?? (limit && limit.ms * calls);
  return {
    ...row, computes, calls, flops, moved, ms, limitMs,
    family: familyOf(computes),
    bound: timed?.bound ?? limit?.bound ?? null,
    gflops: ms && typeof flops === "number" ? (flops * calls) / ms / 1e6 : null,
    intensity: typeof flops === "number" && typeof moved === "number" && moved > 0 ? flops / moved : null,
  };
}
