// One job: its state, stages, log and numbers as they come, and what came of it.

import { starting } from "./again.js";
import { call, get, jobPath, remove } from "./api.js";
import { announce, button, el, facts } from "./dom.js";
import { events } from "./events.js";
import { clock, elapsed, short } from "./format.js";
import { badge, isLive, targetText } from "./jobs.js";
import { logPanel } from "./log.js";
import { problemPanel } from "./problem.js";
import { resultOf } from "./results.js";
import { stageStrip } from "./stages.js";
import { tuningPanel } from "./tuning.js";

export function jobView(signal, id) {
  const title = el("h1", { tabindex: "-1" }, "Job");
  const state = el("span");
  const about = el("div");
  const took = el("span");
  const actions = el("div", { class: "actions" });
  const trouble = el("div");
  const outcome = el("div", { class: "outcome" });
  const stages = stageStrip();
  const log = logPanel(() => call(`${jobPath(id)}/logs`).then((response) => response.text()));
  const tuning = tuningPanel();
  let job = null;

  const cancel = button("Cancel", stop, "danger");

  function update(now) {
    const before = job?.state;
    job = now;
    title.textContent = job.name || job.id;
    document.title = `${job.state}: ${title.textContent} · relaxc`;
    if (job.kind === "tune") tuning.node.hidden = false;
    stages.job(job);
    tick();
    if (before === job.state) return; // what has the focus stays
    state.replaceChildren(badge(job.state));
    about.replaceChildren(factsOf(job, took));
    actions.replaceChildren(isLive(job) ? cancel : starting("Run again", requestOf(job), trouble));
    announce(`${title.textContent} is ${job.state}`);
    if (!isLive(job) && (!before || isLive({ state: before }))) ended();
  }
  function tick() {
    took.textContent = elapsed(job.started || job.created, job.finished);
  }
  async function ended() {
    if (job.error) trouble.replaceChildren(problemPanel(job.error));
    if (job.state !== "succeeded") return;
    try {
      const made = await resultOf(job, signal);
      outcome.replaceChildren(made);
      if (job.kind === "tune") await tuning.finish(job, signal);
    } catch (problem) {
      if (!signal.aborted) outcome.replaceChildren(problemPanel(problem));
    }
  }
  async function stop() {
    cancel.disabled = true;
    try {
      update(await remove(jobPath(id)));
      title.focus();
    } catch (problem) {
      if (problem.code !== "job-ended") trouble.replaceChildren(problemPanel(problem));
    } finally {
      cancel.disabled = false;
    }
  }
  async function follow() {
    update(await get(jobPath(id), { signal }));
    for await (const { event, data } of events(`${jobPath(id)}/events`, signal)) {
      if (signal.aborted) return;
      if (event === "stage" || event === "progress") stages.event(event, data);
      if (event === "log") log.add(data);
      if (event === "metric") tuning.metric(data);
      if (event === "state") refresh();
      if (event === "done") update(data.job || data);
    }
  }
  async function refresh() {
    if (!signal.aborted) update(await get(jobPath(id), { signal }).catch(() => job));
  }

  const ticking = setInterval(() => job && isLive(job) && tick(), 1000);
  signal.addEventListener("abort", () => clearInterval(ticking));
  follow().catch((problem) => signal.aborted || trouble.replaceChildren(problemPanel(problem)));
  return el("article", { class: "job" },
    el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Jobs"), " / "),
    el("section", { class: "panel" },
      el("div", { class: "bar" }, title, state, el("span", { class: "spacer" }), actions), about, stages.node),
    trouble, tuning.node, outcome, log.node);
}

function factsOf(job, took) {
  return facts([
    ["Kind", job.kind],
    ["Target", targetText(job)],
    ["Options", optionsText(job)],
    ["Model", job.model && el("code", { title: job.model }, short(job.model))],
    ["Artifact", job.artifact && el("a", { href: `#/artifacts/${job.artifact}` }, short(job.artifact))],
    ["Created", clock(job.created)],
    ["Took", took],
    ["Waits for a worker with", job.missing.join(", ")],
    ["Attempts", job.attempts > 1 && String(job.attempts)],
    ["Job", el("code", {}, job.id)],
  ]);
}

const takesOptions = (kind) => kind === "compile" || kind === "tune";

function optionsText({ kind, options = {} }) {
  if (!takesOptions(kind)) return "";
  const shapes = Object.entries(options.shapes || {}).map(([name, dims]) => `${name}=${dims.join(",")}`);
  return [options.precision, `-O${options.opt_level}`, options.verify || "unverified", ...shapes]
    .filter((each) => typeof each === "string" && each).join(" ");
}

/** What asks for the same again. */
function requestOf({ kind, model, target, options, artifact }) {
  if (takesOptions(kind)) return { kind, model, target, options };
  return kind === "bench" ? { kind, artifact } : { kind, model, artifact };
}
