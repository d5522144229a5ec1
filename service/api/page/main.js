// The page: which view the address asks for, the key, the theme, and whether the server answers.

import { get } from "./api.js";
import { el } from "./dom.js";
import { artifactView } from "./artifact.js";
import { installKey } from "./key.js";
import { jobView } from "./job.js";
import { modelsView } from "./models.js";
import { ownerView } from "./owner.js";
import { startView } from "./start.js";
import { workersView } from "./workers.js";
import { installTheme } from "./toggle.js";

const HEALTH_EVERY_MS = 15_000;

const ROUTES = [
  [/^#?\/?$/, startView],
  [/^#\/models$/, modelsView],
  [/^#\/quotas$/, ownerView],
  [/^#\/workers$/, workersView],
  [/^#\/jobs\/([\w-]+)$/, jobView],
  [/^#\/artifacts\/([0-9a-f]{64})$/, artifactView],
];

let leave = new AbortController();

/** Shows the view of the address; the one before it is told to stop by its signal. */
function show({ focus }) {
  leave.abort();
  leave = new AbortController();
  const main = document.getElementById("main");
  const hash = location.hash;
  const [pattern, view] = ROUTES.find(([each]) => each.test(hash)) || [];
  main.replaceChildren(view ? view(leave.signal, pattern.exec(hash)[1]) : nothing());
  document.title = `${main.querySelector("h1")?.textContent || "relaxc"} · relaxc`;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.getAttribute("href") === (hash || "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  if (focus) (main.querySelector("h1") || main).focus({ preventScroll: true });
}

function nothing() {
  return el("section", { class: "panel" }, el("h1", { tabindex: "-1" }, "There is no such page"),
    el("p", {}, el("a", { href: "#/" }, "To the jobs")));
}

async function health() {
  const shown = document.getElementById("server");
  let state, text;
  try {
    const { status, version, running, waiting } = await get("/healthz");
    const jobs = running === null ? "its database does not answer" : `${running} running, ${waiting} waiting`;
    [state, text] = [status === "ok" && running !== null ? "up" : "down", `${version} · ${jobs}`];
  } catch (problem) {
    [state, text] = ["down", problem.message];
  }
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = state;
}

installTheme(document.getElementById("theme-button"));
installKey(() => show({ focus: false }));
window.addEventListener("hashchange", (change) => {
  if (new URL(change.newURL).hash !== "#main") show({ focus: true }); // #main is the skip link's
});
show({ focus: false });
health();
setInterval(() => document.hidden || health(), HEALTH_EVERY_MS);
