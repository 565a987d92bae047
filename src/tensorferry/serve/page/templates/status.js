"use strict";
const SECONDS = 120;
const byId = (id) => document.getElementById(id);
const cards = new Map();
let models = [];
let apiKey = sessionStorage.getItem("ferry-key") ?? "";

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

async function ask(path, body) {
  const headers = apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  const response = await fetch(path, body === undefined ? { headers } : { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) });
  const value = await response.json();
  if (response.status === 401) byId("locked").hidden = false;
  if (!response.ok) throw new Error(value.error ?? response.statusText);
  return value;
}

// ---- what the server does -------------------------------------------------------------------------------------------

function makeCard(key) {
  const card = make("article", "card");
  card.dataset.model = key;
  const top = card.appendChild(make("div", "top"));
  const view = { card, name: top.appendChild(make("h2")), state: top.appendChild(make("span", "pill")), samples: [] };
  view.tensors = card.appendChild(make("div", "tensors"));
  view.reason = card.appendChild(make("p", "reason"));
  view.live = card.appendChild(make("div"));
  view.paths = {};
  view.tops = {}; // what the top of each chart stands for
  for (const [title, kinds] of [["Requests a second", ["rate"]], ["Latency, median and 95 %", ["p50", "p95"]]]) {
    const heading = view.live.appendChild(make("h3", "", title));
    view.tops[kinds[0]] = heading.appendChild(make("span"));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${SECONDS} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${title}, over the last two minutes`);
    for (const kind of kinds) {
      view.paths[kind] = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      view.paths[kind].setAttribute("class", kind);
    }
    view.live.appendChild(svg);
  }
  const ago = view.live.appendChild(make("div", "ago soft"));
  ago.append(make("span", "", "2 min ago"), make("span", "", "now"));
  const figures = view.live.appendChild(make("div", "figures"));
  view.figures = {};
  for (const [name, words] of [["rate", "a second"], ["p50", "median"], ["p95", "95 %"], ["waiting", "waiting"]]) {
    const box = figures.appendChild(make("div"));
    view.figures[name] = box.appendChild(make("b", `of-${name}`, "–"));
    box.appendChild(make("span", "", words));
  }
  view.totals = view.live.appendChild(make("p", "soft reason"));
  byId("models").appendChild(card);
  cards.set(key, view);
  return view;
}

function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let seen = 0;
  for (let i = 0; i < counts.length; i += 1) {
    if (seen + counts[i] >= share * total && counts[i]) {
      const low = i ? bounds[i - 1] : 0;
      const high = bounds[i] ?? bounds.at(-1) * 2;
      return low + ((share * total - seen) / counts[i]) * (high - low);
    }
    seen += counts[i];
  }
  return bounds.at(-1);
}

function addSample(view, figures) {
  const now = performance.now() / 1000;
  const last = view.last;
  view.last = { now, figures };
  if (!last) return;
  const seconds = now - last.now;
  const counts = figures.counts.map((count, i) => count - last.figures.counts[i]);
  if (counts.some((count) => count < 0)) return; // the model was loaded again
  view.samples.push({
    now,
    rate: (figures.success - last.figures.success) / seconds,
    p50: quantile(figures.bounds, counts, 0.5),
    p95: quantile(figures.bounds, counts, 0.95),
  });
  while (view.samples[0].now < now - SECONDS) view.samples.shift();
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${(seconds * 1000).toPrecision(seconds < 0.1 ? 2 : 3)} ms` : `${seconds.toPrecision(3)} s`;
}

const formatRate = (rate) => rate.toFixed(rate < 10 ? 1 : 0);

function draw(view) {
  const now = performance.now() / 1000;
  for (const kinds of [["rate"], ["p50", "p95"]]) {
    const top = Math.max(1e-9, ...view.samples.flatMap((sample) => kinds.map((kind) => sample[kind] ?? 0)));
    view.tops[kinds[0]].textContent = top > 1e-9 ? `up to ${kinds[0] === "rate" ? formatRate(top) : formatSeconds(top)}` : "";
    for (const kind of kinds) {
      const points = view.samples
        .filter((sample) => sample[kind] !== null)
        .map((sample) => `${(SECONDS - (now - sample.now)).toFixed(2)} ${(100 - (92 * sample[kind]) / top).toFixed(2)}`);
      view.paths[kind].setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    }
  }
  const sample = view.samples.at(-1);
  view.figures.rate.textContent = sample ? formatRate(sample.rate) : "–";
  view.figures.p50.textContent = formatSeconds(sample?.p50);
  view.figures.p95.textContent = formatSeconds(sample?.p95);
}

const describe = (tensor) => `${tensor.name} ${tensor.datatype} [${tensor.shape.join(", ")}]`;

function show(status) {
  const numReady = status.index.filter((line) => line.state === "READY").length;
  byId("ready").textContent = `${numReady} of ${status.index.length} models ready`;
  byId("head").className = status.server.ready ? "fits" : "waiting";
  byId("server").textContent = `${status.server.version} · ${status.under_way} requests under way`;
  byId("none").hidden = status.index.length > 0;
  const served = new Map(status.models.map((model) => [`${model.name}/${model.version}`, model]));
  const keys = new Set();
  for (const line of status.index) {
    const key = `${line.name}/${line.version}`;
    keys.add(key);
    const view = cards.get(key) ?? makeCard(key);
    const model = served.get(key);
    view.name.textContent = line.version ? `${line.name} · ${line.version}` : line.name;
    view.state.textContent = line.state.toLowerCase();
    view.state.className = `pill ${line.state}`;
    view.reason.textContent = line.reason;
    view.live.hidden = !model;
    view.tensors.hidden = !model;
    if (!model) continue;
    view.tensors.textContent = `${model.inputs.map(describe).join("; ")} → ${model.outputs.map(describe).join("; ")}`;
    view.figures.waiting.textContent = String(model.waiting);
    const f = model.figures;
    view.totals.textContent = `${f.success} answered, ${f.fail} failed, ${
      f.executions ? (f.inferences / f.executions).toFixed(1) : "–"} rows a batch · ${model.platform}`;
    addSample(view, f);
    draw(view);
  }
  for (const [key, view] of cards) {
    if (!keys.has(key)) {
      view.card.remove();
      cards.delete(key);
    }
  }
  offer(status.models);
}

async function refresh() {
  try {
    show(await ask("/status"));
    byId("locked").hidden = true;
  } catch (error) {
    byId("ready").textContent = "No answer";
    byId("head").className = "over";
    byId("server").textContent = error.message;
  }
  setTimeout(refresh, 1000);
}

// ---- trying a model -------------------------------------------------------------------------------------------------

function offer(served) {
  const names = served.map((model) => `${model.name}/${model.version}`);
  byId("try").hidden = !names.length;
  const same = names.join("\n") === models.map((model) => `${model.name}/${model.version}`).join("\n");
  models = served;
  if (same) return;
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => {
    const option = make("option", "", name);
    option.value = name;
    return option;
  }));
  select.value = names.includes(chosen) ? chosen : names[0] ?? "";
  if (select.value !== chosen) offerInputs();
}

const chosenModel = () => models.find((model) => `${model.name}/${model.version}` === byId("model").value);
const ownShape = (model, tensor) => (model.max_batch_size ? tensor.shape.slice(1) : tensor.shape);

function imageLayout(sizes) {
  const inner = sizes.length === 4 && [1, -1].includes(sizes[0]) ? sizes.slice(1) : sizes;
  if (inner.length !== 3) return null;
  const size = (n) => (n > 0 ? n : 224);
  if ([1, 3].includes(inner[0])) return { channels: inner[0], height: size(inner[1]), width: size(inner[2]), first: true };
  if ([1, 3].includes(inner[2])) return { channels: inner[2], height: size(inner[0]), width: size(inner[1]), first: false };
  return null;
}

function offerInputs() {
  const model = chosenModel();
  byId("answer").replaceChildren();
  byId("inputs").replaceChildren(...(model ? model.inputs.map((tensor) => offerInput(model, tensor)) : []));
}

function offerInput(model, tensor) {
  const sizes = ownShape(model, tensor);
  const box = make("div");
  box.dataset.input = tensor.name;
  const layout = tensor.datatype === "BYTES" ? null : imageLayout(sizes);
  if (layout) {
    offerImage(box, tensor, layout);
    return box;
  }
  const label = box.appendChild(make("label", "", describe(tensor)));
  const area = label.appendChild(make("textarea"));
  if (tensor.datatype === "BYTES") {
    area.value = "a sentence";
    box.read = () => readText(area.value, sizes);
  } else {
    const count = sizes.reduce((product, size) => product * (size > 0 ? size : 4), 1);
    const zero = tensor.datatype === "BOOL" ? "false" : "0";
    area.value = count <= 4096 ? `[${Array(count).fill(zero).join(", ")}]` : "[]";
    box.read = async () => {
      const data = JSON.parse(area.value).flat(Infinity);
      return { shape: fit(sizes, data.length), data };
    };
  }
  return box;
}

function fit(sizes, count) {
  const known = sizes.filter((size) => size > 0).reduce((product, size) => product * size, 1);
  let rest = Math.floor(count / known);
  return sizes.map((size) => {
    if (size > 0) return size;
    const taken = rest;
    rest = 1;
    return taken;
  });
}

async function readText(text, sizes) {
  const count = sizes.reduce((product, size) => product * (size > 0 ? size : 1), 1);
  const data = count === 1 ? [text] : text.split("\n");
  return { shape: fit(sizes, data.length), data };
}

const SCALES = {
  "0 to 1": (v) => v / 255,
  "-1 to 1": (v) => v / 127.5 - 1,
  "0 to 255": (v) => v,
  "ImageNet mean and deviation": (v, c) => (v / 255 - [0.485, 0.456, 0.406][c]) / [0.229, 0.224, 0.225][c],
};

function offerImage(box, tensor, layout) {
  box.appendChild(make("h3", "", describe(tensor)));
  const drop = box.appendChild(make("label", "drop", "Drop an image, or choose one"));
  const picker = drop.appendChild(make("input"));
  picker.type = "file";
  picker.accept = "image/*";
  const image = drop.appendChild(make("img"));
  image.alt = "";
  const label = box.appendChild(make("label", "", "Values"));
  const scale = label.appendChild(make("select"));
  for (const name of Object.keys(SCALES)) scale.appendChild(make("option", "", name));
  if (tensor.datatype.includes("INT")) scale.value = "0 to 255";
  const take = (file) => {
    if (image.src) URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(file);
  };
  picker.addEventListener("change", () => picker.files[0] && take(picker.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
    });
  }
  box.read = async () => {
    if (!image.src) throw new Error(`choose an image for ${tensor.name}`);
    await image.decode();
    return { shape: withBatchOf(ownShape(chosenModel(), tensor), layout), data: readPixels(image, layout, SCALES[scale.value]) };
  };
}

function withBatchOf(sizes, { channels, height, width, first }) {
  const inner = first ? [channels, height, width] : [height, width, channels];
  return sizes.length === 4 ? [1, ...inner] : inner;
}

function readPixels(image, { channels, height, width, first }, scale) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const data = new Array(channels * height * width);
  for (let at = 0; at < height * width; at += 1) {
    for (let c = 0; c < channels; c += 1) {
      const value = channels === 1 ? (pixels[4 * at] + pixels[4 * at + 1] + pixels[4 * at + 2]) / 3 : pixels[4 * at + c];
      data[first ? c * height * width + at : at * channels + c] = scale(value, c);
    }
  }
  return data;
}

async function send(event) {
  event.preventDefault();
  const model = chosenModel();
  const answer = byId("answer");
  byId("send").disabled = true;
  try {
    const inputs = await Promise.all([...byId("inputs").children].map(async (box) => {
      const tensor = model.inputs.find((each) => each.name === box.dataset.input);
      const { shape, data } = await box.read();
      const whole = tensor.datatype.includes("INT") ? data.map(Math.round) : data;
      return { name: tensor.name, datatype: tensor.datatype, shape: model.max_batch_size ? [1, ...shape] : shape, data: whole };
    }));
    const path = `/v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}/infer`;
    const started = performance.now();
    const response = await ask(path, { inputs });
    const took = make("p", "soft reason", `answered in ${formatSeconds((performance.now() - started) / 1000)}`);
    answer.replaceChildren(took, ...response.outputs.flatMap((output) => showOutput(model, output)));
  } catch (error) {
    answer.replaceChildren(make("p", "reason no", error.message));
  } finally {
    byId("send").disabled = false;
  }
}

function showOutput(model, output) {
  const title = make("h3", "", describe(output));
  const labels = model.labels[output.name];
  const isScores = output.datatype !== "BYTES" && output.data.length > 1 && (labels || output.data.length >= 10) && output.data.length <= 100000;
  if (!isScores) {
    const text = JSON.stringify(output.data);
    return [title, make("pre", "", text.length > 4000 ? `${text.slice(0, 4000)} …` : text)];
  }
  const best = output.data.map((score, index) => ({ score, index })).sort((a, b) => b.score - a.score).slice(0, 5);
  const low = Math.min(0, best.at(-1).score);
  const table = make("table");
  for (const { score, index } of best) {
    const row = table.appendChild(make("tr"));
    row.appendChild(make("td", "", labels?.[index] ?? `#${index}`));
    row.appendChild(make("td", "soft", score.toPrecision(4)));
    const bar = row.appendChild(make("td")).appendChild(make("div", "bar"));
    bar.style.width = `${(100 * (score - low)) / (best[0].score - low || 1)}%`;
  }
  return [title, table];
}

byId("model").addEventListener("change", offerInputs);
byId("form").addEventListener("submit", send);
byId("locked").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey = byId("api-key").value;
  sessionStorage.setItem("ferry-key", apiKey);
});
refresh();
