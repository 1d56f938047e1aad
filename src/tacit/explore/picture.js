// Drawing: the plane of the two weights on one canvas.

const CURVES = [
  { key: "flow", text: "gradient flow of C", shape: "square" },
  { key: "gd", text: "flow of C̃<sub>GD</sub>", shape: "triangle" },
  { key: "sgd", text: "flow of C̃<sub>SGD</sub>", shape: "disc" },
  { key: "mean", text: "SGD, mean over all orders", shape: "ring" },
  { key: "run", text: "SGD, one run (pale: every update)", shape: "none" },
  { key: "contoursC", text: "contours of C", colour: "soft", shape: "thin" },
  { key: "contoursModified", text: "contours of C̃<sub>SGD</sub>", colour: "c-sgd", shape: "thin" },
  { key: "commutator", text: "one order: its commutator and flow", shape: "arrow" },
  { key: "limits", text: "where the series breaks, and the edge", colour: "c-edge", shape: "region" },
];
const CONTOUR_LEVELS = [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32]; // above the lowest value in the picture
const COLUMNS = 108;
const DOTS = 20;

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
};

// The part of the plane that the canvas shows: at least 3 × 2 around (1.3, 0.7), with equal scales on both axes.
function viewOf(width, height) {
  const pixels = Math.min(width / 3, height / 2);
  const [wide, high] = [width / pixels, height / pixels];
  const view = { left: 1.3 - wide / 2, bottom: 0.7 - high / 2, width: wide, height: high };
  view.toPixels = ([a, b]) => [(a - view.left) * pixels, height - (b - view.bottom) * pixels];
  view.fromPixels = (x, y) => [x / pixels + view.left, (height - y) / pixels + view.bottom];
  return view;
}

function drawPicture(canvas, settings, shown, world) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const colour = colours();
  const view = viewOf(width, height);
  pen.fillStyle = colour("paper");
  pen.fillRect(0, 0, width, height);
  drawLandscape(pen, view, settings, shown, world.problem, colour);
  drawAxes(pen, view, width, height, colour);
  const until = world.at.filter((t) => t <= settings.time).length;
  if (shown.run) drawRun(pen, view, settings, world, colour);
  for (const [key, shape] of [["flow", "square"], ["gd", "triangle"], ["sgd", "disc"]])
    if (shown[key]) drawFlow(pen, view, [...world.flows[key].slice(0, until), world.ends[key]], shape, colour(`c-${key}`));
  if (shown.commutator && world.flows.order) drawCommutator(pen, view, settings, world, until, colour);
  if (shown.mean) drawMean(pen, view, settings, world, colour);
  return view;
}

function strokeSegments(pen, view, segments) {
  pen.beginPath();
  for (let i = 0; i < segments.length; i += 4) {
    pen.moveTo(...view.toPixels([segments[i], segments[i + 1]]));
    pen.lineTo(...view.toPixels([segments[i + 2], segments[i + 3]]));
  }
  pen.stroke();
}

// The grids that depend on the data and the view alone: they stay while ε, λ, β, n, order and time change.
let kept = { key: "", grids: null };
function gridsOf(view, problem) {
  const key = JSON.stringify([view, problem]);
  if (kept.key !== key) {
    const functions = { loss, full: fullGradientRegularizer, variance: varianceRegularizer, curvature };
    const grids = Object.entries(functions).map(([name, f]) => [name, gridOf(view, COLUMNS, (w) => f(problem, w))]);
    kept = { key, grids: Object.fromEntries(grids) };
  }
  return kept.grids;
}

function modifiedGrid(grids, problem, settings) {
  const { full, variance } = weights(problem, settings, "SGD");
  const sum = (value, i) => value + full * grids.full.values[i] + variance * grids.variance.values[i];
  return { ...grids.loss, values: grids.loss.values.map(sum) };
}

function drawLandscape(pen, view, settings, shown, problem, colour) {
  const grids = gridsOf(view, problem);
  const plain = grids.loss;
  const floor = Math.min(...plain.values);
  // Darker where C is larger; the square root shows the valley's floor.
  tint(pen, view, plain, colour("shade").split(","), (value) => 0.35 * Math.min(1, Math.sqrt(value - floor)));
  const lines = (grid, stroke, alpha, lineWidth) => {
    const lowest = Math.min(...grid.values);
    pen.strokeStyle = stroke;
    pen.lineWidth = lineWidth;
    pen.globalAlpha = alpha;
    for (const level of CONTOUR_LEVELS) strokeSegments(pen, view, contour(grid, lowest + level));
    pen.globalAlpha = 1;
  };
  if (shown.contoursC) lines(plain, colour("soft"), 0.45, 0.8);
  if (shown.contoursModified) lines(modifiedGrid(grids, problem, settings), colour("c-sgd"), 0.55, 1);
  if (shown.limits) drawLimits(pen, view, settings, problem, grids.curvature, colour);
}

// The grid as a tint: `opacity(value)` in each point, smooth between points.
function tint(pen, view, grid, rgb, opacity) {
  const [wide, high] = [grid.columns + 1, grid.rows + 1];
  const image = new ImageData(wide, high);
  for (let j = 0; j < high; j++)
    for (let i = 0; i < wide; i++)
      image.data.set([...rgb, 255 * opacity(grid.values[j * wide + i])], 4 * ((high - 1 - j) * wide + i));
  const small = document.createElement("canvas");
  [small.width, small.height] = [wide, high];
  small.getContext("2d").putImageData(image, 0, 0);
  const [left, top] = view.toPixels([view.left, view.bottom + view.height]);
  const [right, bottom] = view.toPixels([view.left + view.width, view.bottom]);
  // The centres of the outer points lie on the border of the view.
  const [halfX, halfY] = [(right - left) / grid.columns / 2, (bottom - top) / grid.rows / 2];
  pen.drawImage(small, left - halfX, top - halfY, right - left + 2 * halfX, bottom - top + 2 * halfY);
}

function drawLimits(pen, view, settings, problem, curvatures, colour) {
  const reach = { ...curvatures, values: curvatures.values.map((h) => problem.m * settings.rate * h) };
  const edges = { ...curvatures, values: curvatures.values.map((h) => edge(settings, h)) };
  tint(pen, view, edges, colour("edge").split(","), (value) => (value >= 1 ? 0.16 : 0));
  drawLimit(pen, view, contour(edges, 1), colour("c-edge"), "edge");
  drawLimit(pen, view, contour(reach, INSIDE.reach), colour("c-reach"), "mε‖H‖ = 1");
  drawLimit(pen, view, contour(reach, OUTSIDE.reach), colour("c-reach"), "mε‖H‖ = 4");
}

function drawLimit(pen, view, segments, stroke, text) {
  if (segments.length === 0) return;
  pen.strokeStyle = stroke;
  pen.lineWidth = 1.6;
  strokeSegments(pen, view, segments);
  let best = 0; // the text stands at the lowest place of the line
  for (let i = 0; i < segments.length; i += 4) if (segments[i + 1] < segments[best + 1]) best = i;
  const [x, y] = view.toPixels([segments[best], segments[best + 1]]);
  pen.font = "12px system-ui, sans-serif";
  const wide = pen.measureText(text).width;
  pen.fillStyle = stroke;
  pen.textAlign = "left";
  const right = view.toPixels([view.left + view.width, 0])[0];
  pen.fillText(text, Math.min(Math.max(4, x + 5), right - wide - 8), y - 24);
}

function drawAxes(pen, view, width, height, colour) {
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  pen.lineWidth = 1;
  pen.font = "12px system-ui, sans-serif";
  const ticks = (low, size) => Array.from({ length: 12 }, (_, i) => 0.5 * i - 1).filter((v) => v > low && v < low + size);
  pen.textAlign = "center";
  for (const a of ticks(view.left, view.width)) pen.fillText(a === 0 ? "0" : a.toFixed(1), view.toPixels([a, 0])[0], height - 5);
  pen.textAlign = "left";
  const belowName = ticks(view.bottom, view.height).filter((b) => view.toPixels([0, b])[1] > 32);
  for (const b of belowName) pen.fillText(b === 0 ? "0" : b.toFixed(1), 5, view.toPixels([0, b])[1] + 4);
  pen.font = "italic 15px Georgia, serif";
  pen.textAlign = "right";
  pen.fillText("a", width - 8, height - 6);
  pen.fillText("b", 17, 17);
}

function polyline(pen, view, points) {
  pen.beginPath();
  points.forEach((point, i) => (i ? pen.lineTo(...view.toPixels(point)) : pen.moveTo(...view.toPixels(point))));
  pen.stroke();
}

function mark(pen, [x, y], shape, colour, size) {
  pen.fillStyle = colour;
  pen.beginPath();
  if (shape === "square") pen.rect(x - size, y - size, 2 * size, 2 * size);
  else if (shape === "triangle") {
    pen.moveTo(x, y - 1.3 * size);
    pen.lineTo(x + 1.2 * size, y + size);
    pen.lineTo(x - 1.2 * size, y + size);
    pen.closePath();
  } else pen.arc(x, y, size, 0, 2 * Math.PI);
  pen.fill();
}

function drawFlow(pen, view, points, shape, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 2.6;
  pen.lineJoin = "round";
  polyline(pen, view, points);
  mark(pen, view.toPixels(points[points.length - 1]), shape, colour, 6);
}

// Every update, pale. One order that is repeated, or walked there and back, also as a line through the ends of its
// epochs: that line is what a flow can follow.
function drawRun(pen, view, settings, world, colour) {
  const points = world.run.slice(0, Math.floor(settings.time / settings.rate) + 1);
  pen.strokeStyle = colour("c-run");
  pen.lineJoin = "bevel";
  pen.lineWidth = 1;
  pen.globalAlpha = 0.25;
  polyline(pen, view, points);
  pen.globalAlpha = 1;
  if (settings.order !== "fixed" && settings.order !== "mirrored") return;
  const stride = epochsPerMean(settings.order) * world.problem.m;
  pen.lineWidth = 2;
  polyline(pen, view, points.filter((_, i) => i % stride === 0));
}

function drawMean(pen, view, settings, world, colour) {
  const duration = epochsPerMean(settings.order) * world.problem.m * settings.rate;
  const last = Math.min(Math.floor(settings.time / duration), world.mean.length - 1);
  const stride = Math.max(1, Math.floor(world.mean.length / DOTS));
  for (let i = 0; i < last; i += stride) mark(pen, view.toPixels(world.mean[i]), "disc", colour("c-mean"), 4);
  if (last < 0) return;
  const [x, y] = view.toPixels(world.mean[last]);
  pen.strokeStyle = colour("c-mean");
  pen.lineWidth = 3;
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  pen.stroke();
}

// The flow of −∇C̃_SGD + ε · commutator, and ε · commutator as arrows: a velocity, drawn for one unit of time.
function drawCommutator(pen, view, settings, world, until, colour) {
  const points = [...world.flows.order.slice(0, until), world.ends.order];
  const stroke = colour("c-commutator");
  pen.setLineDash([7, 4]);
  drawFlow(pen, view, points, "disc", stroke);
  pen.setLineDash([]);
  for (let i = 1; i <= 4; i++) {
    const point = points[Math.floor((i * (points.length - 1)) / 4)];
    const arrow = scale(settings.rate, commutator(world.problem, world.orders[0], point));
    const [x, y] = view.toPixels(point);
    const [endX, endY] = view.toPixels(add(point, arrow));
    const angle = Math.atan2(endY - y, endX - x);
    pen.lineWidth = 1.8;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(endX, endY);
    for (const side of [-0.5, 0.5]) {
      pen.moveTo(endX, endY);
      pen.lineTo(endX - 9 * Math.cos(angle + side), endY - 9 * Math.sin(angle + side));
    }
    pen.stroke();
  }
}
