// Time by kernel: measured where a bench ran, else the least that the roofline allows, and said to be that.

import { el, table } from "./dom.js";
import { bytes, count, number, percent, seconds } from "./format.js";
import { peakText } from "./peak.js";

const FAMILIES = ["contraction", "attention", "norm", "elementwise", "reduction", "movement"];

export function timesPanel({ rows, peak, measured, total, whole }) {
  const key = measured ? "ms" : "limitMs";
  const known = rows.some((row) => row[key] !== null);
  return el("section", { class: "panel" },
    el("h2", {}, "Time by kernel ", el("span", { class: "tag", "data-kind": measured ? "measured" : "estimate" }, measured ? "measured" : "estimate")),
    el("p", { class: "muted" }, measured ? `Medians of a bench on the server${whole ? `: ${seconds(whole / 1e3)} a run` : ""}. ${peakText(peak)}`
      : `Nothing was measured: these are the least times that the roofline allows. ${peakText(peak)} “Measure it” times each kernel.`),
    known && stacked(rows, key, total),
    table("Time by kernel", columns(key, measured), rows));
}

function columns(key, measured) {
  return [
    { title: "Kernel", cell: (row) => [el("span", { class: "dot", "data-family": row.family }), el("span", { class: "kernel-name" }, row.computes), el("small", { class: "muted mono" }, row.function)] },
    { title: "Calls", number: true, cell: (row) => String(row.calls) },
    { title: measured ? "Time" : "At least", number: true, cell: (row) => (row[key] === null ? "–" : seconds(row[key] / 1e3)) },
    { title: "Share", cell: (row) => bar(row.share, row.family) },
    measured && { title: "Of limit", number: true, cell: (row) => (row.limitMs && row.ms ? percent(row.limitMs / row.ms) : "–") },
    measured && { title: "GFLOP/s", number: true, cell: (row) => number(row.gflops) },
    { title: "Bound by", cell: (row) => row.bound || "–" },
    { title: "FLOPs", number: true, cell: (row) => count(row.flops) },
    { title: "Bytes", number: true, cell: (row) => bytes(row.moved) },
    { title: "Scheduled by", cell: (row) => `${row.rule || "–"}${row.source && row.source !== "rule" ? ` (${row.source})` : ""}` },
  ].filter(Boolean);
}

function bar(share, family) {
  const meter = el("span", { class: "meter" }, el("span", { "data-family": family }));
  meter.firstChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "share" }, meter, percent(share));
}

function stacked(rows, key, total) {
  const sums = FAMILIES.map((family) => [family, rows.reduce((sum, row) => sum + (row.family === family ? row[key] || 0 : 0), 0)]).filter(([, sum]) => sum > 0);
  const parts = sums.map(([family, sum]) => {
    const part = el("span", { "data-family": family, title: `${family}: ${percent(sum / total)}` });
    part.style.width = `${(sum / total) * 100}%`;
    return part;
  });
  return el("div", { class: "families" }, el("div", { class: "stacked", "aria-hidden": "true" }, parts),
    el("ul", { class: "legend" }, sums.map(([family, sum]) => el("li", {}, el("span", { class: "dot", "data-family": family }), `${family} ${percent(sum / total)}`))));
}
