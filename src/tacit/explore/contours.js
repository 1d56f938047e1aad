// Values of a function on a grid, and its contour lines by marching squares.

function gridOf(view, columns, value) {
  const rows = Math.max(2, Math.round((columns * view.height) / view.width));
  const values = new Float64Array((columns + 1) * (rows + 1));
  for (let j = 0; j <= rows; j++)
    for (let i = 0; i <= columns; i++)
      values[j * (columns + 1) + i] = value([view.left + (i / columns) * view.width, view.bottom + (j / rows) * view.height]);
  return { columns, rows, values, view };
}

// The line segments [x1, y1, x2, y2, …] on which the grid's function has the value `level`.
function contour(grid, level) {
  const { columns, rows, values, view } = grid;
  const segments = [];
  const x = (i) => view.left + (i / columns) * view.width;
  const y = (j) => view.bottom + (j / rows) * view.height;
  for (let j = 0; j < rows; j++)
    for (let i = 0; i < columns; i++) {
      const at = j * (columns + 1) + i;
      const first = values[at] > level;
      // Most cells are not crossed: leave before anything is allocated.
      if (values[at + 1] > level === first && values[at + columns + 2] > level === first && values[at + columns + 1] > level === first)
        continue;
      const corners = [values[at], values[at + 1], values[at + columns + 2], values[at + columns + 1]];
      const above = corners.map((corner) => corner > level);
      const crossings = [];
      for (let side = 0; side < 4; side++) {
        const next = (side + 1) % 4;
        if (above[side] === above[next]) continue;
        const share = (level - corners[side]) / (corners[next] - corners[side]);
        const [fromX, fromY] = [i + (side === 1 || side === 2), j + (side >= 2)];
        const [toX, toY] = [i + (next === 1 || next === 2), j + (next >= 2)];
        crossings.push(x(fromX + share * (toX - fromX)), y(fromY + share * (toY - fromY)));
      }
      segments.push(...crossings); // two crossings, or four at a saddle: then two segments
    }
  return segments;
}
