// The models that were uploaded: compile one again without sending it again, or remove it.

import { get, remove } from "./api.js";
import { announce, button, el, note, table } from "./dom.js";
import { bytes, clock, short } from "./format.js";
import { problemPanel } from "./problem.js";

export function modelsView(signal) {
  const body = el("div", { class: "models", "aria-busy": "true" });

  async function load() {
    try {
      const { models } = await get("/v1/models", { signal });
      body.replaceChildren(models.length ? rowsOf(models) : el("p", { class: "empty" }, "No model yet."));
    } catch (problem) {
      if (!signal.aborted) body.replaceChildren(problemPanel(problem));
    }
    body.removeAttribute("aria-busy");
  }
  function rowsOf(models) {
    return table("Models, the newest first", [
      { title: "Model", cell: nameOf },
      { title: "Format", cell: (model) => model.format },
      { title: "Size", number: true, cell: (model) => bytes(model.size_bytes) },
      { title: "SHA-256", cell: (model) => el("code", { title: model.digest }, short(model.digest)) },
      { title: "Uploaded", number: true, cell: (model) => clock(model.created) },
      { title: "", cell: removal },
    ], models);
  }
  function nameOf({ digest, name }) {
    const choose = () => sessionStorage.setItem("relaxc-model", digest); // the form takes it from there
    return el("a", { href: "#/", class: "name", click: choose }, name);
  }
  function removal(model) {
    return button(["Remove", el("span", { class: "unseen" }, ` ${model.name}`)], () => drop(model), "quiet");
  }
  async function drop(model) {
    try {
      await remove(`/v1/models/${model.digest}`);
      announce(`${model.name} is removed`);
      await load();
    } catch (problem) {
      body.prepend(problemPanel(problem));
    }
  }

  load();
  return el("section", { class: "panel" }, el("h1", { tabindex: "-1" }, "Models"),
    note("What was uploaded, by content. Its name starts a new job with it."), body);
}
