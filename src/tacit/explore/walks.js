// SGD on the minibatches, its mean over orders, and flows.

// One update: n inner steps on Ĉₖ + (λ/4)‖∇Ĉₖ‖², with momentum as torch.optim.SGD has it. A state is a, b and the buffer,
// four numbers in a row of `states`. It is read at `from` and written at `to`: the mean over orders does this a million
// times, and new arrays would cost more than the arithmetic.
function update(states, from, to, target, alpha, settings) {
  const { inner, momentum } = settings;
  const half = settings.strength / 2;
  let a = states[from];
  let b = states[from + 1];
  let va = states[from + 2];
  let vb = states[from + 3];
  for (let i = 0; i < inner; i++) {
    const e = a * b - target;
    const mixed = a * b + e; // the Hessian's entry off the diagonal
    const ga = e * b;
    const gb = e * a;
    va = momentum * va + ga + half * (b * b * ga + mixed * gb);
    vb = momentum * vb + gb + half * (mixed * ga + a * a * gb);
    a -= alpha * va;
    b -= alpha * vb;
  }
  states[to] = a;
  states[to + 1] = b;
  states[to + 2] = va;
  states[to + 3] = vb;
}

const isBounded = (state) => Math.abs(state[0]) + Math.abs(state[1]) < 1e3;

// ω₀, ω₁, … along the orders, one point per update, as long as it stays bounded.
function run(problem, settings, orders, start) {
  const alpha = bareRate(settings);
  const state = Float64Array.of(start[0], start[1], 0, 0);
  const points = [start];
  for (const order of orders)
    for (const k of order) {
      update(state, 0, 0, problem.targets[k], alpha, settings);
      if (!isBounded(state)) return points;
      points.push([state[0], state[1]]);
    }
  return points;
}

// The mean state after one epoch over all orders; mirrored: after two, there and back; with replacement: all sequences.
// Orders share their beginnings, so they are walked as a tree, with one state per depth.
function meanEpoch(problem, settings, kind, start) {
  const { targets, m } = problem;
  const alpha = bareRate(settings);
  const states = new Float64Array(4 * (m + 2));
  states.set(start);
  const used = new Array(m).fill(false);
  const path = new Array(m).fill(0);
  const sum = new Float64Array(4);
  let count = 0;
  const visit = (depth) => {
    const here = 4 * depth;
    if (depth === m) {
      let end = here;
      if (kind === "mirrored")
        for (let i = m - 1; i >= 0; i--) {
          update(states, end, here + 4, targets[path[i]], alpha, settings);
          end = here + 4;
        }
      for (let i = 0; i < 4; i++) sum[i] += states[end + i];
      count += 1;
      return;
    }
    for (let k = 0; k < m; k++) {
      if (used[k]) continue;
      used[k] = kind !== "with_replacement";
      path[depth] = k;
      update(states, here, here + 4, targets[k], alpha, settings);
      visit(depth + 1);
      used[k] = false;
    }
  };
  visit(0);
  return sum.map((total) => total / count);
}

const canEnumerate = (problem, kind) => kind !== "with_replacement" || problem.m ** problem.m <= ENUMERATED_SEQUENCES;

// How many updates `meanEpoch` makes: the nodes of its tree, and the way back.
function stepsPerMean(m, kind) {
  let [nodes, leaves] = [0, 1];
  for (let depth = 0; depth < m; depth++) {
    leaves *= kind === "with_replacement" ? m : m - depth;
    nodes += leaves;
  }
  return nodes + (kind === "mirrored" ? m * leaves : 0);
}

const epochsPerMean = (kind) => (kind === "mirrored" ? 2 : 1);

// The mean path: every epoch starts at the mean of the one before. With momentum its points are
// z = ω + β/(1−β)·(ω − previous ω), which is what follows the modified loss.
function meanPath(problem, settings, kind, start, epochs) {
  const shift = (bareRate(settings) * settings.momentum) / (1 - settings.momentum);
  let state = Float64Array.of(start[0], start[1], 0, 0);
  const points = [start];
  for (let epoch = 0; epoch < epochs; epoch += epochsPerMean(kind)) {
    state = meanEpoch(problem, settings, kind, state);
    if (!isBounded(state)) break;
    points.push([state[0] - shift * state[2], state[1] - shift * state[3]]);
  }
  return points;
}

// -- flows: Dormand and Prince's pair of order 5 and 4, error per step below TOLERANCE -----------------------------------
const TOLERANCE = 1e-12;
const STAGES = [
  [1 / 5],
  [3 / 40, 9 / 40],
  [44 / 45, -56 / 15, 32 / 9],
  [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
  [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
];
const FOURTH_ORDER = [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40];

const combined = (w, h, coefficients, slopes) => {
  let [a, b] = w;
  for (let i = 0; i < coefficients.length; i++) {
    a += h * coefficients[i] * slopes[i][0];
    b += h * coefficients[i] * slopes[i][1];
  }
  return [a, b];
};

// ω(t) at each of the increasing times, from ω(0) = start.
function flow(field, start, at) {
  let [t, w, slope] = [0, start, field(start)];
  let h = 1e-3;
  return at.map((end) => {
    while (t < end) {
      const step = Math.min(h, end - t);
      const slopes = [slope];
      let next = w;
      for (const row of STAGES) {
        next = combined(w, step, row, slopes);
        slopes.push(field(next));
      }
      const other = combined(w, step, FOURTH_ORDER, slopes);
      const error = norm([next[0] - other[0], next[1] - other[1]]) / (1 + norm(w));
      if (error <= TOLERANCE || step < 1e-9) {
        t = step === end - t ? end : t + step;
        [w, slope] = [next, slopes[6]]; // the last slope of a step is the first of the next
        if (step === h) h *= Math.min(3, 0.9 * (TOLERANCE / Math.max(error, 1e-30)) ** 0.2);
      } else h = step * (Number.isFinite(error) ? Math.max(0.2, 0.9 * (TOLERANCE / error) ** 0.2) : 0.2);
    }
    return w;
  });
}
