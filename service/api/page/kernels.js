// The fused graph: kernels in the order in which they run, and lines from each to those that read its value.

import { el, note, panel, svg } from "./dom.js";
import { bytes, flops, shape } from "./format.js";
import { inspector } from "./inspector.js";
import { assignLanes } from "./lanes.js";
import { meter } from "./times.js";
import { familyOf } from "./work.js";

const ROW = 40;
const LANE = 14;
const MOST_LANES = 14;
const MOST_ROWS = 1500;

/** Rows of inputs, kernels and outputs; `reads` are the rows whose values one takes. */
function nodesOf(manifest, work) {
  const { inputs, outputs } = manifest.signature;
  const { calls, results, inputs: taken } = manifest.passes.graph;
  const known = new Map(work.rows.map((row) => [row.function, row]));
  const unknown = (name) => ({ function: name, computes: name, family: familyOf(name) });
  const tensor = (kind, list, at) => ({ kind, tensor: list[at] || { name: `${kind} ${at}` } });
  return [
    ...Array.from({ length: taken }, (_, at) => ({ ...tensor("input", inputs, at), reads: [] })),
    ...calls.map(([name, reads]) => ({ kind: "kernel", row: known.get(name) || unknown(name), reads })),
    ...results.map((reads, at) => ({ ...tensor("output", outputs, at), reads })),
  ];
}

export function kernelPanel(manifest, work) {
  if (!manifest.passes.graph?.calls) return fusionList(manifest.passes.fusions || {});
  const all = nodesOf(manifest, work);
  const nodes = all.slice(0, MOST_ROWS);
  const about = el("div", { class: "inspector", role: "region", "aria-label": "The chosen kernel", tabindex: "0" });
  const rows = nodes.map((node, at) => rowOf(node, () => choose(at)));
  let chosen = 0;

  function show(at) {
    rows[chosen].firstChild.tabIndex = -1;
    rows[chosen].firstChild.removeAttribute("aria-current");
    chosen = at;
    rows[at].firstChild.tabIndex = 0;
    rows[at].firstChild.setAttribute("aria-current", "true");
    about.replaceChildren(inspector(nodes[at], nodes));
  }
  function choose(at) {
    show(at);
    rows[at].firstChild.focus();
  }
  function move(event) {
    const at = rows.findIndex((row) => row.contains(event.target));
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -rows.length, End: rows.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(rows.length - 1, at + steps[event.key])));
  }

  if (rows.length) show(heaviest(nodes));
  const label = "Kernels in the order in which they run";
  const list = el("ol", { class: "kernels", keydown: move, "aria-label": label }, rows);
  return panel("Fused graph",
    note(`${label}; lines go from a value to what reads it. Arrow keys move.`),
    el("div", { class: "graph" }, el("div", { class: "graph-scroll" }, gutter(nodes), list), about),
    all.length > nodes.length && note(`and ${all.length - nodes.length} more`));
}

function heaviest(nodes) {
  const shares = nodes.map(({ row }) => row?.share || 0);
  return shares.indexOf(Math.max(...shares));
}

/** For artifacts of an older relaxc, whose manifest has no graph. */
function fusionList(fusions) {
  const item = ([name, times]) => el("li", {}, chips(name), ` × ${times}`);
  return panel("Kernels", el("ul", { class: "fusions" }, Object.entries(fusions).map(item)));
}

function chips(computes) {
  const family = familyOf(computes);
  const chip = (name, at) => el("span", { class: "chip", "data-family": at ? null : family }, name);
  return computes.split(" + ").map(chip);
}

function rowOf(node, press) {
  const { kind, tensor, row } = node;
  const what = tensor ? [el("span", { class: "chip tensor" }, kind), el("code", {}, tensor.name)] : chips(row.computes);
  const amount = tensor
    ? `${tensor.dtype || ""} ${shape(tensor.shape)}`
    : row.flops ? flops(row.flops) : bytes(row.moved);
  return el("li", { class: kind }, el("button", { type: "button", tabindex: "-1", click: press },
    el("span", { class: "what" }, what), el("span", { class: "muted amount" }, amount),
    row && meter(row.share, row.family)));
}

function gutter(nodes) {
  const { lanes, width } = assignLanes(nodes.map(({ reads }) => reads));
  const x = (at) => 10 + Math.min(lanes[at], MOST_LANES - 1) * LANE;
  const y = (at) => at * ROW + ROW / 2;
  const edges = nodes.flatMap(({ reads }, at) => reads.map((from) => edge(x(from), y(from), x(at), y(at))));
  const dots = nodes.map(({ kind, row }, at) =>
    svg("circle", { cx: x(at), cy: y(at), r: row ? 5 : 4, class: kind, "data-family": row?.family }));
  const wide = 8 + Math.min(width, MOST_LANES) * LANE;
  return svg("svg", { class: "gutter", width: wide, height: nodes.length * ROW, "aria-hidden": "true" }, edges, dots);
}

/** Down the lane of the value, then over to its reader within the last row. */
function edge(x1, y1, x2, y2) {
  const turn = y2 - ROW;
  const over = `V${turn}C${x1} ${turn + ROW * 0.6} ${x2} ${turn + ROW * 0.4} ${x2} ${y2}`;
  return svg("path", { d: `M${x1} ${y1}${x1 === x2 ? `V${y2}` : over}`, class: "edge" });
}
