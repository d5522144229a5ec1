// The list of jobs: a page at a time, filtered, with states that follow the server's.

import { get } from "./api.js";
import { button, el, table } from "./dom.js";
import { clock, elapsed, percent } from "./format.js";
import { problemPanel } from "./problem.js";

const PAGE = 25;
const LIVE_MS = 1_000;
const IDLE_MS = 5_000;
const STATES = ["queued", "running", "succeeded", "failed", "cancelled"];
const KINDS = ["compile", "tune", "bench", "verify"];

export const isLive = (job) => job.state === "queued" || job.state === "running";

/** A state as a word in its colour. */
export function badge(state) {
  return el("span", { class: "badge", "data-state": state }, state);
}

/** The panel with the list; it asks again until `signal` says that nobody looks. */
export function jobList(signal) {
  const filter = { state: "", kind: "" };
  let cursors = [""];
  let timer = 0;
  const body = el("div", { class: "jobs", "aria-busy": "true" });
  const newer = button("Newer", () => turn(() => cursors.pop()));
  const older = button("Older", () => turn(() => cursors.push(older.dataset.cursor)));

  function turn(change) {
    change();
    refresh();
  }
  async function refresh() {
    clearTimeout(timer);
    if (signal.aborted) return;
    let live = false;
    try {
      if (!document.hidden) live = await load();
    } catch (problem) {
      if (!signal.aborted) body.replaceChildren(problemPanel(problem));
      if (problem.status === 401) return; // a key shows the page anew
    }
    clearTimeout(timer);
    timer = setTimeout(refresh, live ? LIVE_MS : IDLE_MS);
  }
  async function load() {
    const query = new URLSearchParams({ limit: PAGE });
    const wanted = { ...filter, cursor: cursors.at(-1) };
    for (const [name, value] of Object.entries(wanted)) if (value) query.set(name, value);
    const { jobs, next } = await get(`/v1/jobs?${query}`, { signal });
    if (signal.aborted) return false;
    render(jobs);
    newer.disabled = cursors.length < 2;
    older.disabled = !next;
    older.dataset.cursor = next || "";
    return jobs.some(isLive);
  }
  function render(jobs) {
    const held = document.activeElement?.closest?.(".jobs a")?.getAttribute("href");
    body.removeAttribute("aria-busy");
    body.replaceChildren(jobs.length ? rowsOf(jobs) : el("p", { class: "empty" }, empty(filter)));
    const links = held ? [...body.querySelectorAll("a")] : [];
    links.find((link) => link.getAttribute("href") === held)?.focus({ preventScroll: true });
  }
  function choice(name, label, values) {
    const change = ({ target }) => turn(() => { filter[name] = target.value; cursors = [""]; });
    const id = `filter-${name}`;
    const options = ["", ...values].map((value) => el("option", { value }, value || "all"));
    return el("span", { class: "filter" }, el("label", { for: id }, label), el("select", { change, id }, options));
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  [newer.disabled, older.disabled] = [true, true];
  refresh();
  return el("section", { class: "panel", "aria-labelledby": "jobs-title" },
    el("div", { class: "bar" }, el("h2", { id: "jobs-title" }, "Jobs"), el("span", { class: "spacer" }),
      choice("kind", "Kind", KINDS), choice("state", "State", STATES)),
    body,
    el("div", { class: "bar paging" }, newer, older));
}

function empty({ state, kind }) {
  return state || kind ? "No job is like that." : "No job yet. Choose a model and compile it: the result will be here.";
}

/** What was asked for, and the machine that it meant where that has another name. */
export function targetText({ target, resolved }) {
  if (!resolved) return "";
  return typeof target === "string" && target !== resolved ? `${target}: ${resolved}` : resolved;
}

function rowsOf(jobs) {
  return table("Jobs, the newest first", [
    { title: "Model", cell: (job) => el("a", { href: `#/jobs/${job.id}`, class: "name" }, job.name || job.id) },
    { title: "Kind", cell: (job) => job.kind },
    { title: "Target", cell: targetText },
    { title: "State", cell: (job) => [badge(job.state), " ", el("span", { class: "muted" }, doing(job))] },
    { title: "Took", number: true, cell: (job) => elapsed(job.started || job.created, job.finished) },
    { title: "Created", number: true, cell: (job) => clock(job.created) },
  ], jobs);
}

function doing(job) {
  if (job.state === "failed") return job.error?.code || "";
  if (job.state !== "running" || !job.stage) return "";
  return job.progress?.total ? `${job.stage} ${percent(job.progress.done / job.progress.total)}` : job.stage;
}
