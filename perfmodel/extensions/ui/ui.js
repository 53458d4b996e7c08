"use strict";
const last = { a: null, b: null };

function pane(id) {
  const root = document.getElementById(id);
  const find = (name) => root.querySelector(name);
  const form = find("form");
  let stream = null;
  let timer = null;

  function show(said, isWhole) {
    last[id] = said;
    root.classList.remove("waiting");
    find(".verdict").textContent = said.verdict;
    find(".verdict").className = `verdict ${said.fits ? "good" : "bad"}`;
    find(".answer").textContent = `${said.time} per iteration`;
    const rows = said.facts.map((words) => {
      const row = document.createElement("li");
      row.textContent = words;
      return row;
    });
    find(".facts").replaceChildren(...rows);
    find(".phase").textContent = "";
    if (isWhole) {
      find("iframe").src = `/pages/${said.page}`;
      find("iframe").hidden = false;
    }
    root.dataset.state = isWhole ? "answer" : "point";
    versus();
  }

  function ask() {
    if (stream) stream.close();
    root.classList.add("waiting");
    root.dataset.state = "asked";
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") query.set(name, value);
    stream = new EventSource(`/stream?${query}`);
    const on = (kind, act) => stream.addEventListener(kind, (event) => act(JSON.parse(event.data)));
    on("phase", (said) => { find(".phase").textContent = said.words; });
    on("point", (said) => show(said, false));
    on("answer", (said) => { stream.close(); show(said, true); });
    on("fault", (said) => {
      stream.close();
      last[id] = null;
      root.classList.remove("waiting");
      find(".verdict").textContent = said.words;
      find(".verdict").className = "verdict bad";
      find(".answer").textContent = "no answer";
      find(".facts").replaceChildren();
      find(".phase").textContent = "";
      root.dataset.state = "fault";
      versus();
    });
    stream.onerror = () => {
      stream.close();
      find(".phase").textContent = "perfmodel ui does not answer; is it still running?";
      root.dataset.state = "lost";
    };
  }

  // A number that is still being typed is asked when the hand rests.
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 250);
  });
  find("iframe").addEventListener("load", paint);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of root.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      if (!last[id]) return;
      const words = button.textContent;
      await navigator.clipboard.writeText(last[id][button.dataset.copy]);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = words; }, 1200);
    });
  }
  return { root, form, ask };
}

// The pages of answers follow the theme that was chosen here.
function paint() {
  const theme = document.documentElement.dataset.theme;
  if (!theme) return;
  for (const frame of document.querySelectorAll("iframe:not([hidden])")) {
    frame.contentDocument.documentElement.dataset.theme = theme;
    frame.contentWindow.dispatchEvent(new Event("themechange"));
  }
}

function versus() {
  const { a, b } = last;
  const place = document.getElementById("versus");
  place.textContent = "";
  if (second.root.hidden || !a || !b) return;
  // Batches may differ, so iterations are compared by what they train.
  const isRate = a.unit && a.unit === b.unit;
  const ratio = isRate ? b.per_s / a.per_s : a.time_ns / b.time_ns;
  const [which, times] = ratio > 1 ? ["second", ratio] : ["first", 1 / ratio];
  place.textContent = ratio === 1 ? "both take the same time" :
    `the ${which} is ${times.toPrecision(3)} times as fast${isRate ? ` in ${a.unit}/s` : ""}`;
}

const first = pane("a");
const second = pane("b");
document.getElementById("compare").addEventListener("click", (event) => {
  second.root.hidden = !second.root.hidden;
  event.target.textContent = second.root.hidden ? "Compare with a second setting" : "One setting only";
  if (!second.root.hidden) {
    for (const [name, value] of new FormData(first.form)) second.form.elements[name].value = value;
    second.ask();
  }
  versus();
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  paint();
});
first.ask();
