// How far apart curves lie when their axis is ε / B^share; as in tacit.report.collapse_score, which a test compares.

// The mean accuracy of the runs at each (batch size, learning rate), sorted by both.
function pointsOf(runs) {
  const found = new Map();
  for (const run of runs) {
    const key = `${run.batchSize} ${run.rate}`;
    if (!found.has(key)) found.set(key, { batchSize: run.batchSize, rate: run.rate, runs: [] });
    found.get(key).runs.push(run);
  }
  const points = [...found.values()].sort((p, q) => p.batchSize - q.batchSize || p.rate - q.rate);
  for (const point of points) point.accuracy = point.runs.reduce((sum, run) => sum + run.accuracy, 0) / point.runs.length;
  return points;
}

const exponent = (point, share) => Math.log2(point.rate) - share * Math.log2(point.batchSize);

// One curve at one place, linear in log₂; null outside its range.
function readOff(curve, at, share) {
  for (let i = 0; i + 1 < curve.length; i++) {
    const [left, right] = [exponent(curve[i], share), exponent(curve[i + 1], share)];
    if (left - 1e-9 > at || at > right + 1e-9) continue;
    const part = Math.min(1, Math.max(0, (at - left) / (right - left)));
    return (1 - part) * curve[i].accuracy + part * curve[i + 1].accuracy;
  }
  return null;
}

// The mean of the other curves at a point's place; null where none reaches it.
function predicted(points, point, share) {
  const sizes = [...new Set(points.map((other) => other.batchSize))].filter((size) => size !== point.batchSize);
  const readings = sizes
    .map((size) => readOff(points.filter((other) => other.batchSize === size), exponent(point, share), share))
    .filter((reading) => reading !== null);
  return readings.length ? readings.reduce((sum, x) => sum + x, 0) / readings.length : null;
}

const scoredPoints = (points) =>
  points.filter((point) => predicted(points, point, 0) !== null && predicted(points, point, 1) !== null);

// The root of the mean squared distance between a point and the other curves.
function gap(points, share) {
  const scored = scoredPoints(points);
  const squares = scored.map((point) => (point.accuracy - predicted(points, point, share)) ** 2);
  return Math.sqrt(squares.reduce((sum, x) => sum + x, 0) / squares.length);
}
