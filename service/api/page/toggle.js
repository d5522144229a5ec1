// The button that goes through the themes: as the system has it, light, dark.

const THEMES = ["auto", "light", "dark"];

export function installTheme(button) {
  const current = () => document.documentElement.dataset.theme || "auto";
  const tell = () => (button.textContent = `Theme: ${current()}`);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("relaxc-theme", next);
    tell();
  });
  tell();
}
