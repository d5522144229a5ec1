// Inputs and outputs: names, dtypes, shapes, and the bounds of what is open in them.

import { el, facts, panel, table } from "./dom.js";
import { shape } from "./format.js";

const COLUMNS = [
  { title: "", cell: (row) => row.way },
  { title: "Name", cell: (row) => el("code", {}, row.name) },
  { title: "Dtype", cell: (row) => row.codes || row.dtype },
  { title: "Shape", cell: (row) => shape(row.shape) },
];

export function signaturePanel({ inputs, outputs, dims = {}, constants = {} }) {
  const rows = [...inputs.map((row) => ({ way: "in", ...row })), ...outputs.map((row) => ({ way: "out", ...row }))];
  const bounds = Object.entries(dims).map(([name, [low, high]]) => [name, `${low} to ${high ?? "any"}`]);
  const fixed = Object.entries(constants).map(([name, value]) => [name, JSON.stringify(value)]);
  const more = [...bounds, ...fixed];
  return panel("Signature", table("Signature", COLUMNS, rows), more.length > 0 && facts(more));
}
