"use strict";
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = root.dataset.theme || system;
  root.dataset.theme = now === "dark" ? "light" : "dark";
  dispatchEvent(new Event("themechange"));
});
// A browser parts words behind a hyphen; the options of a command stay whole.
for (const command of document.querySelectorAll("code.command")) {
  const words = command.textContent.split(" ").map((word) => {
    const span = document.createElement("span");
    span.textContent = word;
    return [span, " "];
  });
  command.replaceChildren(...words.flat().slice(0, -1));
}
for (const button of document.querySelectorAll(".unfold")) {
  button.addEventListener("click", () => {
    for (const row of button.previousElementSibling.querySelectorAll(".folded")) row.className = "";
    button.remove();
  });
}
