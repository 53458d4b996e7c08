"use strict";
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = root.dataset.theme || system;
  root.dataset.theme = now === "dark" ? "light" : "dark";
  dispatchEvent(new Event("themechange"));
});
// A browser breaks words after a hyphen; the options of a command stay whole.
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
// A click on a heading sorts the rows by that column, a second one turns them round.
const UNITS = { ns: 1e-9, us: 1e-6, ms: 1e-3, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
const amount = (text) => {
  const found = text.replaceAll(",", "").match(/^\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([A-Za-z]*)/);
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : NaN;
};
for (const table of document.querySelectorAll("table.headed")) {
  const [heading, ...rows] = table.rows;
  if (!heading || rows.length < 2) continue;
  const isFolded = rows.map((row) => row.classList.contains("folded"));
  for (const [column, cell] of [...heading.cells].entries()) {
    cell.tabIndex = 0;
    cell.title = "Sort by this column";
    const sort = () => {
      const isUp = cell.getAttribute("aria-sort") !== "ascending";
      for (const other of heading.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      const keyed = rows.map((row) => [row, row.cells[column]?.textContent ?? ""]);
      keyed.sort(([, a], [, b]) => {
        const order = amount(a) - amount(b);
        return (Number.isNaN(order) ? a.localeCompare(b) : order) * (isUp ? 1 : -1);
      });
      const folds = rows.some((row) => row.classList.contains("folded"));
      keyed.forEach(([row], place) => {
        row.classList.toggle("folded", folds && isFolded[place]);
        row.parentElement.append(row);
      });
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  }
}
