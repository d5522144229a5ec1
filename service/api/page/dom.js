// Elements from values. Every string becomes text: nothing here, or anywhere on the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
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

/** A table: `columns` are {title, number?, cell(row)}, where a cell is a string or nodes. */
export function table(caption, columns, rows, rowClass = () => null) {
  const head = columns.map(({ title, number }) => el("th", { scope: "col", class: number ? "number" : null }, title));
  const body = rows.map((row) =>
    el("tr", { class: rowClass(row) }, columns.map(({ cell, number }, at) =>
      el(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: number ? "number" : null }, cell(row)))));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

/** Pairs of a term and what it is. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

/** Says it to those who do not see it. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}
