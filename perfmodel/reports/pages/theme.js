"use strict";
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = root.dataset.theme || system;
  root.dataset.theme = now === "dark" ? "light" : "dark";
  dispatchEvent(new Event("themechange"));
});
