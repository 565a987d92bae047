// Zoom, move and look: the picture is whole without this. Zooming changes every lane's viewBox; text is placed anew.
(() => {
  "use strict";
  const picture = document.querySelector(".picture");
  if (!picture) return;
  const tip = picture.querySelector(".tip");
  const MARK = "svg > g > *";
  const MOST_ZOOM = 400, NAME_PIXELS = 72, TICK_PIXELS = 64;
  const LEAST_LETTERS = 10; // of a name that is cut: fewer tell nothing
  const WIDTH = Number(picture.dataset.width);
  const total = Number(picture.dataset.seconds);
  const lanes = [...picture.querySelectorAll(".track .plot")].map((plot) => ({
    plot,
    svg: plot.querySelector("svg"),
    height: plot.querySelector("svg").viewBox.baseVal.height,
    names: plot.querySelector(".names"),
    marks: [...plot.querySelectorAll(MARK)].map((mark) => {
      const rect = mark.tagName === "rect" ? mark : mark.querySelector("rect"); // or a column of several kinds of work
      return { mark, x: rect.x.baseVal.value, width: rect.width.baseVal.value };
    }),
    steps: (plot.dataset.steps || "").split(" ").filter(Boolean).map((pair) => pair.split(",").map(Number)),
  }));
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `12px ${getComputedStyle(picture).fontFamily}`;
  let from = 0, to = 1; // the part of the axis in view

  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < 4) { n /= 1024; i += 1; }
    return `${n >= 100 || i === 0 ? n.toFixed(0) : Number(n.toPrecision(3))} ${units[i]}`;
  };
  const [factor, unit] = total >= 1 ? [1, "s"] : total >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const moment = (seconds, step) => `${(seconds * factor).toFixed(Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9)))} ${unit}`;
  const text = (element) => {
    const title = element.querySelector("title");
    if (title) { element.tip = title.textContent; title.remove(); } // or the browser shows its own tooltip as well
    return element.tip || "";
  };
  const peek = (element) => element.tip || element.querySelector("title")?.textContent || "";

  const drawTicks = () => {
    const least = (to - from) * total * TICK_PIXELS / Math.max(200, lanes[0].plot.clientWidth);
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= least * (1 - 1e-9));
    for (const ticks of picture.querySelectorAll(".ticks")) {
      ticks.replaceChildren();
      for (let i = Math.ceil(from * total / step - 1e-9); i * step <= to * total * (1 + 1e-9); i += 1) {
        const tick = document.createElement("i"), label = document.createElement("span");
        tick.style.left = `${100 * (i * step / total - from) / (to - from)}%`;
        label.textContent = moment(i * step, step);
        tick.append(label);
        ticks.append(tick);
      }
    }
  };
  const drawNames = (lane) => {
    if (!lane.names) return;
    lane.names.replaceChildren();
    const scale = lane.plot.clientWidth / ((to - from) * WIDTH), left = from * WIDTH;
    for (const { mark, x, width } of lane.marks) {
      const start = Math.max(0, (x - left) * scale), end = Math.min(lane.plot.clientWidth, (x + width - left) * scale);
      if (end - start < NAME_PIXELS || mark.classList.contains("stall")) continue;
      const name = document.createElement("span");
      const full = peek(mark).split("\n")[0].replace(/^(\d+ spans), .*/, "$1");
      const short = (cut) => (cut ? `…${full.slice(cut)}` : full); // a path's end tells more than its start
      let cut = 0;
      while (cut < full.length && pen.measureText(short(cut)).width > end - start - 14) cut += 1;
      if (cut && full.length - cut < LEAST_LETTERS) continue;
      name.textContent = short(cut);
      name.style.left = `${start}px`;
      name.style.width = `${end - start}px`;
      lane.names.append(name);
    }
  };
  const draw = () => {
    for (const lane of lanes) {
      lane.svg.setAttribute("viewBox", `${from * WIDTH} 0 ${(to - from) * WIDTH} ${lane.height}`);
      drawNames(lane);
    }
    drawTicks();
    for (const lane of lanes) lane.plot.classList.toggle("grab", to - from < 1);
  };
  let pending = false;
  const show = (newFrom, newTo) => {
    const span = Math.min(1, Math.max(1 / MOST_ZOOM, newTo - newFrom));
    from = Math.min(1 - span, Math.max(0, newFrom));
    to = from + span;
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  };
  const zoom = (by, around = 0.5) => {
    const span = Math.min(1, Math.max(1 / MOST_ZOOM, (to - from) / by));
    const fixed = from + around * (to - from);
    show(fixed - around * span, fixed + (1 - around) * span);
  };
  const move = (share) => show(from + share * (to - from), to + share * (to - from));
  const reset = () => show(0, 1);

  const across = (event) => {
    const box = lanes[0].plot.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
  };
  const heldAt = (lane, x) => {
    let low = 0, high = lane.steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.steps[middle][0] <= x) low = middle + 1; else high = middle;
    }
    return low ? lane.steps[low - 1][1] : null;
  };
  const markAt = (plot, x) => { // some marks are low: what is above them belongs to them too
    const marks = lanes.find((lane) => lane.plot === plot)?.marks ?? [];
    return marks.findLast((each) => each.x <= x && x < each.x + each.width)?.mark;
  };
  const hide = () => {
    tip.hidden = true;
    for (const cursor of picture.querySelectorAll(".cursor")) cursor.hidden = true;
  };
  const look = (event) => {
    const share = across(event);
    if (share < 0 || share > 1 || !event.target.closest(".tracks")) return hide();
    const at = from + share * (to - from);
    for (const cursor of picture.querySelectorAll(".cursor")) {
      cursor.hidden = false;
      cursor.style.left = `${lanes[0].plot.offsetLeft + share * lanes[0].plot.clientWidth}px`;
    }
    const held = lanes.filter((lane) => lane.steps.length).map((lane) => `${lane.plot.dataset.name} ${bytes(heldAt(lane, at * WIDTH) ?? 0)}`);
    const mark = event.target.closest(MARK) ?? markAt(event.target.closest(".plot"), at * WIDTH);
    const what = mark ? `${text(mark)}\n` : "";
    tip.textContent = `${what}at ${moment(at * total, (to - from) * total / 1000)}: ${held.join(", ")}`;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = Math.min(event.clientY + 16, innerHeight - box.height - 4);
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  };

  let dragged = null;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.target.closest(".plot") || to - from === 1) return;
    dragged = { pointer: event.pointerId, share: across(event) };
    picture.setPointerCapture(event.pointerId);
    picture.classList.add("grabbing");
  });
  picture.addEventListener("pointermove", (event) => {
    if (!dragged || dragged.pointer !== event.pointerId) return look(event);
    const share = across(event);
    move(dragged.share - share);
    dragged.share = share;
    hide();
  });
  const drop = () => { dragged = null; picture.classList.remove("grabbing"); };
  picture.addEventListener("pointerup", drop);
  picture.addEventListener("pointercancel", drop);
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("wheel", (event) => {
    // a plain wheel scrolls the page, as everywhere
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) / 200), Math.min(1, Math.max(0, across(event))));
  }, { passive: false });
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), "0": reset, ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  for (const button of picture.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", { in: () => zoom(2), out: () => zoom(0.5), reset }[button.dataset.zoom]);
  }
  addEventListener("resize", () => show(from, to));
  for (const element of picture.querySelectorAll(".zoom, .hint")) element.hidden = false;
  draw();
})();
