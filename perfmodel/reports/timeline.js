// Several timelines of a page have one scale and show the same part, so that they can be compared.
const timelines = [];
const longestNs = () => Math.max(...timelines.map((one) => one.spanNs));
const ints = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Uint32Array(bytes.buffer);
};
const durationWords = (ns) => {
  if (ns === 0) return "0";
  if (ns >= 1e9) return (ns / 1e9).toPrecision(4) + " s";
  if (ns >= 1e6) return (ns / 1e6).toPrecision(4) + " ms";
  return (ns / 1e3).toPrecision(4) + " us";
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const clear = (canvas, pen, height) => {
  const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.height = height + "px";
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "11px system-ui, sans-serif";
  return width;
};
for (const box of document.querySelectorAll(".timeline")) {
  // Rows are lanes: starts, lengths and labels as 32-bit numbers in base64. The highest bit of a
  // label says that the task is on the critical path.
  const data = JSON.parse(box.querySelector("script").textContent);
  const PATH = 0x80000000;
  const rows = data.lanes.map((lane) => ({
    ...lane, start: ints(lane.start), length: ints(lane.length), label: ints(lane.label),
  }));
  const part = (name) => box.querySelector("." + name);
  const canvas = box.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const ROW = 18, AXIS = 22;
  let from = 0, to = 1, matches = [], current = -1, query = "";
  let scroll = 0;
  const total = rows.length * ROW;
  const shown = Math.min(total, 30 * ROW);
  const left = () => Math.min(170, canvas.clientWidth * 0.32);

  const words = (units) => durationWords(units * data.unit_ns);

  // The first task of a row that ends after a moment: tasks of a lane follow one another.
  const firstAfter = (row, moment) => {
    let low = 0, high = row.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.start[middle] + row.length[middle] < moment) low = middle + 1; else high = middle;
    }
    return low;
  };

  const drawRow = (row, top, width, ink, mark, onPath, hits) => {
    const scale = (width - left()) / (to - from);
    pen.fillStyle = ink.ground;
    pen.fillRect(left(), top + 1, width - left(), ROW - 3);
    let drawn = -1;
    for (let i = firstAfter(row, from); i < row.start.length && row.start[i] <= to; i++) {
      const begin = Math.max(left(), left() + (row.start[i] - from) * scale);
      const end = Math.min(width, left() + (row.start[i] + row.length[i] - from) * scale);
      const isPath = onPath && row.label[i] >= PATH;
      const isHit = hits && hits[row.label[i] % PATH];
      if (end < drawn + 0.5 && !isPath && !isHit) continue;
      pen.globalAlpha = hits && !isHit ? 0.25 : 1;
      pen.fillStyle = isHit ? ink.hit : row.colour;
      pen.fillRect(begin, top + 1, Math.max(end - begin, 0.7), ROW - 3);
      if (isPath) {
        pen.globalAlpha = 1;
        pen.fillStyle = mark;
        pen.fillRect(begin, top + ROW - 5, Math.max(end - begin, 0.7), 3);
      }
      if (end - begin > 46 && pen.globalAlpha === 1) {
        pen.save();
        pen.beginPath(); pen.rect(begin, top, end - begin, ROW); pen.clip();
        pen.fillStyle = "#fff";
        pen.fillText(data.labels[row.label[i] % PATH], begin + 3, top + 12);
        pen.restore();
      }
      drawn = end;
    }
    pen.globalAlpha = 1;
  };

  const drawScrollbar = (width, ink) => {
    if (total <= shown) return;
    pen.fillStyle = ink.line;
    pen.fillRect(width - 5, 0, 5, shown);
    pen.fillStyle = ink.dim;
    pen.fillRect(width - 5, shown * scroll / total, 5, shown * shown / total);
  };

  const drawAxis = (width, height, ink) => {
    pen.fillStyle = ink.dim;
    pen.strokeStyle = ink.line;
    const ticks = width > 600 ? 6 : 3;
    for (let n = 0; n < ticks; n++) {
      const x = left() + (n / (ticks - 1)) * (width - left());
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height - AXIS + 4); pen.stroke();
      pen.textAlign = n === 0 ? "left" : n === ticks - 1 ? "right" : "center";
      pen.fillText(words(from + (n / (ticks - 1)) * (to - from)), x, height - 6);
    }
    pen.textAlign = "left";
  };

  const draw = () => {
    const height = shown + AXIS, width = clear(canvas, pen, height);
    const ink = { dim: colour("--dim"), line: colour("--line"), ground: colour("--ground"), hit: "#b02a8f" };
    const hits = query ? data.labels.map(isHit) : null;
    const onPath = part("path").checked;
    rows.forEach((row, number) => {
      const top = number * ROW - scroll;
      if (top < -ROW || top > shown - ROW) return;
      pen.fillStyle = ink.dim;
      pen.fillText(row.name, 0, top + 12, left() - 6);
      drawRow(row, top, width, ink, colour("--mark"), onPath, hits);
    });
    drawScrollbar(width, ink);
    drawAxis(width, height, ink);
    canvas.dataset.from = from; canvas.dataset.to = to; canvas.dataset.matches = matches.length;
  };

  const look = (start, stop) => {
    const most = longestNs() / data.unit_ns, span = Math.min(Math.max(stop - start, 4), most);
    const first = Math.min(Math.max(start, 0), most - span);
    for (const one of timelines) one.show(first * data.unit_ns, (first + span) * data.unit_ns);
  };
  const whole = () => look(0, longestNs() / data.unit_ns);
  const zoom = (factor, share = 0.5) => {
    const middle = from + share * (to - from), span = (to - from) * factor;
    look(middle - share * span, middle + (1 - share) * span);
  };
  const shareOf = (happening) => {
    const x = happening.clientX - canvas.getBoundingClientRect().left;
    return (x - left()) / (canvas.clientWidth - left());
  };

  // A star in the search text matches anything, as in the tables of the page.
  const isHit = (label) => {
    let rest = 0;
    return query.split("*").every((part) => {
      const place = label.toLowerCase().indexOf(part, rest);
      rest = place + part.length;
      return place >= 0;
    });
  };
  const search = () => {
    query = part("search").value.trim().toLowerCase();
    matches = []; current = -1;
    if (query) {
      const hits = data.labels.map(isHit);
      rows.forEach((row, number) => {
        for (let i = 0; i < row.start.length; i++) if (hits[row.label[i] % PATH]) matches.push([number, i]);
      });
      matches.sort((a, b) => rows[a[0]].start[a[1]] - rows[b[0]].start[b[1]]);
    }
    part("found").textContent = query ? matches.length + " tasks" : "";
    draw();
  };
  const jump = (by) => {
    if (!matches.length) return;
    current = (current + by + matches.length) % matches.length;
    part("found").textContent = current + 1 + " of " + matches.length;
    show(...matches[current]);
  };
  const show = (number, i) => {
    const row = rows[number];
    const span = Math.max(row.length[i] * 12, 8), middle = row.start[i] + row.length[i] / 2;
    scroll = Math.min(Math.max(number * ROW - shown / 2, 0), total - shown);
    tell(row, i);
    look(middle - span / 2, middle + span / 2);
  };
  const tell = (row, i) => {
    const path = row.label[i] >= PATH ? ", on the critical path" : "";
    part("task").textContent = row.name + ": " + data.labels[row.label[i] % PATH] + ", " +
      words(row.length[i]) + " from " + words(row.start[i]) + path;
  };

  // A space that does not break keeps the line.
  const tellNothing = () => { part("task").textContent = "\u00a0"; };

  let held = null;
  canvas.addEventListener("pointerdown", (e) => { held = { x: e.clientX, y: e.clientY, from, to, scroll }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (held) {
      const moved = (e.clientX - held.x) * (held.to - held.from) / (canvas.clientWidth - left());
      scroll = Math.min(Math.max(held.scroll - (e.clientY - held.y), 0), total - shown);
      look(held.from - moved, held.to - moved);
      return;
    }
    const box = canvas.getBoundingClientRect();
    const row = rows[Math.floor((e.clientY - box.top + scroll) / ROW)];
    const moment = from + shareOf(e) * (to - from);
    const i = row && moment >= from ? firstAfter(row, moment) : Infinity;
    if (row && i < row.start.length && row.start[i] <= moment) tell(row, i);
    else tellNothing();
  });
  canvas.addEventListener("pointerleave", () => { if (!held) tellNothing(); });
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey) { scroll = Math.min(Math.max(scroll + e.deltaY, 0), total - shown); draw(); }
    else zoom(e.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max(shareOf(e), 0), 1));
  }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const step = (to - from) / 5;
    const actions = {
      "+": () => zoom(0.6), "-": () => zoom(1.6), ArrowLeft: () => look(from - step, to - step),
      ArrowRight: () => look(from + step, to + step), "0": whole,
    };
    if (actions[e.key]) { e.preventDefault(); actions[e.key](); }
  });
  part("closer").addEventListener("click", () => zoom(0.5));
  part("wider").addEventListener("click", () => zoom(2));
  part("whole").addEventListener("click", whole);
  part("search").addEventListener("input", search);
  part("search").addEventListener("keydown", (e) => { if (e.key === "Enter") jump(e.shiftKey ? -1 : 1); });
  part("next").addEventListener("click", () => jump(1));
  part("previous").addEventListener("click", () => jump(-1));
  // Names in tables are those of the answer, whose timeline is the last.
  document.querySelectorAll("[data-find]").forEach((link) => link.addEventListener("click", (e) => {
    e.preventDefault();
    part("search").value = link.dataset.find;
    search(); jump(1);
    canvas.scrollIntoView({ block: "center" });
  }));
  part("path").addEventListener("change", draw);
  addEventListener("resize", draw);
  addEventListener("themechange", draw);
  timelines.push({
    spanNs: data.span * data.unit_ns,
    show: (fromNs, toNs) => { from = fromNs / data.unit_ns; to = toNs / data.unit_ns; draw(); },
  });
}
