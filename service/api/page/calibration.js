// How far a model in int8 is from the one in floats: its outputs, and what each layer alone adds.

import { el, note, panel, table } from "./dom.js";
import { number } from "./format.js";

/** `calibration` is what a manifest's passes tell of it; nothing is shown where there was none. */
export function calibrationPanel(calibration) {
  if (!Array.isArray(calibration?.layers) || !Array.isArray(calibration.outputs)) return [];
  const { layers, outputs, method, samples } = calibration;
  const int8 = layers.filter((row) => row.precision === "int8").length;
  const told = `${int8} of ${layers.length} layers in int8, by ${method} over ${samples} samples, beside floats`;
  const costly = layers.toSorted((a, b) => (b.error ?? 0) - (a.error ?? 0));
  return [panel("Calibration", note(told),
    table("Calibrated outputs", [name("Output"), ...MEASURED, worst], outputs),
    table("Calibrated layers", [name("Layer"), ...LAYER, ...MEASURED.slice(0, 2)], costly))];
}

const name = (title) => ({ title, cell: (row) => el("code", {}, row.name) });
const worst = { title: "Worst layer", cell: (row) => el("code", {}, row.worst_layer ?? "") };
const measured = (title, field, digits) => ({ title, number: true, cell: (row) => number(row[field], digits) });

const MEASURED = [measured("Error (rms)", "error"), measured("SQNR, dB", "sqnr_db"), measured("Cosine", "cosine", 6)];
const LAYER = [
  { title: "Operator", cell: (row) => row.operator },
  { title: "Precision", cell: (row) => row.precision },
  { title: "Why", cell: (row) => row.why },
];
