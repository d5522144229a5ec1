// Elements from values. Every string becomes text: nothing here, or anywhere on the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return node;
}

/** An HTML element; a function among the attributes is a listener for the event of that name. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A button; `kind` is primary, danger or quiet. */
export function button(label, click, kind = null) {
  return el("button", { type: "button", class: kind, click }, label);
}

/** A titled part of a view. */
export function panel(title, ...children) {
  return el("section", { class: "panel" }, el("h2", {}, title), ...children);
}

/** A sentence that explains. */
export function note(...children) {
  return el("p", { class: "muted" }, ...children);
}

/** Preformatted text that scrolls by keyboard too. */
export function code(text) {
  return el("pre", { class: "code", tabindex: "0" }, text);
}

/** A table: `columns` are {title, number?, cell(row)}, where a cell is a string or nodes. */
export function table(caption, columns, rows) {
  const head = columns.map(({ title, number }) => el("th", { scope: "col", class: number && "number" }, title));
  const cells = (row) =>
    columns.map(({ cell, number }, at) =>
      el(at ? "td" : "th", { scope: at ? null : "row", class: number && "number" }, cell(row)));
  const grid = el("table", {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row)))));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, grid);
}

/** Pairs of a term and what it is; those without a value are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value || value === 0);
  const pair = ([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value));
  return el("dl", { class: "facts" }, known.map(pair));
}

/** Says it to those who do not see it. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}
