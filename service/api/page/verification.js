// How far each output is from the reference's, and whether that passes.

import { el, table } from "./dom.js";
import { number, shape } from "./format.js";
import { badge } from "./jobs.js";

export function verificationPanel(verification) {
  if (!verification || typeof verification === "string" || !Array.isArray(verification.outputs)) {
    return el("section", { class: "panel" }, el("h2", {}, "Verification"), el("p", {}, typeof verification === "string" ? verification : "It was not compared."));
  }
  const columns = [
    { title: "Output", cell: (row) => el("code", {}, row.name) },
    { title: "", cell: (row) => badge(row.passed ? "passed" : "failed") },
    { title: "Max abs error", number: true, cell: (row) => number(row.max_abs_error) },
    { title: "Max rel error", number: true, cell: (row) => number(row.max_rel_error) },
    { title: "Scaled error", number: true, cell: (row) => number(row.scaled_error) },
    { title: "Tolerance", number: true, cell: (row) => number(row.tolerance) },
    { title: "Cosine", number: true, cell: (row) => (row.cosine === null ? "–" : cosine(row.cosine)) },
    { title: "Dtype", cell: (row) => row.dtype },
    { title: "Shape", cell: (row) => shape(row.shape) },
    { title: "Compared", number: true, cell: (row) => String(row.compared) },
  ];
  return el("section", { class: "panel" }, el("h2", {}, "Verification ", badge(verification.passed ? "passed" : "failed")),
    el("p", { class: "muted" }, verification.reason || "Every output is the reference's within the tolerance of its dtype; the scaled error is what the tolerance bounds."),
    table("Verification by output", columns, verification.outputs));
}

/** 1 - 3e-9 says more than 0.999999997. */
function cosine(value) {
  const off = 1 - value;
  return off > 0 && off < 1e-3 ? `1 − ${number(off, 2)}` : number(value, 6);
}
