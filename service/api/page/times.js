// Time by kernel: measured where a bench ran, else the least that the roofline allows, and said to be that.

import { el, note, panel, table } from "./dom.js";
import { bytes, count, number, percent, seconds } from "./format.js";
import { peakText } from "./peak.js";

const FAMILIES = ["contraction", "attention", "norm", "elementwise", "reduction", "movement"];

/** Says whether numbers are of a clock. */
export function origin(measured) {
  return measured
    ? el("span", { class: "tag", "data-kind": "measured" }, "measured")
    : el("span", { class: "tag", "data-kind": "estimate" }, "estimate");
}

export function timesPanel({ rows, peak, measured, total }) {
  const time = measured ? (row) => row.ms : (row) => row.limitMs;
  const known = rows.some((row) => time(row) > 0);
  return panel(["Time by kernel ", origin(measured)],
    measured
      ? note(`Medians of a bench on the server. ${peakText(peak)}`)
      : note(`Nothing was measured: these are the least times that the roofline allows. ${peakText(peak)} `,
        "“Measure it” times each kernel."),
    known && families(rows, time, total),
    table("Time by kernel", columns(rows, time, measured), rows));
}

function columns(rows, time, measured) {
  const numbers = (title, cell) => ({ title, number: true, cell });
  const text = (title, cell) => ({ title, cell });
  return [
    text("Kernel", kernelCell),
    numbers("Calls", (row) => String(row.calls)),
    numbers(measured ? "Time" : "At least", (row) => seconds(time(row) === null ? null : time(row) / 1e3)),
    text("Share", (row) => bar(row.share, row.family)),
    measured && numbers("Of limit", (row) => percent(row.limitMs && row.ms ? row.limitMs / row.ms : null)),
    measured && numbers("GFLOP/s", (row) => number(row.gflops)),
    text("Bound by", (row) => row.bound || "–"),
    numbers("FLOPs", (row) => count(row.flops)),
    numbers("Bytes", (row) => bytes(row.moved)),
    rows.some((row) => row.instruction) && text("Multiplies by", (row) => instruction(row.instruction)),
    text("Scheduled by", (row) => [row.rule || "–", row.source && row.source !== "rule" && ` (${row.source})`]),
  ].filter(Boolean);
}

/** `llvm.x86.avx512.vpdpbusd.512` is vpdpbusd, `wgmma.mma_async.sync.aligned.m64n64k16.f32…` wgmma m64n64k16. */
function instruction(name) {
  if (!name) return "–";
  const [, kind, shape] = name.match(/^(wgmma|mma)\..*?\.(m\d+n\d+k\d+)/) || [];
  const short = kind ? `${kind} ${shape}` : name.split(".").find((part) => /dp|mmla|dot|pmadd/.test(part)) || name;
  return el("span", { class: "mono", title: name }, short);
}

function dot(family) {
  return el("span", { class: "dot", "data-family": family });
}

function kernelCell(row) {
  const name = el("span", { class: "kernel-name" }, row.computes);
  const nodes = (row.nodes || []).slice(0, 3).join(", ");
  return [dot(row.family), name, el("small", { class: "mono", title: nodes || row.function }, nodes || row.function)];
}

/** A bar that is `share` of its room: its width is set through the CSSOM, for the policy forbids styles in markup. */
export function meter(share, family) {
  const filled = el("span", { "data-family": family });
  filled.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return el("span", { class: "meter" }, filled);
}

function bar(share, family) {
  return el("span", { class: "share" }, meter(share, family), percent(share));
}

function families(rows, time, total) {
  const sumOf = (family) => rows.reduce((sum, row) => sum + (row.family === family ? time(row) || 0 : 0), 0);
  const sums = FAMILIES.map((family) => [family, sumOf(family) / total]).filter(([, share]) => share > 0);
  const parts = sums.map(([family, share]) => {
    const part = el("span", { "data-family": family });
    part.style.width = `${share * 100}%`;
    return part;
  });
  const named = ([family, share]) => el("li", {}, dot(family), `${family} ${percent(share)}`);
  return el("div", { class: "families" },
    el("div", { class: "stacked", "aria-hidden": "true" }, parts),
    el("ul", { class: "legend" }, sums.map(named)));
}
