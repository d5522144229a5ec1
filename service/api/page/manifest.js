// A JSON value to look into, folded.

import { button, el } from "./dom.js";

const MOST = 200;
const FLAT = 80;

/** A folded panel; its content is made when it is first opened. */
export function manifestPanel(title, value) {
  if (value === null || value === undefined) return null;
  const body = el("div", { class: "tree" });
  const copy = button("Copy as JSON", async () => {
    await navigator.clipboard.writeText(JSON.stringify(value, null, 2));
    copy.textContent = "Copied";
  }, "quiet");
  const actions = el("div", { class: "actions", hidden: !navigator.clipboard }, copy);
  return unfolding({ class: "panel" }, title, () => entries(value), actions, body);
}

/** A folded part; what `make` gives when it is first opened goes into the last of `children`, if there is one. */
function unfolding(attributes, summary, make, ...children) {
  let made = false;
  const toggle = () => {
    if (made) return;
    made = true;
    (children.at(-1) || node).append(make());
  };
  const node = el("details", { ...attributes, toggle }, el("summary", {}, summary), ...children);
  return node;
}

function entries(value) {
  const all = Object.entries(value);
  const more = all.length > MOST && el("li", { class: "muted" }, `and ${all.length - MOST} more`);
  return el("ul", {}, all.slice(0, MOST).map(([name, child]) => entry(name, child)), more);
}

function entry(name, value) {
  const key = el("span", { class: "key" }, name);
  const text = JSON.stringify(value);
  if (value === null || typeof value !== "object" || text.length < FLAT) {
    return el("li", {}, key, " ", el("span", { class: `value ${typeof value}` }, text));
  }
  const size = Object.keys(value).length;
  const amount = el("span", { class: "muted" }, Array.isArray(value) ? ` ${size} items` : ` ${size} fields`);
  return el("li", {}, unfolding({}, [key, amount], () => entries(value)));
}
