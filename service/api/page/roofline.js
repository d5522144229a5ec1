// The roofline: each kernel by its FLOPs a byte and its speed, below what the machine can do.

import { axes, figure, logTicks, plot, scale } from "./axes.js";
import { note, panel, svg } from "./dom.js";
import { count, flops, number, percent } from "./format.js";
import { peakText } from "./peak.js";
import { origin } from "./times.js";

/** After Williams, Waterman and Patterson (2009), with a roof for each level of memory. */
export function rooflinePanel({ rows, peak, measured }) {
  if (!peak) return panel("Roofline", note(peakText(peak)));
  const points = rows.map((row) => ({ ...row, speed: speedOf(row, measured) }))
    .filter((row) => row.intensity > 0 && row.speed > 0);
  if (!points.length) {
    return panel("Roofline", note("The work of kernels depends on the sizes of inputs; “Measure it” fixes them."));
  }
  const what = measured ? "A point is a kernel as it was measured" : "A point is where a kernel could be at best";
  const caption = `${what}; its area is its share of the time. ${peakText(peak)}`;
  return panel(["Roofline ", origin(measured)], figure(caption, (width) => draw(points, peak, width)));
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
  const lowest = roofs.map((roof) => Math.min(peak.gflops, low * roof.read_gbps));
  const [bottom, top] = [Math.min(...points.map((row) => row.speed), ...lowest) / 1.5, peak.gflops * 2.5];
  const x = scale([low, high], [box.left, box.right], true);
  const y = scale([bottom, top], [box.bottom, box.top], true);
  return plot(width, height, `Roofline of ${points.length} kernels; the table of times has the same numbers.`,
    axes(box,
      { at: x, ticks: logTicks(low, high), text: number, title: "FLOPs a byte" },
      { at: y, ticks: logTicks(bottom, top), text: count, title: "GFLOP/s" }),
    roofs.map((roof) => slope(roof, peak, x, y, low)),
    flat(roofs, peak, x, y, high),
    svg("g", { class: "points" }, points.map((row) => point(row, x, y))));
}

/** A level's roof up to the peak, and its name along it. */
function slope(roof, peak, x, y, low) {
  const [x1, y1] = [x(low), y(low * roof.read_gbps)];
  const [x2, y2] = [x(roof.ridge), y(peak.gflops)];
  if (x2 <= x1) return null;
  const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  const turn = `translate(${x1} ${y1}) rotate(${angle}) translate(12 -6)`;
  return [
    svg("line", { class: "roof", x1, y1, x2, y2 }),
    svg("text", { class: "roof-name", transform: turn }, `${roof.name} ${number(roof.read_gbps)} GB/s`),
  ];
}

function flat(roofs, peak, x, y, high) {
  const from = x(Math.min(...roofs.map((roof) => roof.ridge)));
  const level = y(peak.gflops);
  const name = { class: "roof-name", x: x(high), y: level - 20, "text-anchor": "end" };
  return [
    svg("line", { class: "roof", x1: from, y1: level, x2: x(high), y2: level }),
    svg("text", name, `${number(peak.gflops)} GFLOP/s`),
  ];
}

function point(row, x, y) {
  const where = `${flops(row.speed * 1e9)}/s at ${number(row.intensity)} FLOPs a byte`;
  const title = `${row.computes} (${row.function}): ${where}, ${percent(row.share)} of the time`;
  const at = { cx: x(row.intensity), cy: y(row.speed), r: 4 + 12 * Math.sqrt(row.share) };
  return svg("circle", { ...at, "data-family": row.family }, svg("title", {}, title));
}
