// One metric of every run of a study while it trains, on a canvas: thousands of lines are cheap there.

const inPercent = (value) => `${(100 * value).toFixed(1)} %`;
const accuracy = { best: Math.max, better: (a, b) => b - a, text: inPercent, scaled: (value) => 100 * value, tick: (at) => `${at} %` };
// Losses of runs that diverge are a million times those of others: powers of ten.
const loss = { best: Math.min, better: (a, b) => a - b, text: (value) => String(Number(value.toPrecision(3))),
  scaled: (value) => Math.log10(Math.max(value, 1e-12)), tick: (at) => String(Number((10 ** at).toPrecision(2))) };
const METRICS = {
  test_accuracy: { words: "test accuracy", ...accuracy },
  train_accuracy: { words: "training accuracy", ...accuracy },
  full_loss: { words: "training loss", ...loss },
};

const AXES = [
  ["learning_rate", "learning rate ε"], ["strength", "strength λ"], ["batch_size", "batch size B"],
  ["inner_steps", "inner steps n"], ["seed", "seed"],
];

// The setting with the most values tells the curves apart; seeds only where nothing else differs.
function varying(curves) {
  const counts = AXES.map(([key]) => new Set(curves.map((curve) => curve[key])).size);
  counts[counts.length - 1] = Math.min(counts[counts.length - 1], 1.5);
  return AXES[counts.indexOf(Math.max(...counts))];
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
function written(value) {
  const exponent = Math.log2(value);
  if (value > 0 && !Number.isInteger(value) && Math.abs(exponent - Math.round(exponent)) < 1e-9)
    return "2" + [...String(Math.round(exponent))].map((c) => SUPERSCRIPTS[c]).join("");
  return String(Number(Number(value).toPrecision(3)));
}

// From blue over green to orange, dark enough on white and light enough on black.
const shade = (part, dark) => `hsl(${Math.round(225 - 200 * part)} ${dark ? 75 : 70}% ${dark ? 66 : 40}%)`;

function ticksOf(low, high, most) {
  const raw = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((each) => each >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(6)));
  return found;
}

// The curves of these fleets that have a point.
const linesOf = (fleets) => fleets.flatMap((fleet) =>
  fleet.curves.filter((curve) => curve.values.length).map((curve) => ({ ...curve, fleet, epochs: fleet.epochs })));

const MOST_ENTRIES = 12; // of a legend
// Draws the curves of these fleets; returns a legend: texts and their colours. `chosen` is a fleet to put in front.
function drawCurves(canvas, fleets, chosen, metric) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !height) return [];
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  const dark = document.documentElement.dataset.theme === "dark";
  pen.font = "12px system-ui, sans-serif";
  const lines = linesOf(fleets);
  if (!lines.length) {
    pen.fillStyle = style.getPropertyValue("--soft");
    pen.fillText("No run has been evaluated yet.", 8, 20);
    return [];
  }
  const [key, words] = varying(lines);
  const values = [...new Set(lines.map((line) => line[key]))].sort((a, b) => a - b);
  const part = (value) => (values.length > 1 ? values.indexOf(value) / (values.length - 1) : 0);
  let [last, low, high] = [0, Infinity, -Infinity];
  for (const line of lines) {
    last = Math.max(last, line.epochs[line.values.length - 1]);
    for (const value of line.values) [low, high] = [Math.min(low, metric.scaled(value)), Math.max(high, metric.scaled(value))];
  }
  const margin = (high - low) * 0.05 || 0.01;
  const [left, right, top, bottom] = [52, width - 16, 22, height - 34];
  const x = (epoch) => left + (epoch / (last || 1)) * (right - left);
  const y = (scaled) => bottom - ((scaled - low + margin) / (high - low + 2 * margin)) * (bottom - top);
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineWidth = 1;
  pen.fillText(metric.words, 2, 13);
  pen.textAlign = "right";
  for (const tick of ticksOf(low - margin, high + margin, 5)) {
    pen.beginPath(), pen.moveTo(left, y(tick)), pen.lineTo(right, y(tick)), pen.stroke();
    pen.fillText(metric.tick(tick), left - 5, y(tick) + 4);
  }
  pen.textAlign = "center";
  for (const tick of ticksOf(0, last, width / 90)) pen.fillText(String(tick), x(tick), bottom + 15);
  pen.fillText("epochs", (left + right) / 2, height - 4);
  const ordered = [...lines].sort((a, b) => (a.fleet.id === chosen) - (b.fleet.id === chosen));
  for (const line of ordered) {
    const front = line.fleet.id === chosen;
    pen.globalAlpha = chosen ? (front ? 1 : 0.12) : lines.length > 200 ? 0.35 : 0.7;
    pen.lineWidth = front ? 2 : 1.2;
    pen.strokeStyle = pen.fillStyle = shade(part(line[key]), dark);
    pen.beginPath();
    line.values.forEach((value, i) => pen[i ? "lineTo" : "moveTo"](x(line.epochs[i]), y(metric.scaled(value))));
    pen.stroke();
    if (line.values.length === 1) pen.beginPath(), pen.arc(x(line.epochs[0]), y(metric.scaled(line.values[0])), 2, 0, 7), pen.fill();
  }
  pen.globalAlpha = 1;
  if (values.length === 1) return [[`All runs have ${words} ${written(values[0])}.`]];
  const shown = values.length <= MOST_ENTRIES ? values : [values[0], values[Math.floor(values.length / 2)], values[values.length - 1]];
  return [[`${words}:`], ...shown.map((value) => [written(value), shade(part(value), dark)])];
}
