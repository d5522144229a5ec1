// The servers and workers, for an admin: what their machines are, and which of them are silent.

import { get } from "./api.js";
import { el, note, table } from "./dom.js";
import { bytes, clock, number } from "./format.js";
import { problemPanel } from "./problem.js";

const EVERY_MS = 5_000;

export function workersView(signal) {
  const body = el("div", { class: "workers", "aria-busy": "true" });
  let timer = 0;

  async function load() {
    clearTimeout(timer);
    try {
      if (!document.hidden) body.replaceChildren(rowsOf((await get("/v1/workers", { signal })).workers));
    } catch (problem) {
      if (signal.aborted) return;
      body.replaceChildren(problem.status === 403 ? note("An admin's key shows them.") : problemPanel(problem));
      if (problem.status === 401 || problem.status === 403) return;
    }
    body.removeAttribute("aria-busy");
    timer = setTimeout(load, EVERY_MS);
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  load();
  return el("section", { class: "panel" }, el("h1", { tabindex: "-1" }, "Workers"), body);
}

function rowsOf(workers) {
  return table("Servers and workers", [
    { title: "Host", cell: ({ host, pid }) => `${host} ${pid}` },
    { title: "Role", cell: ({ role }) => role },
    { title: "State", cell: ({ state }) => el("span", { class: "badge", "data-state": state }, state) },
    { title: "Machine", cell: nameOf },
    { title: "Cores", number: true, cell: ({ machine }) => (machine ? number(machine.cores) : "") },
    { title: "Memory", number: true, cell: ({ machine }) => (machine ? bytes(machine.memory_bytes) : "") },
    { title: "Jobs", number: true, cell: ({ slots }) => number(slots.jobs) },
    { title: "Tunings", number: true, cell: ({ slots }) => number(slots.tunings) },
    { title: "Running", number: true, cell: ({ running }) => number(running) },
    { title: "Since", number: true, cell: ({ started }) => clock(started) },
  ], workers);
}

const nameOf = ({ machine }) => (machine ? el("span", { title: machine.cpu }, machine.kind) : "unknown");
