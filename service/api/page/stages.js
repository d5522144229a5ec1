// The stages of a job in a row, the one that runs with its progress.

import { el } from "./dom.js";
import { percent, seconds } from "./format.js";

const OF_KIND = { compile: ["import", "optimize", "schedule", "build", "verify", "pack"] };

/** {node, job(job), event(kind, data)}: follows a job's state and its events. */
export function stageStrip() {
  const list = el("ol", { class: "stages", "aria-label": "Stages" });
  const bar = el("progress", { "aria-label": "Progress" });
  const text = el("p", { class: "muted status", role: "status" });
  const cells = new Map();
  let running = "";
  let ended = false;
  let heard = false;

  function cell(name) {
    if (!cells.has(name)) {
      const time = el("span", { class: "time" }, "");
      const node = el("li", { "data-state": "waiting" }, el("span", { class: "stage-name" }, name), time);
      cells.set(name, { node, time });
      list.append(node);
    }
    return cells.get(name);
  }
  function start(name) {
    if (ended || running === name) return;
    running = name;
    cell(name).node.dataset.state = "running";
    bar.removeAttribute("value");
    text.textContent = name;
  }
  function progress({ stage, done, total }) {
    if (ended || !total) return;
    [bar.max, bar.value] = [total, done];
    text.textContent = `${stage || running}: ${done} of ${total}, ${percent(done / total)}`;
  }
  function finish(state) {
    ended = true;
    [bar.max, bar.value] = [1, state === "succeeded" ? 1 : 0];
    text.textContent = state === "succeeded" && !heard ? "Served from cache" : "";
    for (const { node } of cells.values()) {
      if (node.dataset.state === "running") node.dataset.state = state === "succeeded" ? "done" : "broken";
      else if (node.dataset.state === "waiting") node.dataset.state = "skipped";
    }
  }

  return {
    node: el("div", { class: "progress" }, list, el("div", { class: "sending" }, bar, text)),
    job(job) {
      (OF_KIND[job.kind] || []).forEach(cell);
      if (job.state === "queued") {
        [bar.max, bar.value] = [1, 0];
        text.textContent = "waits for a worker";
      }
      if (job.state === "running" && job.stage) start(job.stage);
      if (job.finished) finish(job.state);
    },
    event(kind, data) {
      heard = true;
      if (text.textContent.startsWith("the store")) text.textContent = "";
      if (kind === "progress") progress(data);
      else if (data.state === "start") start(data.stage);
      else {
        const { node, time } = cell(data.stage);
        node.dataset.state = "done";
        time.textContent = seconds(data.seconds);
      }
    },
  };
}
