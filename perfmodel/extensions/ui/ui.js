"use strict";
const $ = (place) => document.querySelector(place);
const form = $("#knobs");
const frame = $("iframe");
let copied = {};
let against = "";
let stream = null;
let timer = null;
let pending = {};

const state = () => {
  const query = new URLSearchParams(location.hash.slice(1) || document.body.dataset.start);
  query.sort();
  return query;
};

// Another model leaves the settings of the last one behind.
function move(changes) {
  const next = state();
  if ("workload" in changes && changes.workload !== next.get("workload")) {
    for (const place of ["#first", "#more"]) {
      for (const one of $(place).querySelectorAll("[name]")) next.delete(one.name);
    }
    next.delete("stack");
  }
  for (const [key, value] of Object.entries(changes)) next.set(key, value);
  for (const [key, value] of [...next]) if (!value) next.delete(key);
  location.hash = next;
}

function fill() {
  const query = state();
  for (const one of form.elements) {
    if (!one.name) continue;
    const value = query.get(one.name) ?? "";
    if (one.options && ![...one.options].some((option) => option.value === value)) one.add(new Option(value));
    one.value = value;
    one.closest("label").classList.toggle("stated", value !== "");
  }
}

// What is open shows the value that was chosen.
function tell(now) {
  for (const one of form.querySelectorAll("#first [name], #more [name], [name=stack]")) {
    const words = now[one.name] ? `${now[one.name]} (open)` : "open";
    if (one.options) one.options[0].text = words;
    else one.placeholder = words;
  }
}

function take(said) {
  for (const [place, html] of Object.entries(said.parts)) $(place).innerHTML = html;
  if (said.now) tell(said.now);
  copied = said.copy ?? copied;
  if (!said.page) return;
  $("#save").href = `/pages/${said.page}`;
  // Replaced, because a page that is pushed would be what the browser's back button takes back.
  frame.contentWindow.location.replace($("#save").href);
  frame.hidden = $("#save").hidden = false;
}

function refuse(words) {
  $("#refusal").textContent = words;
  document.body.dataset.state = "fault";
}

function ask(more = {}) {
  stream?.close();
  const phase = (words) => { $(".phase").textContent = words; };
  $("#refusal").textContent = "";
  document.body.dataset.state = "asked";
  stream = new EventSource(`/stream?${new URLSearchParams({ ...Object.fromEntries(state()), against, ...more })}`);
  const on = (kind, act) => stream.addEventListener(kind, (event) => {
    act(JSON.parse(event.data));
    if (kind !== "phase" && kind !== "knobs") document.body.dataset.state = kind;
    if (kind === "end" || kind === "fault") stream.close();
  });
  on("phase", (said) => phase(said.words));
  on("knobs", (said) => {
    if (form.dataset.family === said.family) return;
    form.dataset.family = said.family;
    take(said);
    fill();
  });
  for (const kind of ["point", "answer", "near"]) on(kind, take);
  on("end", () => phase(""));
  on("fault", (said) => {
    refuse(said.words);
    phase("What is grey belongs to the setting before.");
  });
  stream.onerror = () => {
    stream.close();
    refuse("perfmodel ui does not answer; is it still running?");
  };
}

async function send(file) {
  if (!file) return;
  const got = await fetch(`/drop?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
  if (!got.ok) return refuse(await got.text());
  const { kind, name } = await got.json();
  move({ [kind]: name });
}

// A number that is still being typed is asked when the hand rests.
form.addEventListener("input", ({ target }) => {
  if (!target.name) return;
  clearTimeout(timer);
  pending[target.name] = target.value.trim();
  timer = setTimeout(() => {
    move(pending);
    pending = {};
  }, target.options ? 0 : 350);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("#path").addEventListener("change", ({ target }) => move({ workload: target.value.trim() }));
$("#file").addEventListener("change", ({ target }) => send(target.files[0]));
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    if (kind === "drop") send(event.dataTransfer.files[0]);
  });
}
document.addEventListener("click", async ({ target }) => {
  const { copy, ...changes } = target.dataset;
  if (target.closest(".presets") && target.type === "button") move(changes);
  if (!copy) return;
  await navigator.clipboard.writeText({ ...copied, address: location.href }[copy] ?? "");
  $(".phase").innerText = "Copied.";
});
const click = (place, act) => $(place).addEventListener("click", act);
click("#undo", () => history.back());
click("#search", () => ask({ search: 1 }));
click("#pin", () => { against = String(state()); });

// The page of an answer follows the theme that was chosen here.
function paint() {
  const { theme } = document.documentElement.dataset;
  if (!theme || frame.hidden) return;
  frame.contentDocument.documentElement.dataset.theme = theme;
  frame.contentWindow.dispatchEvent(new Event("themechange"));
}
frame.addEventListener("load", paint);
click("#theme", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  paint();
});
addEventListener("hashchange", () => {
  fill();
  ask();
});
if (!location.hash) history.replaceState(null, "", `#${document.body.dataset.start}`);
fill();
ask();
