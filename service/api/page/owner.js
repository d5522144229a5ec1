// Who asks, what it may have and has, and the uploads that take of it before they are models.

import { get, remove } from "./api.js";
import { announce, button, el, note, panel, table } from "./dom.js";
import { bytes, clock, number, short } from "./format.js";
import { problemPanel } from "./problem.js";

const QUOTAS = {
  queued_jobs: ["Jobs that wait", number],
  running_jobs: ["Jobs that run", number],
  bytes: ["Models, artifacts, record sets, uploads", bytes],
  tuning_hours: ["Hours of tuning in 30 days", number],
};

export function ownerView(signal) {
  const body = el("div", { class: "owner", "aria-busy": "true" });

  async function load() {
    try {
      const [owner, { uploads }] = await Promise.all([get("/v1/owner", { signal }), begun(signal)]);
      body.replaceChildren(note(`${owner.name}, ${owner.id}`), quotasOf(owner.quotas), uploadsOf(uploads));
    } catch (problem) {
      if (!signal.aborted) body.replaceChildren(problemPanel(problem));
    }
    body.removeAttribute("aria-busy");
  }
  function uploadsOf(uploads) {
    const rows = uploads.length ? table("Uploads that are on their way", [
      { title: "SHA-256", cell: (upload) => el("code", { title: upload.sha256 }, short(upload.sha256)) },
      { title: "Size", number: true, cell: (upload) => bytes(upload.total) },
      { title: "Last byte", number: true, cell: (upload) => clock(upload.touched) },
      { title: "Dropped", number: true, cell: (upload) => clock(upload.expires) },
      { title: "", cell: dropping },
    ], uploads) : el("p", { class: "empty" }, "None.");
    return panel("Uploads that are on their way", rows);
  }
  function dropping(upload) {
    const label = ["Drop", el("span", { class: "unseen" }, ` ${short(upload.sha256)}`)];
    return button(label, () => drop(upload), "quiet");
  }
  async function drop(upload) {
    try {
      await remove(upload.links.self);
      announce("The upload is dropped");
      await load();
    } catch (problem) {
      body.prepend(problemPanel(problem));
    }
  }

  load();
  return el("section", { class: "panel" }, el("h1", { tabindex: "-1" }, "Quotas"), body);
}

/** A key that may only read has no uploads. */
async function begun(signal) {
  try {
    return await get("/v1/uploads", { signal });
  } catch (problem) {
    if (problem.status === 403) return { uploads: [] };
    throw problem;
  }
}

function quotasOf(quotas) {
  const rows = Object.entries(QUOTAS).map(([name, [title, shown]]) => ({ title, shown, ...quotas[name] }));
  return table("What you may have, and have", [
    { title: "Quota", cell: ({ title }) => title },
    { title: "Used", number: true, cell: ({ used, shown }) => shown(used) },
    { title: "Limit", number: true, cell: ({ limit, shown }) => (limit === null ? "none" : shown(limit)) },
    { title: "", cell: useOf },
  ], rows);
}

function useOf({ title, used, limit }) {
  if (!limit) return "";
  return el("progress", { max: limit, value: Math.min(used, limit), "aria-label": `${title}: used` });
}
