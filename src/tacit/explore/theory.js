// The formulas of the page, float64, with the names of `tacit.theory`. tests/explore compares them with Python.
//
// Six examples, two parameters w = [a, b]:  Cⱼ(a, b) = ½ (a b − yⱼ)².  A minibatch k has the mean label targets[k], so
// gₖ = eₖ (b, a),  Hₖ = [[b², ab + eₖ], [ab + eₖ, a²]],  eₖ = ab − targets[k].

const DEVIATIONS = [5, -3, 3, 1, -1, -5]; // mean 0; means of pairs 1, 2, −3: their variance is 0.4 of the examples'
const STANDARD_DEVIATION = Math.sqrt(35 / 3);
const TRAIN_SIZE = DEVIATIONS.length;
const BATCH_SIZES = [1, 2, 3, 6];
const ENUMERATED_SEQUENCES = 5000; // as in tacit.theory.orders: more draws with replacement are not enumerated

const dot = (u, v) => u[0] * v[0] + u[1] * v[1];
const add = (u, v) => [u[0] + v[0], u[1] + v[1]];
const scale = (c, v) => [c * v[0], c * v[1]];
const norm = (v) => Math.hypot(v[0], v[1]);
const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
const meanVector = (vectors) => scale(1 / vectors.length, vectors.reduce(add, [0, 0]));
const times = (H, v) => [dot(H[0], v), dot(H[1], v)];

function makeProblem({ batchSize, noise }) {
  const labels = DEVIATIONS.map((deviation) => 1 + (noise * deviation) / STANDARD_DEVIATION);
  const batches = [];
  for (let i = 0; i < TRAIN_SIZE; i += batchSize) batches.push(labels.slice(i, i + batchSize));
  const targets = batches.map(mean);
  const within = batches.map((batch, k) => mean(batch.map((y) => (y - targets[k]) ** 2)));
  return { labels, targets, within, m: batches.length };
}

// -- losses and their derivatives --------------------------------------------------------------------------------------
const minibatchLoss = (problem, k, [a, b]) => ((a * b - problem.targets[k]) ** 2 + problem.within[k]) / 2;
const gradientFor = (target, [a, b]) => [(a * b - target) * b, (a * b - target) * a];
const hessianFor = (target, [a, b]) => [
  [b * b, 2 * a * b - target],
  [2 * a * b - target, a * a],
];
const minibatchGradients = (problem, w) => problem.targets.map((target) => gradientFor(target, w));
const loss = (problem, w) => mean(problem.targets.map((_, k) => minibatchLoss(problem, k, w)));
// Equal minibatches, and H depends on the label linearly: the full batch is a minibatch with the mean label.
const fullTarget = (problem) => mean(problem.targets);
const gradient = (problem, w) => gradientFor(fullTarget(problem), w);
const hessian = (problem, w) => hessianFor(fullTarget(problem), w);
// T[u, v], the same for every label.
const third = ([a, b], u, v) => {
  const mixed = u[0] * v[1] + u[1] * v[0];
  return [2 * b * mixed + 2 * a * u[1] * v[1], 2 * b * u[0] * v[0] + 2 * a * mixed];
};

// -- modified losses: C + Σ weight · regularizer -----------------------------------------------------------------------
const QUARTER = 1 / 4; // one step of length ε on C is the flow of C + ε · ¼‖∇C‖²
const squared = (v) => dot(v, v);
const fullGradientRegularizer = (problem, w) => QUARTER * squared(gradient(problem, w)); // ¼‖∇C‖²
const implicitRegularizer = (problem, w) => QUARTER * mean(minibatchGradients(problem, w).map(squared)); // C_reg
const varianceRegularizer = (problem, w) => implicitRegularizer(problem, w) - fullGradientRegularizer(problem, w);

// ρ: what momentum leaves of the penalty on the variance; 1 without momentum.
function momentumVarianceFactor(m, momentum) {
  if (m === 1) return 1;
  let sum = 0;
  for (let n = 1; n < m; n++) sum += (m - n) * (1 - momentum ** n);
  return (2 / (m * (m - 1))) * sum;
}

// Weights of ¼‖∇C‖² and of the variance part in each modified loss; ε is the effective rate nα, or α/(1−β) with momentum.
function weights(problem, { rate, inner, strength, momentum }, name) {
  if (name === "C") return { full: 0, variance: 0 };
  const full = strength + ((rate / inner) * (1 + momentum)) / (1 - momentum);
  const ownVariance = (rate / inner) * momentumVarianceFactor(problem.m, momentum);
  if (name === "GD") return { full, variance: strength }; // no minibatches, the same explicit penalty
  return { full, variance: strength + ownVariance };
}

function modifiedLoss(problem, settings, name, w) {
  const { full, variance } = weights(problem, settings, name);
  return loss(problem, w) + full * fullGradientRegularizer(problem, w) + variance * varianceRegularizer(problem, w);
}

// −∇ of the same, by ∇(¼‖g‖²) = ½ H g and ∇(variance part) = ½ (⟨Hₖgₖ⟩ − H g).
function modifiedField(problem, settings, name) {
  const { full, variance } = weights(problem, settings, name);
  const target = fullTarget(problem);
  return (w) => {
    const g = gradientFor(target, w);
    const own = times(hessianFor(target, w), g);
    const each = variance === 0 ? own : meanVector(problem.targets.map((y) => times(hessianFor(y, w), gradientFor(y, w))));
    const along = (i) => -(g[i] + (full / 2) * own[i] + (variance / 2) * (each[i] - own[i]));
    return [along(0), along(1)];
  };
}

// -- one order ---------------------------------------------------------------------------------------------------------
// (1/m)(ξ − E ξ) = (1/2m) Σ_{j<k} [fⱼ, fₖ] with [fⱼ, fₖ] = Hₖ gⱼ − Hⱼ gₖ: what one order adds to −∇C̃_SGD, times ε.
function commutator(problem, order, w) {
  const g = minibatchGradients(problem, w);
  let sum = [0, 0];
  for (let j = 0; j < problem.m; j++)
    for (let k = j + 1; k < problem.m; k++) {
      const [first, second] = [order[j], order[k]];
      const there = times(hessianFor(problem.targets[second], w), g[first]);
      const back = times(hessianFor(problem.targets[first], w), g[second]);
      sum = add(sum, [there[0] - back[0], there[1] - back[1]]);
    }
  return scale(1 / (2 * problem.m), sum);
}

function fixedOrderField(problem, settings, order) {
  const field = modifiedField(problem, settings, "SGD");
  return (w) => add(field(w), scale(settings.rate, commutator(problem, order, w)));
}

// -- how far the series reaches ----------------------------------------------------------------------------------------
// φ₁ and φ₂ of the mean over orders; see tacit.theory.corrections.
const firstCorrection = (problem, w) =>
  scale(-1 / 2, meanVector(problem.targets.map((y) => times(hessianFor(y, w), gradientFor(y, w)))));

function secondCorrection(problem, w, inner) {
  const { targets, m } = problem;
  const H = hessian(problem, w);
  const g = gradient(problem, w);
  const own = targets.map((y) => {
    const [Hk, gk] = [hessianFor(y, w), gradientFor(y, w)];
    return add(scale(-1 / 3, times(Hk, times(Hk, gk))), scale(-1 / 12, third(w, gk, gk)));
  });
  const bracket = targets.map((y) => {
    const [Hk, gk] = [hessianFor(y, w), gradientFor(y, w)];
    const terms = [
      times(Hk, times(Hk, g)),
      times(H, times(Hk, gk)),
      scale(-2, times(Hk, times(H, gk))),
      third(w, gk, gk),
      scale(-1, third(w, gk, g)),
    ];
    return terms.reduce(add, [0, 0]);
  });
  return add(scale(1 / inner ** 2, meanVector(own)), scale(-m / 12, meanVector(bracket)));
}

// The eigenvalue of H that is largest in size.
function curvature(problem, w) {
  const [[p, q], [, r]] = hessian(problem, w);
  const [middle, radius] = [(p + r) / 2, Math.hypot((p - r) / 2, q)];
  return Math.max(Math.abs(middle + radius), Math.abs(middle - radius));
}

const INSIDE = { ratio: 0.25, reach: 1 }; // as in tacit.theory.validity
const OUTSIDE = { ratio: 1, reach: 4, step: 1 };

function regime(problem, { rate, inner }, w) {
  const sharpness = curvature(problem, w);
  const reach = problem.m * rate * sharpness;
  const first = norm(firstCorrection(problem, w)) / inner;
  const ratio = (rate * norm(secondCorrection(problem, w, inner))) / Math.max(first, 1e-300);
  let verdict = "inside";
  if (reach > INSIDE.reach || ratio > INSIDE.ratio) verdict = "at the edge";
  if (reach >= OUTSIDE.reach || rate * sharpness >= OUTSIDE.step || ratio >= OUTSIDE.ratio) verdict = "outside";
  return { curvature: sharpness, reach, ratio, verdict };
}

// α h (1 + λh/2) / (2(1 + β)) with the bare rate α: above 1 a step overshoots more than it gains, and iterates grow.
const bareRate = ({ rate, inner, momentum }) => (rate * (1 - momentum)) / inner;
const edge = (settings, h) =>
  (bareRate(settings) * h * (1 + (settings.strength * h) / 2)) / (2 * (1 + settings.momentum));

// -- orders ------------------------------------------------------------------------------------------------------------
function randomNumbers(seed) {
  let state = (seed * 7919 + 1) % 2147483647; // Lehmer's generator: products stay below 2^53
  const next = () => (state = (state * 48271) % 2147483647) / 2147483647;
  next();
  return next;
}

function shuffle(m, random) {
  const order = Array.from({ length: m }, (_, k) => k);
  for (let k = m - 1; k > 0; k--) {
    const other = Math.floor(random() * (k + 1));
    [order[k], order[other]] = [order[other], order[k]];
  }
  return order;
}

// Which minibatch comes when, one row per epoch. "fixed" is one order that the seed chose, in every epoch.
function ordersOf(kind, m, epochs, seed) {
  const random = randomNumbers(seed);
  const rows = [];
  for (let epoch = 0; epoch < epochs; epoch++) {
    if (kind === "with_replacement") rows.push(Array.from({ length: m }, () => Math.floor(random() * m)));
    else if (kind === "fixed" && epoch > 0) rows.push(rows[0]);
    else if (kind === "mirrored" && epoch % 2 === 1) rows.push([...rows[epoch - 1]].reverse());
    else rows.push(shuffle(m, random));
  }
  return rows;
}
