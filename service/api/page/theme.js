// The theme before the first paint: a classic script, since modules run too late for that.
"use strict";
(() => {
  const kept = localStorage.getItem("relaxc-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
