// The fused graph: kernels in the order in which they run, and lines from each to those that read its value.

import { el, facts, svg } from "./dom.js";
import { bytes, count, percent, seconds, shape } from "./format.js";
import { assignLanes } from "./lanes.js";
import { familyOf } from "./work.js";

const ROW = 40;
const LANE = 14;
const MOST_LANES = 14;
const MOST_ROWS = 1500;

/** Rows of inputs, kernels and outputs; an output reads what it comes from. */
function nodesOf(manifest, work) {
  const { inputs, outputs } = manifest.signature;
  const { calls, results, inputs: taken } = manifest.passes.graph;
  const known = new Map(work.rows.map((row) => [row.function, row]));
  const tensors = Array.from({ length: taken }, (_, at) => ({ kind: "input", tensor: inputs[at] || { name: `input ${at}` }, reads: [] }));
  const kernels = calls.map(([name, reads]) => ({ kind: "kernel", row: known.get(name) || { function: name, computes: name, family: familyOf(name) }, reads }));
  const ends = results.map((reads, at) => ({ kind: "output", tensor: outputs[at] || { name: `output ${at}` }, reads }));
  return [...tensors, ...kernels, ...ends];
}

export function kernelPanel(manifest, work) {
  if (!manifest.passes.graph?.calls) return fusionList(manifest.passes.fusions || {});
  const all = nodesOf(manifest, work);
  const nodes = all.slice(0, MOST_ROWS);
  const about = el("div", { class: "inspector", "aria-live": "polite" }, el("p", { class: "muted" }, "Choose a kernel to see how it is scheduled."));
  const rows = nodes.map((node, at) => rowOf(node, at, choose));

  function choose(at, focus) {
    const now = Math.max(0, Math.min(rows.length - 1, at));
    for (const [index, row] of rows.entries()) {
      row.firstChild.tabIndex = index === now ? 0 : -1;
      row.firstChild.toggleAttribute("aria-current", index === now);
    }
    if (focus) rows[now].firstChild.focus();
    about.replaceChildren(inspector(nodes[now], nodes));
  }
  function keys(event) {
    const at = rows.findIndex((row) => row.contains(event.target));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to, true);
  }
  rows[0].firstChild.tabIndex = 0;
  const list = el("ol", { class: "kernels", keydown: keys, "aria-label": "Kernels in the order in which they run" }, rows);
  return el("section", { class: "panel" }, el("h2", {}, "Fused graph"),
    el("p", { class: "muted" }, `${manifest.passes.kernel_calls} kernels in the order in which they run; lines go from a value to what reads it. Arrow keys move.`),
    el("div", { class: "graph" }, el("div", { class: "graph-scroll" }, gutter(nodes), list), about),
    all.length > nodes.length && el("p", { class: "muted" }, `and ${all.length - nodes.length} more`));
}

/** For artifacts of an older relaxc, whose manifest has no graph. */
function fusionList(fusions) {
  return el("section", { class: "panel" }, el("h2", {}, "Kernels"), el("ul", { class: "fusions" },
    Object.entries(fusions).map(([name, times]) => el("li", {}, chips(name), el("span", { class: "muted" }, ` × ${times}`)))));
}

function chips(computes) {
  return computes.split(" + ").map((name, at) => el("span", { class: "chip", "data-family": at === 0 ? familyOf(computes) : null }, name));
}

function rowOf(node, at, choose) {
  const press = () => choose(at, false);
  if (node.kind !== "kernel") {
    return el("li", { class: node.kind }, el("button", { type: "button", tabindex: "-1", click: press },
      el("span", { class: "what" }, el("span", { class: "chip tensor" }, node.kind), el("code", {}, node.tensor.name)),
      el("span", { class: "muted amount" }, `${node.tensor.dtype || ""} ${shape(node.tensor.shape)}`)));
  }
  const share = el("span", { class: "meter" }, el("span", { "data-family": node.row.family }));
  share.firstChild.style.width = `${(node.row.share || 0) * 100}%`;
  return el("li", {}, el("button", { type: "button", tabindex: "-1", click: press },
    el("span", { class: "what" }, chips(node.row.computes)),
    el("span", { class: "muted amount" }, node.row.flops ? `${count(node.row.flops)}FLOP` : bytes(node.row.moved)), share));
}

function gutter(nodes) {
  const { lanes, width } = assignLanes(nodes.map(({ reads }) => reads));
  const x = (at) => 10 + Math.min(lanes[at], MOST_LANES - 1) * LANE;
  const y = (at) => at * ROW + ROW / 2;
  const edges = nodes.flatMap(({ reads }, at) => reads.map((from) => edge(x(from), y(from), x(at), y(at))));
  const dots = nodes.map(({ kind, row }, at) => svg("circle", { cx: x(at), cy: y(at), r: kind === "kernel" ? 5 : 4, class: kind, "data-family": row?.family }));
  const wide = 20 + Math.min(width, MOST_LANES) * LANE;
  return svg("svg", { class: "gutter", width: wide, height: nodes.length * ROW, "aria-hidden": "true" }, edges, dots);
}

/** Down the lane of the value, then over to its reader within the last row. */
function edge(x1, y1, x2, y2) {
  const turn = y2 - ROW;
  const over = x1 === x2 ? `V${y2}` : `V${turn}C${x1} ${turn + ROW * 0.6} ${x2} ${turn + ROW * 0.4} ${x2} ${y2}`;
  return svg("path", { d: `M${x1} ${y1}${over}`, class: "edge" });
}

function inspector(node, nodes) {
  const nameOf = (at) => nodes[at].row?.computes || nodes[at].tensor?.name;
  const reads = node.reads.map(nameOf).join(", ");
  if (node.kind !== "kernel") return el("div", {}, el("h3", {}, node.tensor.name), facts([["Is", node.kind], ["Dtype", node.tensor.dtype], ["Shape", shape(node.tensor.shape)], ["From", reads]]));
  const { row } = node;
  const parameters = Object.entries(row.parameters || {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const declined = (row.declined || []).map(([rule, why]) => el("li", {}, el("code", {}, rule), `: ${why}`));
  return el("div", {}, el("h3", {}, row.computes), facts([
    ["PrimFunc", el("code", {}, row.function)], ["Reads", reads],
    ["FLOPs", count(row.flops)], ["Bytes", bytes(row.moved)],
    [row.ms === null ? "At least" : "Takes", row.ms === null ? row.limitMs && `${seconds(row.limitMs / 1e3)} (estimate)` : `${seconds(row.ms / 1e3)} in ${row.calls} calls`], ["Share", percent(row.share)], ["Bound by", row.bound],
    ["Rule", row.rule && `${row.rule} version ${row.version}`], ["From", row.source], ["Parameters", parameters && el("code", {}, parameters)], ["Workload", row.workload && el("code", {}, row.workload)],
  ]), declined.length > 0 && el("details", {}, el("summary", {}, `${declined.length} rules declined`), el("ul", { class: "declined" }, declined)));
}
