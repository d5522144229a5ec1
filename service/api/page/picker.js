// Files dropped or chosen: which is the model, and which are its external data.

import { el } from "./dom.js";
import { bytes } from "./format.js";

const MODEL = /\.(onnx|pt2)$/i;

/** {node, chosen()}: a drop zone that is a file input underneath, and {model, data} of what is in it. */
export function filePicker() {
  let files = [];
  const named = { id: "submit-files", class: "unseen", "aria-describedby": "files-list" };
  const input = el("input", { type: "file", multiple: true, ...named, change: () => take(input.files) });
  const list = el("ul", { id: "files-list", class: "files", "aria-live": "polite" });
  const zone = el("label", { for: "submit-files", class: "drop", dragover, dragleave: () => lift(false), drop },
    el("strong", {}, "Drop a model here, or choose it"),
    el("span", { class: "muted" }, "ONNX, with external data beside it, or a .pt2 of torch.export"));

  function lift(over) {
    zone.classList.toggle("over", over);
  }
  function dragover(event) {
    event.preventDefault();
    lift(true);
  }
  function drop(event) {
    event.preventDefault();
    lift(false);
    take(event.dataTransfer.files);
  }
  function chosen() {
    const model = files.find((file) => MODEL.test(file.name)) || files[0];
    return { model, data: files.filter((file) => file !== model) };
  }
  function take(given) {
    files = [...given];
    const { model } = chosen();
    list.replaceChildren(...files.map((file) => el("li", {}, el("span", { class: "name" }, file.name),
      el("span", { class: "muted" }, `${file === model ? "model" : "external data"}, ${bytes(file.size)}`))));
  }

  return { node: el("div", {}, input, zone, list), chosen };
}
