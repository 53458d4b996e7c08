// Memory by class of ranks, over the part of the iteration that the timelines show.
for (const box of document.querySelectorAll(".memory")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const curves = data.curves.map((one) => ({ name: one.name, at: ints(one.at), kib: ints(one.kib) }));
  const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const told = box.querySelector(".task"), note = told.textContent;
  const STRIP = 56;
  const gib = (kib) => (kib / 1048576).toPrecision(3) + " GiB";
  const highest = curves.map((one) => one.kib.reduce((most, kib) => Math.max(most, kib), 0));
  const most = Math.max(...highest);
  // Far below what the GPU has, that would flatten the curves.
  const top = Math.max(most, most * 3 > data.capacity ? data.capacity : 0) * 1.04;
  let from = 0, to = 1;

  const drawCurve = (one, number, width, ink) => {
    const left = gutter(canvas), scale = (width - left) / (to - from);
    const floor = (number + 1) * STRIP - 4, high = STRIP - 8;
    const x = (moment) => Math.min(Math.max(left + (moment - from) * scale, left), width);
    const y = (kib) => floor - high * kib / top;
    pen.fillStyle = ink.dim;
    pen.fillText(one.name, 0, floor - high / 2, left - 6);
    pen.fillText("up to " + gib(highest[number]), 0, floor - high / 2 + 13, left - 6);
    pen.fillStyle = ink.ground;
    pen.fillRect(left, floor - high, width - left, high);
    pen.fillStyle = ink.shade;
    pen.beginPath(); pen.moveTo(x(0), floor);
    one.at.forEach((moment, i) => {
      pen.lineTo(x(moment), y(one.kib[i]));
      pen.lineTo(x(i + 1 < one.at.length ? one.at[i + 1] : data.span), y(one.kib[i]));
    });
    pen.lineTo(x(data.span), floor); pen.fill();
    if (top < data.capacity) return;
    pen.strokeStyle = ink.mark;
    pen.setLineDash([4, 3]);
    pen.beginPath(); pen.moveTo(left, y(data.capacity)); pen.lineTo(width, y(data.capacity)); pen.stroke();
    pen.setLineDash([]);
  };
  const draw = () => {
    const width = clear(canvas, pen, curves.length * STRIP);
    const ink = { dim: colour("--dim"), ground: colour("--ground"), shade: colour("--shade"), mark: colour("--mark") };
    curves.forEach((one, number) => drawCurve(one, number, width, ink));
  };
  canvas.addEventListener("pointermove", (e) => {
    const place = canvas.getBoundingClientRect(), left = gutter(canvas);
    const one = curves[Math.floor((e.clientY - place.top) / STRIP)];
    const moment = from + (e.clientX - place.left - left) / (place.width - left) * (to - from);
    if (!one || moment < from || moment > data.span) { told.textContent = note; return; }
    const i = one.at.findLastIndex((at) => at <= moment);
    told.textContent = one.name + ": " + gib(one.kib[i]) + " at " + durationWords(moment * data.unit_ns);
  });
  canvas.addEventListener("pointerleave", () => { told.textContent = note; });
  addEventListener("resize", draw);
  addEventListener("themechange", draw);
  timelines.push({
    spanNs: data.span * data.unit_ns,
    show: (fromNs, toNs) => { from = fromNs / data.unit_ns; to = toNs / data.unit_ns; draw(); },
  });
}
