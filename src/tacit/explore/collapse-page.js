// The page of the collapse: two pictures and one slider.

const $ = (id) => document.getElementById(id);
let [sweep, points, sizes, GAPS] = [null, [], [], []];
const PALETTE = ["c-sgd", "c-mean", "c-gd", "c-commutator", "c-flow", "c-edge"];
const colourOf = (size) => PALETTE[sizes.indexOf(size) % PALETTE.length];
const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)} %`;
const superscript = (k) => String(k).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));
let share = 0;

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const style = getComputedStyle(document.documentElement);
  pen.font = "13px system-ui, sans-serif";
  return { pen, width, height, colour: (name) => style.getPropertyValue(`--${name}`).trim() };
}

// Straight axes: from values to pixels, with ticks.
function frame({ pen, width, height, colour }, xs, ys, xTicks, yTicks, title) {
  const [left, right, top, bottom] = [58, width - 14, 14, height - 44];
  const x = (value) => left + ((value - xs[0]) / (xs[1] - xs[0])) * (right - left);
  const y = (value) => bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (bottom - top);
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("soft");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  for (const [value, text] of yTicks) {
    pen.beginPath();
    pen.moveTo(left, y(value));
    pen.lineTo(right, y(value));
    pen.stroke();
    pen.fillText(text, left - 6, y(value) + 4);
  }
  pen.textAlign = "center";
  for (const [value, text] of xTicks) pen.fillText(text, x(value), bottom + 18);
  pen.fillStyle = colour("ink");
  pen.fillText(title, (left + right) / 2, height - 8);
  return { x, y };
}

const titleOf = () =>
  share === 0 ? `${sweep.words} ${sweep.symbol}` : share === 1 ? `${sweep.words} over batch size ${sweep.ratioSymbol}`
    : `${sweep.symbol} / B to the power ${share.toFixed(2)}`;
const drawn = () => points.filter((point) => point.runs.length);

function drawAccuracies() {
  const sheet = prepare($("accuracies"));
  const places = drawn().map((point) => exponent(point, share));
  const xs = [Math.min(...places) - 0.4, Math.max(...places) + 0.4];
  const values = drawn().flatMap((point) => point.runs.map((run) => run.accuracy));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ys = [low - 0.06 * (high - low), high + 0.06 * (high - low)];
  const stride = Math.max(1, Math.ceil((xs[1] - xs[0]) / (sheet.width / 52)));
  const xTicks = [];
  for (let k = Math.ceil(xs[0]); k <= xs[1]; k++) if (k % stride === 0) xTicks.push([k, `2${superscript(k)}`]);
  const yTicks = [];
  const tick = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1].find((size) => (ys[1] - ys[0]) / size <= 7) ?? 0.2;
  for (let v = Math.ceil(ys[0] / tick) * tick; v <= ys[1]; v += tick) yTicks.push([v, percent(v)]);
  const { x, y } = frame(sheet, xs, ys, xTicks, yTicks, titleOf());
  const { pen, colour } = sheet;
  for (const size of sizes) {
    const curve = drawn().filter((point) => point.batchSize === size).sort((p, q) => p.x - q.x);
    pen.strokeStyle = pen.fillStyle = colour(colourOf(size));
    pen.lineWidth = 2.6;
    pen.lineJoin = "round";
    curve.slice(1).forEach((point, i) => {
      pen.globalAlpha = point.counts && curve[i].counts ? 1 : 0.3;
      pen.beginPath();
      pen.moveTo(x(exponent(curve[i], share)), y(heightOf(curve[i])));
      pen.lineTo(x(exponent(point, share)), y(heightOf(point)));
      pen.stroke();
    });
    pen.globalAlpha = 1;
    pen.lineWidth = 1.6;
    for (const point of curve)
      for (const run of point.runs) {
        const [px, py] = [x(exponent(point, share)), y(run.accuracy)];
        pen.beginPath();
        if (run.diverged) {
          pen.moveTo(px - 4, py - 4), pen.lineTo(px + 4, py + 4), pen.moveTo(px - 4, py + 4), pen.lineTo(px + 4, py - 4);
          pen.stroke();
        } else {
          pen.arc(px, py, 3, 0, 2 * Math.PI);
          pen.globalAlpha = point.counts ? 0.55 : 0.2;
          pen.fill();
          pen.globalAlpha = 1;
        }
      }
  }
}

function drawGaps() {
  const sheet = prepare($("gaps"));
  if (!GAPS.length) return void sheet.pen.fillText("Too few points of different curves lie over each other.", 8, 20);
  const most = Math.max(...GAPS.map((entry) => entry.gap), 1e-4) * 1.1;
  const tick = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05].find((size) => most / size <= 4) ?? 0.1;
  const yTicks = [];
  for (let v = 0; v <= most; v += tick) yTicks.push([v, (100 * v).toFixed(tick < 0.001 ? 2 : 1)]);
  const xTicks = [[0, sweep.symbol], [1, sweep.ratioSymbol]];
  const { x, y } = frame(sheet, [0, 1], [0, most], xTicks, yTicks, "points of test accuracy");
  const { pen, colour } = sheet;
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  pen.beginPath();
  GAPS.forEach(({ share: at, gap: value }, i) => pen[i ? "lineTo" : "moveTo"](x(at), y(value)));
  pen.stroke();
  pen.fillStyle = colour("c-mean");
  pen.beginPath();
  pen.arc(x(share), y(gap(points, share) ?? 0), 6, 0, 2 * Math.PI);
  pen.fill();
}

function draw() {
  const began = performance.now();
  drawAccuracies();
  drawGaps();
  const here = (value) => (gap(points, value) === null ? "unknown" : (100 * gap(points, value)).toFixed(2));
  const { ratio } = sweep.report;
  $("reading").textContent =
    `Here: ${here(share)} points. Against ${sweep.symbol}: ${here(0)}, against ${sweep.ratioSymbol}: ${here(1)} ` +
    `(${scoredPoints(points).length} points count).` + (ratio === null ? "" : ` The second over the first, with its 95 % interval: ${ratio}; 0 is a perfect collapse.`);
  $("share").setAttribute("aria-valuetext", titleOf());
  $("latency").textContent = `The slider was answered in ${(performance.now() - began).toFixed(0)} ms.`;
}

// A button moves the slider in half a second, or at once for readers who asked for less motion.
function glide(target) {
  const [from, began] = [share, performance.now()];
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const step = (now) => {
    const part = still ? 1 : Math.min(1, (now - began) / 500);
    share = part === 1 ? target : from + (target - from) * part;
    $("share").value = share;
    draw();
    if (part < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  draw();
}

const heightOf = (point) => point.runs.reduce((sum, run) => sum + run.accuracy, 0) / point.runs.length;

// Rates without a penalty, or strengths: the other axis starts at the same end of the slider.
function chooseSweep(number) {
  sweep = DATA.sweeps[number];
  points = sweep.points;
  sizes = [...new Set(points.map((point) => point.batchSize))].sort((a, b) => a - b);
  GAPS = Array.from({ length: 51 }, (_, i) => ({ share: i / 50, gap: gap(points, i / 50) })).filter((entry) => entry.gap !== null);
  $("facts").textContent = sweep.facts;
  $("to-rate").textContent = sweep.symbol;
  $("to-ratio").textContent = sweep.ratioSymbol;
  $("share").setAttribute("aria-label", `Axis: from ${sweep.symbol} to ${sweep.ratioSymbol}`);
  $("legend").innerHTML = sizes
    .map((size) => `<li><svg aria-hidden="true"><path d="M1 7H25" stroke="var(--${colourOf(size)})" stroke-width="3"/></svg> B = ${size}</li>`)
    .join("");
  [...$("sweeps").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
}

DATA.sweeps.forEach(({ words, symbol, ratioSymbol }, number) => {
  const button = document.createElement("button");
  button.textContent = `${words}: ${symbol} or ${ratioSymbol}`;
  button.addEventListener("click", () => (chooseSweep(number), draw()));
  $("sweeps").append(button);
});
$("sweeps").hidden = DATA.sweeps.length < 2;
chooseSweep(0);
$("share").addEventListener("input", (event) => {
  share = Number(event.target.value);
  draw();
});
$("to-rate").addEventListener("click", () => glide(0));
$("to-ratio").addEventListener("click", () => glide(1));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
const address = new URLSearchParams(location.hash.slice(1));
const prefers = matchMedia("(prefers-color-scheme: dark)");
prefers.addEventListener("change", () => setTheme(prefers.matches ? "dark" : "light"));
share = Math.min(1, Math.max(0, Number(address.get("share")) || 0));
$("share").value = share;
setTheme(address.get("theme") ?? (prefers.matches ? "dark" : "light"));
new ResizeObserver(draw).observe($("accuracies"));
