// All that is known of one row of the graph.

import { el, facts } from "./dom.js";
import { bytes, count, percent, seconds, shape } from "./format.js";

/** The details of `node`; `nodes` give the names of what it reads. */
export function inspector(node, nodes) {
  const nameOf = (at) => nodes[at].row?.computes || nodes[at].tensor?.name;
  const reads = node.reads.map(nameOf).join(", ");
  return node.kind === "kernel" ? kernel(node.row, reads) : tensor(node, reads);
}

function tensor({ kind, tensor: { name, dtype, shape: dims } }, reads) {
  return el("div", {}, el("h3", {}, name),
    facts([["Is", kind], ["Dtype", dtype], ["Shape", shape(dims)], ["From", reads]]));
}

function kernel(row, reads) {
  const parameters = Object.entries(row.parameters || {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const mono = (text) => text && el("code", {}, text);
  return el("div", {}, el("h3", {}, row.computes),
    facts([
      ["Nodes", mono((row.nodes || []).join(", "))],
      ["PrimFunc", mono(row.function)],
      ["Reads", reads],
      ["FLOPs", count(row.flops)],
      ["Bytes", bytes(row.moved)],
      timing(row),
      ["Share", percent(row.share)],
      ["Bound by", row.bound],
      ["Rule", row.rule && `${row.rule} version ${row.version}`],
      ["Chosen by", row.source],
      ["Parameters", mono(parameters)],
      ["Workload", mono(row.workload)],
    ]),
    declined(row.declined || []));
}

function timing({ ms, limitMs, calls }) {
  if (typeof ms === "number") return ["Takes", `${seconds(ms / 1e3)} in ${calls} ${calls === 1 ? "call" : "calls"}`];
  return ["Takes at least", typeof limitMs === "number" && `${seconds(limitMs / 1e3)}, an estimate`];
}

function declined(rules) {
  if (!rules.length) return null;
  const item = ([rule, why]) => el("li", {}, el("code", {}, rule), `: ${why}`);
  const title = rules.length === 1 ? "1 rule declined" : `${rules.length} rules declined`;
  return el("details", {}, el("summary", {}, title), el("ul", { class: "declined" }, rules.map(item)));
}
