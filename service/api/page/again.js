// New jobs from what a view shows: the same once more, a bench of a result, a compile with found records.

import { post } from "./api.js";
import { button } from "./dom.js";
import { problemPanel } from "./problem.js";

/** A button that starts the job `body` and goes to it; `trouble` takes the panel of what refuses it. */
export function starting(label, body, trouble, kind = null) {
  const node = button(label, async () => {
    node.disabled = true;
    try {
      location.hash = `#/jobs/${(await post("/v1/jobs", body)).id}`;
    } catch (problem) {
      trouble.replaceChildren(problemPanel(problem));
    } finally {
      node.disabled = false;
    }
  }, kind);
  return node;
}
