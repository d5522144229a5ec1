// A search as it goes: the best of each task so far against its untuned kernel, and a table of the tasks.

import { get, jobPath } from "./api.js";
import { axes, figure, plot, scale, ticks } from "./axes.js";
import { el, svg, table } from "./dom.js";
import { number, percent, seconds } from "./format.js";

const DRAWN = 6;

/** {node, metric(data), finish(job)}: hidden until the job is known to be a tuning. */
export function tuningPanel() {
  const tasks = new Map();
  const status = el("p", { class: "muted", role: "status" });
  const list = el("div");
  const caption = "Speed-up over the untuned kernel by trials, of the tasks that gained most.";
  const curve = figure(caption, (width) => draw(ranked(tasks).slice(0, DRAWN), width));
  let drawing = 0;

  function metric(data) {
    const task = tasks.get(data.task) || { points: [] };
    tasks.set(data.task, Object.assign(task, data));
    if (data.best_s && data.untuned_s) task.points.push([data.trials, data.untuned_s / data.best_s]);
    const left = typeof data.eta_s === "number" ? `at most ${seconds(data.eta_s)} left` : "";
    status.textContent = data.loud ? `${left} · other work disturbs the clock` : left;
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(show);
  }
  function show() {
    curve.redraw();
    list.replaceChildren(taskTable(ranked(tasks)));
  }
  async function finish(job, signal) {
    status.textContent = "";
    const report = await get(`${jobPath(job.id)}/report`, { signal });
    for (const [at, row] of (report.tasks || []).entries()) takeReport(tasks, row, at);
    if (tasks.size) show();
  }

  const node = el("section", { class: "panel", hidden: true }, el("h2", {}, "Tuning"), status, curve, list);
  return { node, metric, finish };
}

/** A row of the report has the whole curve: (trials, seconds into the run, best seconds). */
function takeReport(tasks, row, at) {
  const task = Object.assign(tasks.get(at) || { points: [] }, row);
  if (Array.isArray(row.curve) && row.curve.length) {
    const first = row.curve[0][2]; // `untuned_s` was timed again at the end, when the machine may have been another
    task.points = row.curve.map(([trials, , best]) => [trials, first / best]);
    task.points.push([row.trials, task.points.at(-1)[1]]);
  }
  tasks.set(at, task);
}

const gainOf = (task) => (task.best_s && task.untuned_s ? task.untuned_s / task.best_s : 1);

function ranked(tasks) {
  return [...tasks.values()].sort((one, other) => gainOf(other) - gainOf(one));
}

function taskTable(rows) {
  const swatch = (row) => el("span", { class: "swatch", "data-line": Math.min(rows.indexOf(row), DRAWN) });
  const numbers = (title, cell) => ({ title, number: true, cell });
  return table("Tasks", [
    { title: "Kernel", cell: (row) => [swatch(row), el("code", {}, row.name)] },
    numbers("Trials", (row) => String(row.trials)),
    numbers("Failed", (row) => String(row.failed ?? 0)),
    numbers("Untuned", (row) => seconds(row.untuned_s)),
    numbers("Best", (row) => seconds(row.best_s)),
    numbers("Speed-up", (row) => `${number(gainOf(row))}×`),
    numbers("Of roofline", (row) => percent(row.roofline)),
    { title: "", cell: (row) => row.done || "" },
  ], rows);
}

function draw(tasks, width) {
  const height = Math.round(Math.min(320, Math.max(220, width * 0.42)));
  const box = { left: 52, right: width - 14, top: 12, bottom: height - 46 };
  const points = tasks.flatMap((task) => task.points);
  const last = Math.max(8, ...points.map(([trials]) => trials));
  const top = Math.max(1.1, ...points.map(([, gain]) => gain * 1.05));
  const low = Math.min(0.95, ...points.map(([, gain]) => gain * 0.98));
  const x = scale([0, last], [box.left, box.right]);
  const y = scale([low, top], [box.bottom, box.top]);
  const line = (task, at) => svg("path", { class: "line", "data-line": at, d: steps(task.points, x, y) },
    svg("title", {}, `${task.name}: ${number(gainOf(task))} times as fast`));
  return plot(width, height, "Tuning curve; the table of tasks has the same numbers.",
    axes(box,
      { at: x, ticks: ticks(0, last, Math.max(3, width / 110)), text: number, title: "Trials of the task" },
      { at: y, ticks: ticks(low, top), text: (tick) => `${number(tick)}×`, title: "Speed-up" }),
    tasks.map(line));
}

/** A best stays until a better one. */
function steps(points, x, y) {
  if (!points.length) return "";
  const [[first, gain], ...rest] = points;
  return `M${x(first)} ${y(gain)}${rest.map(([trials, better]) => `H${x(trials)}V${y(better)}`).join("")}`;
}
