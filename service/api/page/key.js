// The dialog for the API key: opened by its button, or by an answer that wants one.

import { key, setKey } from "./api.js";

/** Wires the dialog; `changed` is called when another key, or none, is in force. */
export function installKey(changed) {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key-input");
  const why = document.getElementById("key-why");
  const button = document.getElementById("key-button");
  const usual = why.textContent;

  function tell() {
    button.textContent = key() ? "API key: set" : "API key";
  }
  function use(text) {
    setKey(text);
    input.value = "";
    dialog.close();
    tell();
    changed();
  }
  function open(reason) {
    why.textContent = reason;
    if (!dialog.open) dialog.showModal();
    input.focus();
  }

  button.addEventListener("click", () => open(usual));
  document.addEventListener("key-needed", ({ detail }) => open(`${detail.message}. ${usual}`));
  document.getElementById("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) use(input.value.trim());
  });
  document.getElementById("key-forget").addEventListener("click", () => use(""));
  document.getElementById("key-close").addEventListener("click", () => dialog.close());
  tell();
}
