// An error as people need it: what, what to do, and the details that a report should have.

import { code, el, facts } from "./dom.js";

const SPOKEN = ["log_tail", "repro"];

/** A panel for a Problem, or for the `error` of a job. */
export function problemPanel(problem) {
  const fields = Object.entries(problem.fields || {}).filter(([name]) => !SPOKEN.includes(name));
  const isNested = ([, value]) => value !== null && typeof value === "object";
  const { log_tail: tail, repro } = problem.fields || {};
  return el("section", { class: "panel problem", role: "alert" },
    el("h2", {}, problem.message || "It failed"),
    problem.remedy && el("p", { class: "remedy" }, problem.remedy),
    facts([
      ["Code", el("a", { href: `/problems/${encodeURIComponent(problem.code)}` }, problem.code)],
      ["Cause", problem.fault],
      ["Node", problem.node],
      ["Retry", problem.retryable ? "the same request may succeed later" : ""],
      ...fields.filter((row) => !isNested(row)).map(([name, value]) => [name, String(value)]),
    ]),
    fields.filter(isNested).map(([name, value]) => block(name, JSON.stringify(value, null, 2))),
    repro && block("The same by hand", repro),
    tail && block("The end of its log", Array.isArray(tail) ? tail.join("\n") : tail));
}

function block(title, text) {
  return el("figure", {}, el("figcaption", {}, title), code(String(text)));
}
