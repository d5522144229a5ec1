// The few numbers that a panel starts with.

import { el } from "./dom.js";

/** A number with its title and a hint; `state` is good or bad. */
export function tile(title, value, hint = "", state = null) {
  return el("div", { class: "tile", "data-state": state },
    el("span", { class: "tile-title" }, title), el("strong", {}, value), el("small", {}, hint || "\u00a0"));
}
