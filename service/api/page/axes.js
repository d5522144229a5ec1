// Scales and axes of our figures, drawn anew when the room for them changes.

import { el, svg } from "./dom.js";

/** A figure that is drawn by `draw(width)`, which gives an SVG element, again whenever its width changes. */
export function figure(caption, draw) {
  const room = el("div", { class: "plot" });
  const drawn = { width: 0 };
  const observer = new ResizeObserver(([{ contentRect }]) => {
    const width = Math.floor(contentRect.width);
    if (!room.isConnected) observer.disconnect();
    if (width < 40 || width === drawn.width) return;
    drawn.width = width;
    room.replaceChildren(draw(width));
  });
  observer.observe(room);
  const node = el("figure", {}, room, el("figcaption", { class: "muted" }, caption));
  node.redraw = () => drawn.width && room.replaceChildren(draw(drawn.width));
  return node;
}

/** A function from [low, high] to [from, to], by logarithm or in proportion. */
export function scale([low, high], [from, to], log) {
  const of = log ? Math.log10 : (value) => value;
  const span = of(high) - of(low) || 1;
  return (value) => from + ((of(value) - of(low)) / span) * (to - from);
}

/** Powers of ten within the bounds; where these are few, their doubles and fives too. */
export function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const decades = inside.filter((tick) => Math.abs(Math.log10(tick) % 1) < 1e-9);
  return decades.length >= 3 ? decades : inside;
}

/** Round steps, about `wanted` of them. */
export function ticks(low, high, wanted = 5) {
  const rough = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at += 1) found.push(at * step);
  return found.map((tick) => Number(tick.toPrecision(6)));
}

/** An SVG element of a figure's size, with its name for those who do not see it. */
export function plot(width, height, name, ...children) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name }, ...children);
}

/** Both axes with grid lines; `x` and `y` are {at, ticks, text, title}, `box` the sides of the plot. */
export function axes(box, x, y) {
  const text = (content, at, anchor = "middle", kind = null) =>
    svg("text", { ...at, "text-anchor": anchor, class: kind }, content);
  const down = (tick) => [
    svg("line", { x1: x.at(tick), x2: x.at(tick), y1: box.top, y2: box.bottom }),
    text(x.text(tick), { x: x.at(tick), y: box.bottom + 16 }),
  ];
  const across = (tick) => [
    svg("line", { x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) }),
    text(y.text(tick), { x: box.left - 6, y: y.at(tick) + 4 }, "end"),
  ];
  const turned = { transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)` };
  return svg("g", { class: "axes" }, x.ticks.map(down), y.ticks.map(across),
    text(x.title, { x: (box.left + box.right) / 2, y: box.bottom + 36 }, "middle", "title"),
    text(y.title, turned, "middle", "title"));
}
