// How far each output is from the reference's, and whether that passes.

import { el, note, panel, table } from "./dom.js";
import { number, shape } from "./format.js";
import { badge } from "./jobs.js";

const EXPLAINED = "Outputs are the reference's within the tolerance of their dtype, which bounds the scaled error.";

/** `verification` is a manifest's: a report, or a sentence that says why there is none. */
export function verificationPanel(verification) {
  if (!Array.isArray(verification?.outputs)) return panel("Verification", note(String(verification || "not verified")));
  const verdict = badge(verification.passed ? "passed" : "failed");
  const weak = (verification.weak || []).map((reason) => note(`Weak check: ${reason}.`));
  return panel(["Verification ", verdict], note(verification.reason || EXPLAINED), ...weak,
    table("Verification by output", COLUMNS, verification.outputs));
}

const measured = (title, name) => ({ title, number: true, cell: (row) => number(row[name]) });

const COLUMNS = [
  { title: "Output", cell: (row) => el("code", {}, row.name) },
  { title: "", cell: (row) => badge(row.passed ? "passed" : "failed") },
  measured("Max abs error", "max_abs_error"),
  measured("Max rel error", "max_rel_error"),
  measured("Scaled error", "scaled_error"),
  measured("Tolerance", "tolerance"),
  { title: "Cosine", number: true, cell: (row) => cosine(row.cosine) },
  { title: "Dtype", cell: (row) => row.dtype },
  { title: "Shape", cell: (row) => shape(row.shape) },
  { title: "Compared", number: true, cell: (row) => String(row.compared) },
];

/** 1 − 3e-9 says more than 0.999999997. */
function cosine(value) {
  const off = 1 - value;
  return value !== null && off > 0 && off < 1e-3 ? `1 − ${number(off, 2)}` : number(value, 6);
}
