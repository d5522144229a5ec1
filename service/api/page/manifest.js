// A JSON value to look into, folded.

import { el } from "./dom.js";

const MOST = 200;

/** A folded panel; its content is made when it is first opened. */
export function manifestPanel(title, value) {
  if (value === null || value === undefined) return null;
  const body = el("div", { class: "tree" });
  const text = () => JSON.stringify(value, null, 2);
  const copy = el("button", { type: "button", class: "quiet", click: async () => {
    await navigator.clipboard.writeText(text());
    copy.textContent = "Copied";
  } }, "Copy as JSON");
  const open = ({ target }) => target.open && !body.childElementCount && body.append(entries(value));
  return el("details", { class: "panel", toggle: open }, el("summary", {}, title), navigator.clipboard && el("div", { class: "actions" }, copy), body);
}

function entries(value) {
  const all = Object.entries(value);
  return el("ul", {}, all.slice(0, MOST).map(([name, child]) => entry(name, child)),
    all.length > MOST && el("li", { class: "muted" }, `and ${all.length - MOST} more`));
}

function entry(name, value) {
  const key = el("span", { class: "key" }, name);
  if (value === null || typeof value !== "object") return el("li", {}, key, " ", el("span", { class: `value ${typeof value}` }, JSON.stringify(value)));
  if (isFlat(value)) return el("li", {}, key, " ", el("span", { class: "value" }, JSON.stringify(value)));
  const size = Object.keys(value).length;
  const folded = el("details", { toggle: ({ target }) => target.open && target.childElementCount < 2 && target.append(entries(value)) },
    el("summary", {}, key, el("span", { class: "muted" }, Array.isArray(value) ? ` ${size} items` : ` ${size} fields`)));
  return el("li", {}, folded);
}

function isFlat(value) {
  return JSON.stringify(value).length < 80;
}
