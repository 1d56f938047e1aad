// How far apart curves lie when their axis is x / B^share; as in tacit.report.collapse_score, which a test compares.

const exponent = (point, share) => Math.log2(point.x) - share * Math.log2(point.batchSize);
const TOLERANCE = 1e-9;

// One curve at one place, linear in log₂: its points with their weights; null outside its range.
function readOff(curve, at, share) {
  for (let i = 0; i + 1 < curve.length; i++) {
    const [left, right] = [exponent(curve[i], share), exponent(curve[i + 1], share)];
    if (left - TOLERANCE > at || at > right + TOLERANCE) continue;
    const width = right - left;
    const part = width > TOLERANCE ? Math.min(1, Math.max(0, (at - left) / width)) : 0.5;
    return [[curve[i], 1 - part], [curve[i + 1], part]];
  }
  return curve.length === 1 && Math.abs(exponent(curve[0], share) - at) <= TOLERANCE ? [[curve[0], 1]] : null;
}

// A point minus the mean of the other curves at its place, as points with weights; null where none reaches it.
function difference(curves, point, share) {
  const readings = [...curves]
    .filter(([size]) => size !== point.batchSize)
    .map(([, curve]) => readOff(curve, exponent(point, share), share))
    .filter((reading) => reading !== null);
  if (!readings.length) return null;
  return [[point, 1], ...readings.flat().map(([other, weight]) => [other, -weight / readings.length])];
}

// The curves of the points that count, by batch size.
function curvesOf(points) {
  const found = new Map();
  for (const point of points.filter((each) => each.counts)) {
    if (!found.has(point.batchSize)) found.set(point.batchSize, []);
    found.get(point.batchSize).push(point);
  }
  for (const curve of found.values()) curve.sort((p, q) => p.x - q.x);
  return found;
}

// Points that other curves reach at both ends of the slider: both variables are judged on the same points.
function scoredPoints(points) {
  const curves = curvesOf(points);
  return [...curves.values()].flat().filter((point) => [0, 1].every((end) => difference(curves, point, end) !== null));
}

// The root of the mean squared distance between a point and the other curves, without what the runs' scatter adds.
function gap(points, share) {
  const curves = curvesOf(points);
  let [sum, count] = [0, 0];
  for (const point of scoredPoints(points)) {
    const parts = difference(curves, point, share);
    if (parts === null) continue; // between the ends a point may be out of reach
    const distance = parts.reduce((total, [other, weight]) => total + weight * other.accuracy, 0);
    const noise = parts.reduce((total, [other, weight]) => total + weight * weight * other.variance, 0);
    sum += distance * distance - noise;
    count++;
  }
  return count ? Math.sqrt(Math.max(sum, 0) / count) : null;
}
