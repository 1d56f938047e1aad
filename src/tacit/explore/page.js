// The page: settings, sliders, readings. Everything is computed and drawn inside one event.

const LONGEST = 60; // the time that is computed; the slider shows a part of it
const STEPS_AT_ONCE = 3e5; // a mean over orders with more steps waits until the reader pauses, so that sliders stay quick
const PAUSE = 40; // milliseconds
const FIRST = {
  rate: -18, batchSize: 2, inner: 1, strength: 0, momentum: 0, noise: 1, order: "shuffled", seed: 3,
  time: 60, a: 2.2, b: 0.1,
};
const FIRST_SHOWN = {
  flow: true, gd: true, sgd: true, mean: true, run: true, contoursC: true, contoursModified: true, commutator: false, limits: true,
};
const ORDERS = [
  ["shuffled", "shuffled every epoch"],
  ["fixed", "one order, repeated"],
  ["mirrored", "there and back"],
  ["with_replacement", "with replacement"],
];
const short = (x) => (x === 0 ? "0" : x < 0.001 || x >= 1000 ? x.toExponential(1) : String(Number(x.toPrecision(2))));
const SLIDERS = [
  { key: "rate", text: "learning rate <i>ε</i>", min: -24, max: -4, step: 1, say: (k) => short(2 ** (k / 4)) },
  { key: "batchSize", text: "batch size <i>B</i>", choices: BATCH_SIZES, say: (size) => `${size} (m = ${TRAIN_SIZE / size})` },
  { key: "inner", text: "steps per minibatch <i>n</i>", min: 1, max: 4, step: 1, say: String },
  { key: "strength", text: "explicit penalty <i>λ</i>", min: 0, max: 0.3, step: 0.005, say: (x) => x.toFixed(3) },
  { key: "momentum", text: "momentum <i>β</i>", min: 0, max: 0.9, step: 0.05, say: (x) => x.toFixed(2) },
  { key: "noise", text: "noise of labels <i>σ</i>", min: 0, max: 1.5, step: 0.05, say: (x) => x.toFixed(2) },
  { key: "seed", text: "seed of the orders", min: 0, max: 19, step: 1, say: String },
];

const $ = (id) => document.getElementById(id);
let chosen = { ...FIRST };
let shown = { ...FIRST_SHOWN };
let world = null;
let view = null;
const answers = []; // milliseconds from a slider's event to the finished picture

// What the formulas take: ε itself, and n = 1 with momentum.
const settingsOf = (values) => ({ ...values, rate: 2 ** (values.rate / 4), inner: values.momentum > 0 ? 1 : values.inner });

// All paths for some settings. Flow times are denser at the start, where everything is fast.
function compute(settings) {
  const problem = makeProblem(settings);
  const start = [settings.a, settings.b];
  const epochs = Math.ceil(LONGEST / (problem.m * settings.rate));
  const orders = ordersOf(settings.order, problem.m, epochs, settings.seed);
  const at = Array.from({ length: 240 }, (_, i) => LONGEST * (i / 239) ** 2);
  const fields = {
    flow: modifiedField(problem, settings, "C"),
    gd: modifiedField(problem, settings, "GD"),
    sgd: modifiedField(problem, settings, "SGD"),
  };
  if (settings.momentum === 0 && settings.order !== "with_replacement") fields.order = fixedOrderField(problem, settings, orders[0]);
  const flows = Object.fromEntries(Object.entries(fields).map(([key, field]) => [key, flow(field, start, at)]));
  return { problem, orders, at, fields, flows, mean: [], run: run(problem, settings, orders, start) };
}

// The mean over orders depends neither on the seed nor on the time shown.
let keptMean = { key: "", path: [] };
let later = null;

function addMean(settings, { wait }) {
  clearTimeout(later);
  const { problem, orders } = world;
  world.pending = false;
  if (!canEnumerate(problem, settings.order)) return;
  const key = JSON.stringify({ ...settings, seed: 0, time: 0 });
  const steps = (orders.length / epochsPerMean(settings.order)) * stepsPerMean(problem.m, settings.order) * settings.inner;
  if (key !== keptMean.key) {
    if (wait && steps > STEPS_AT_ONCE) {
      world.pending = true;
      later = setTimeout(() => (addMean(settings, { wait: false }), draw()), PAUSE);
      return;
    }
    const path = meanPath(problem, settings, settings.order, [settings.a, settings.b], orders.length);
    keptMean = { key, path };
  }
  world.mean = keptMean.path;
}

// Every flow at a time between two of its points.
function flowAt(made, key, time) {
  const before = Math.max(0, made.at.filter((t) => t <= time).length - 1);
  return flow(made.fields[key], made.flows[key][before], [time - made.at[before]])[0];
}

function draw() {
  const settings = settingsOf(chosen);
  world.ends = Object.fromEntries(Object.keys(world.fields).map((key) => [key, flowAt(world, key, settings.time)]));
  view = drawPicture($("canvas"), settings, shown, world);
  const [x, y] = view.toPixels([settings.a, settings.b]);
  $("handle").style.left = `${x}px`;
  $("handle").style.top = `${y}px`;
  report(settings);
}

function change(values) {
  chosen = { ...chosen, ...values };
  if (world === null || Object.keys(values).some((key) => key !== "time")) {
    world = compute(settingsOf(chosen));
    addMean(settingsOf(chosen), { wait: true });
  }
  showValues();
  draw();
}

function answer(values) {
  const began = performance.now();
  change(values);
  answers.push(performance.now() - began);
  $("latency").textContent = `The last slider was answered in ${answers[answers.length - 1].toFixed(0)} ms.`;
}

// -- readings ----------------------------------------------------------------------------------------------------------
function report(settings) {
  const { problem, mean: path } = world;
  const { full, variance } = weights(problem, settings, "SGD");
  $("formula").innerHTML =
    `<b class="sgd">C̃<sub>SGD</sub></b> = C + ${short(full)} · ¼‖∇C‖² + ${short(variance)} · ¼ mean‖∇Ĉ<sub>k</sub> − ∇C‖²`;
  const duration = epochsPerMean(settings.order) * problem.m * settings.rate;
  const index = Math.floor(settings.time / duration);
  const names = { flow: "gradient flow of C", gd: "flow of C̃<sub>GD</sub>", sgd: "flow of C̃<sub>SGD</sub>" };
  const rows = Object.entries(names).map(([key, name]) => {
    const there = path[index];
    const away = there ? norm(add(there, scale(-1, flowAt(world, key, index * duration)))) : null;
    return { key, name, away };
  });
  const most = Math.max(...rows.map((row) => row.away ?? 0), 1e-12);
  $("distances").innerHTML = rows
    .map(({ key, name, away }) => {
      const wide = away === null ? 0 : Math.max(1, (100 * away) / most);
      const number = away === null ? "–" : short(away);
      return `<tr><td>${name}</td><td class="number">${number}</td>
        <td class="bar"><div style="width:${wide}%;background:var(--c-${key})"></div></td></tr>`;
    })
    .join("");
  $("one-order").innerHTML = oneOrder(settings);
  const start = [settings.a, settings.b];
  const found = regime(problem, settings, start);
  const words = { inside: "inside", "at the edge": "at the border of", outside: "outside" };
  $("regime").textContent =
    `At the start: mε‖H‖ = ${short(found.reach)}, next term of the series over the first ${short(found.ratio)}: ` +
    `${words[found.verdict]} the range of the theory.`;
  const share = edge(settings, found.curvature);
  $("stability").textContent =
    share < 1 ? `The start is at ${short(share)} of the edge of stability.` : `The start is beyond the edge of stability (${short(share)}).`;
  $("note").textContent = noteFor(settings);
}

// How far one repeated order is from the flow with its commutator, and from the flow without it.
function oneOrder(settings) {
  const updates = world.problem.m * Math.floor(settings.time / (world.problem.m * settings.rate));
  const there = world.run[updates];
  if (settings.order !== "fixed" || !world.fields.order || !there) return "";
  const [own, common] = ["order", "sgd"].map((key) =>
    short(norm(add(there, scale(-1, flowAt(world, key, updates * settings.rate))))),
  );
  return `This one order ends ${own} from the flow with its <b class="commutator">commutator</b>, and ${common} from that of
    <b class="sgd">C̃<sub>SGD</sub></b>.`;
}

function noteFor(settings) {
  const { run: path, orders, problem, mean: means, pending } = world;
  if (path.length <= orders.length * problem.m) return "This run diverged: it left every bound.";
  if (pending) return "Averaging over all orders …";
  if (means.length === 0) return `${problem.m ** problem.m} sequences are too many to average: no mean is drawn. Use a larger batch.`;
  if (means.length * epochsPerMean(settings.order) < orders.length) return "The mean diverged.";
  if (chosen.momentum > 0 && chosen.inner > 1) return "n is 1 while β is above 0: the two are not combined here.";
  return "";
}

// -- controls ----------------------------------------------------------------------------------------------------------
function buildControls() {
  for (const { key, text, min, max, step, choices } of SLIDERS) {
    const range = choices ? [0, choices.length - 1, 1] : [min, max, step];
    $("sliders").insertAdjacentHTML(
      "beforeend",
      `<div class="row"><label for="${key}">${text}</label>
       <input id="${key}" type="range" min="${range[0]}" max="${range[1]}" step="${range[2]}">
       <output id="${key}-value" for="${key}"></output></div>`,
    );
    $(key).addEventListener("input", (event) => {
      const value = Number(event.target.value);
      answer({ [key]: choices ? choices[value] : value });
    });
  }
  const options = ORDERS.map(([value, text]) => `<option value="${value}">${text}</option>`).join("");
  const row = `<div class="row"><label for="order">order of minibatches</label><select id="order">${options}</select></div>`;
  $("sliders").insertAdjacentHTML("beforeend", row);
  $("order").addEventListener("input", (event) => answer({ order: event.target.value }));
  $("time").addEventListener("input", (event) => answer({ time: Number(event.target.value) }));
  for (const { key, text, colour, shape } of CURVES) {
    const ink = `var(--${colour ?? `c-${key}`})`;
    $("legend").insertAdjacentHTML("beforeend", `<li><label><input type="checkbox" id="show-${key}">${swatch(shape, ink)}<span>${text}</span></label></li>`);
    $(`show-${key}`).addEventListener("change", (event) => {
      shown = { ...shown, [key]: event.target.checked };
      draw();
    });
  }
}

function swatch(shape, ink) {
  const line = (width, dashes = "") => `<path d="M1 7H25" stroke="${ink}" stroke-width="${width}" stroke-dasharray="${dashes}"/>`;
  const shapes = {
    square: `${line(2.6)}<rect x="16" y="3" width="8" height="8" fill="${ink}"/>`,
    triangle: `${line(2.6)}<path d="M20 1l5 10h-10z" fill="${ink}"/>`,
    disc: `${line(2.6)}<circle cx="20" cy="7" r="5" fill="${ink}"/>`,
    ring: `<circle cx="3" cy="7" r="2.4" fill="${ink}"/><circle cx="11" cy="7" r="2.4" fill="${ink}"/>
      <circle cx="21" cy="7" r="5.5" fill="none" stroke="${ink}" stroke-width="2.4"/>`,
    none: line(1),
    thin: line(1.2),
    arrow: `${line(2.4, "6 3")}<path d="M20 2l5 5-5 5" fill="none" stroke="${ink}" stroke-width="2"/>`,
    region: `<rect x="1" y="1" width="24" height="12" fill="${ink}" opacity="0.25"/><path d="M1 13V1" stroke="${ink}" stroke-width="2"/>`,
  };
  return `<svg aria-hidden="true">${shapes[shape]}</svg>`;
}

function showValues() {
  for (const { key, choices, say } of SLIDERS) {
    $(key).value = choices ? choices.indexOf(chosen[key]) : chosen[key];
    $(`${key}-value`).textContent = say(chosen[key]);
    $(key).setAttribute("aria-valuetext", say(chosen[key]));
  }
  $("inner").disabled = chosen.momentum > 0;
  if (chosen.momentum > 0) $("inner-value").textContent = "1";
  $("order").value = chosen.order;
  $("time").value = chosen.time;
  $("time-value").textContent = chosen.time.toFixed(1);
  for (const { key } of CURVES) $(`show-${key}`).checked = shown[key];
}

// "rate=-12&order=fixed" on top of the first picture; also understood after # in the page's address.
function preset(text) {
  const values = { ...FIRST };
  shown = { ...FIRST_SHOWN };
  for (const [key, value] of new URLSearchParams(text)) {
    if (key in FIRST_SHOWN) shown[key] = value === "1";
    else if (key === "order" && ORDERS.some(([name]) => name === value)) values.order = value;
    else if (key in FIRST && key !== "order" && Number.isFinite(Number(value))) values[key] = Number(value);
  }
  if (!BATCH_SIZES.includes(values.batchSize)) values.batchSize = FIRST.batchSize;
  for (const { key, min, max } of SLIDERS) if (min !== undefined) values[key] = Math.min(max, Math.max(min, values[key]));
  values.time = Math.min(LONGEST, Math.max(0, values.time));
  change(moved(values, [values.a, values.b]));
}

// The starting point stays inside the picture.
function moved(values, [a, b]) {
  return { ...values, a: Math.min(2.7, Math.max(-0.1, a)), b: Math.min(1.6, Math.max(-0.2, b)) };
}

function listen() {
  const handle = $("handle");
  let dragging = false;
  handle.addEventListener("pointerdown", (event) => {
    dragging = true;
    handle.setPointerCapture(event.pointerId);
  });
  handle.addEventListener("pointermove", (event) => {
    if (!dragging) return;
    const box = $("canvas").getBoundingClientRect();
    change(moved({}, view.fromPixels(event.clientX - box.left, event.clientY - box.top)));
  });
  for (const end of ["pointerup", "pointercancel"]) handle.addEventListener(end, () => (dragging = false));
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
    if (!step) return;
    event.preventDefault();
    change(moved({}, add([chosen.a, chosen.b], step)));
  });
  for (const button of document.querySelectorAll("[data-preset]"))
    button.addEventListener("click", () => preset(button.dataset.preset));
  $("reset").addEventListener("click", () => preset(""));
  $("play").addEventListener("click", () => (playing ? stop() : play()));
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  prefers.addEventListener("change", () => setTheme(prefers.matches ? "dark" : "light"));
  new ResizeObserver(() => world && draw()).observe($("canvas"));
}

// -- playing -----------------------------------------------------------------------------------------------------------
let playing = null;

function play() {
  let last = null;
  if (chosen.time >= LONGEST) change({ time: 0 });
  const frame = (now) => {
    const passed = last === null ? 0 : (now - last) / 1000;
    last = now;
    change({ time: Math.min(LONGEST, chosen.time + 8 * passed) });
    playing = chosen.time < LONGEST ? requestAnimationFrame(frame) : null;
    $("play").textContent = playing ? "❚❚" : "▶";
  };
  playing = requestAnimationFrame(frame);
}

function stop() {
  cancelAnimationFrame(playing);
  playing = null;
  $("play").textContent = "▶";
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  if (world) draw();
}

const address = new URLSearchParams(location.hash.slice(1));
setTheme(address.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
buildControls();
listen();
preset(location.hash.slice(1));
