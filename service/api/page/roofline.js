// The roofline: each kernel by its FLOPs a byte and its speed, below what the machine can do.

import { axes, figure, logTicks, scale } from "./axes.js";
import { el, svg } from "./dom.js";
import { count, number, percent } from "./format.js";
import { peakText } from "./peak.js";

/** After Williams, Waterman and Patterson (2009), with a roof for each level of memory. */
export function rooflinePanel({ rows, peak, measured }) {
  const points = rows.filter((row) => row.intensity > 0).map((row) => ({ ...row, speed: speedOf(row, measured) })).filter((row) => row.speed > 0);
  if (!points.length || !peak) {
    return el("section", { class: "panel" }, el("h2", {}, "Roofline"), el("p", { class: "muted" }, peak ? "No kernel's work is known without the sizes of its inputs; “Measure it” fixes them." : peakText(peak)));
  }
  const caption = measured ? `A point is a kernel where a bench found it, its area its share of the time. ${peakText(peak)}`
    : `Nothing was measured: a point is where its kernel could be at best, its area its share of the work. ${peakText(peak)}`;
  return el("section", { class: "panel" },
    el("h2", {}, "Roofline ", el("span", { class: "tag", "data-kind": measured ? "measured" : "estimate" }, measured ? "measured" : "estimate")),
    figure(caption, (width) => draw(points, peak, width)));
}

/** GFLOP/s over one run's calls. */
function speedOf(row, measured) {
  const ms = measured ? row.ms : row.limitMs;
  return ms ? (row.flops * row.calls) / ms / 1e6 : 0;
}

function draw(points, peak, width) {
  const height = Math.round(Math.min(430, Math.max(280, width * 0.55)));
  const box = { left: 62, right: width - 14, top: 14, bottom: height - 46 };
  const roofs = peak.levels.map((level) => ({ ...level, ridge: peak.gflops / level.read_gbps }));
  const xs = [...points.map((row) => row.intensity), ...roofs.map((roof) => roof.ridge)];
  const [low, high] = [Math.min(...xs) / 2, Math.max(...xs) * 3];
  const ys = [...points.map((row) => row.speed), peak.gflops, ...roofs.map((roof) => Math.min(peak.gflops, low * roof.read_gbps))];
  const [bottom, top] = [Math.min(...ys) / 1.5, peak.gflops * 1.8];
  const [x, y] = [scale([low, high], [box.left, box.right], true), scale([bottom, top], [box.bottom, box.top], true)];
  const name = `Roofline of ${points.length} kernels; the table of times has the same numbers.`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, class: "roofline" },
    axes(box, { at: x, ticks: logTicks(low, high), text: number, title: "FLOPs a byte" }, { at: y, ticks: logTicks(bottom, top), text: count, title: "GFLOP/s" }),
    roofLines(roofs, peak, { x, y, low, high, bottom }),
    points.map((row) => point(row, x, y)));
}

function roofLines(roofs, peak, { x, y, low, high, bottom }) {
  const slopes = roofs.map((roof) => {
    const from = Math.max(low, bottom / roof.read_gbps);
    const label = { x: x(from) + 8, y: y(from * roof.read_gbps) - 8 };
    return [svg("line", { class: "roof", x1: x(from), y1: y(from * roof.read_gbps), x2: x(roof.ridge), y2: y(peak.gflops) }),
      svg("text", { ...label, class: "roof-name", transform: slant(x, y, from, roof, label) }, `${roof.name} ${number(roof.read_gbps)} GB/s`)];
  });
  const ridge = Math.min(...roofs.map((roof) => roof.ridge));
  return svg("g", {}, slopes, svg("line", { class: "roof", x1: x(ridge), x2: x(high), y1: y(peak.gflops), y2: y(peak.gflops) }),
    svg("text", { x: x(high), y: y(peak.gflops) - 7, "text-anchor": "end", class: "roof-name" }, `${number(peak.gflops)} GFLOP/s`));
}

/** Along the roof that it names. */
function slant(x, y, from, roof, label) {
  const run = x(from * 10) - x(from);
  const rise = y(from * 10 * roof.read_gbps) - y(from * roof.read_gbps);
  return `rotate(${(Math.atan2(rise, run) * 180) / Math.PI} ${label.x} ${label.y})`;
}

function point(row, x, y) {
  const title = `${row.computes} (${row.function}): ${count(row.speed * 1e9)}FLOP/s at ${number(row.intensity)} FLOPs a byte, ${percent(row.share)} of the time`;
  return svg("circle", { cx: x(row.intensity), cy: y(row.speed), r: 4 + 12 * Math.sqrt(row.share), "data-family": row.family }, svg("title", {}, title));
}
