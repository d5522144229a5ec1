// The start: a form for a new job beside the list of jobs.

import { el } from "./dom.js";
import { jobList } from "./jobs.js";
import { submitForm } from "./submit.js";

export function startView(signal) {
  return el("div", { class: "start" },
    el("h1", { class: "unseen", tabindex: "-1" }, "Jobs"),
    submitForm(signal),
    jobList(signal));
}
