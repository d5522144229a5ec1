// The controls of the form for a new job, each with its label.

import { el } from "./dom.js";

const PRECISIONS = [["", "as the model"], ["fp32", "fp32"], ["fp16", "fp16"], ["bf16", "bf16"]];
const LEVELS = [["2", "2, the default"], ["0", "0, as imported"], ["1", "1, fusion"], ["3", "3, fast math"]];
const KINDS = [
  ["compile", "Compile", "One verified .so"],
  ["tune", "Tune", "Search for faster kernels"],
  ["verify", "Verify", "Compare a result with its model"],
  ["bench", "Bench", "Time a result on the server"],
];

/** An option of a select. */
export function option([value, text]) {
  return el("option", { value }, text);
}

/** The radio buttons of the kinds of job; `change` hears when another is chosen. */
export function kindChoice(change) {
  const choice = ([value, title, hint], at) => el("label", { class: "kind" },
    el("input", { type: "radio", name: "kind", value, checked: at === 0, change }),
    el("span", {}, el("strong", {}, title), el("small", {}, hint)));
  return el("fieldset", { class: "kinds" }, el("legend", { class: "unseen" }, "Kind of job"), KINDS.map(choice));
}

/** Every control by its name. */
export function controls() {
  const number = (attributes) => el("input", { type: "number", ...attributes });
  const digest = { type: "text", spellcheck: "false", autocomplete: "off", placeholder: "SHA-256 of a result" };
  return {
    known: el("select", {}, option(["", "Upload a file"])),
    artifact: el("input", digest),
    target: el("select", {}, option(["auto", "auto"])),
    trials: number({ min: 1, max: 100000, value: 64 }),
    time: number({ min: 1, max: 86400, placeholder: "no limit" }),
    precision: el("select", {}, PRECISIONS.map(option)),
    level: el("select", {}, LEVELS.map(option)),
    shapes: el("textarea", { rows: 2, spellcheck: "false", placeholder: "x=1,3,224,224" }),
    seed: number({ min: 0, max: 2 ** 32 - 1, value: 0 }),
    verify: el("input", { type: "checkbox", checked: true }),
  };
}

/** A control with its label and a hint, as a part of the form that some kinds of job need. */
export function field(name, control, label, hint = null) {
  control.id = `submit-${name}`;
  if (hint) control.setAttribute("aria-describedby", `${control.id}-hint`);
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control,
    hint && el("p", { class: "hint", id: `${control.id}-hint` }, hint));
}
