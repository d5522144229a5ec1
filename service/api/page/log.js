// What a job said: its log lines as they come, and all that its process printed when asked for.

import { button, el, note } from "./dom.js";

const MOST_LINES = 2000;

/** {node, add(event)}; `fetchAll()` gives the text of the whole log. */
export function logPanel(fetchAll) {
  const lines = el("div", { class: "code log", role: "log", "aria-label": "Log", tabindex: "0" });
  const whole = el("pre", { class: "code log", tabindex: "0", hidden: true, "aria-label": "All that it printed" });
  const none = note("It has said nothing.");
  const show = button("All that its process printed", fetchWhole, "quiet");

  async function fetchWhole() {
    try {
      whole.textContent = (await fetchAll()) || "Nothing.";
    } catch (problem) {
      whole.textContent = `${problem.message}. ${problem.remedy || ""}`;
    }
    whole.hidden = false;
  }
  lines.hidden = true;

  return {
    node: el("details", { class: "panel" }, el("summary", {}, "Log"),
      none, lines, el("div", { class: "actions" }, show), whole),
    add({ level = "info", message = "" }) {
      const end = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
      [none.hidden, lines.hidden] = [true, false];
      lines.append(el("div", { "data-level": level }, el("span", { class: "level" }, level), " ", String(message)));
      if (lines.childElementCount > MOST_LINES) lines.firstElementChild.remove();
      if (end) lines.scrollTop = lines.scrollHeight;
    },
  };
}
