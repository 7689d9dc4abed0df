// The client plot as SVG, and charts over rounds. Everything is built from text nodes and attributes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["circle", "square", "triangle", "diamond", "down", "plus", "cross"];

function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// A marker: the shape of the i-th method around (x, y). Shapes and colours are paired anew every seven methods.
function marker(i, x, y, r = 5) {
  const shape = SHAPES[(i + Math.floor(i / 7)) % 7];
  const kind = { class: "m" + (i % 7) };
  const points = (pairs) => draw("polygon", { ...kind, points: pairs.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" ") });
  if (shape === "circle") return draw("circle", { ...kind, cx: x, cy: y, r });
  if (shape === "square") return draw("rect", { ...kind, x: x - 0.9 * r, y: y - 0.9 * r, width: 1.8 * r, height: 1.8 * r });
  if (shape === "triangle") return points([[0, -1.15], [1.1, 0.85], [-1.1, 0.85]]);
  if (shape === "down") return points([[0, 1.15], [1.1, -0.85], [-1.1, -0.85]]);
  if (shape === "diamond") return points([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
  const arm = 0.38;
  const plus = [[-arm, -1.1], [arm, -1.1], [arm, -arm], [1.1, -arm], [1.1, arm], [arm, arm], [arm, 1.1], [-arm, 1.1],
    [-arm, arm], [-1.1, arm], [-1.1, -arm], [-arm, -arm]];
  if (shape === "plus") return points(plus);
  return points(plus.map(([a, b]) => [(a - b) * 0.75, (a + b) * 0.75]));
}

function key(i) {  // for a legend; -1: the ring of local training
  const whole = draw("svg", { width: 14, height: 14, "aria-hidden": "true" });
  whole.append(i < 0 ? draw("circle", { class: "ring-key", cx: 7, cy: 7, r: 5 }) : marker(i, 7, 7));
  return whole;
}

function steps(low, high, most) {  // round numbers between two values
  const size = 10 ** Math.floor(Math.log10((high - low) / most || 1));
  const step = [1, 2, 5, 10].map((k) => k * size).find((k) => (high - low) / k <= most);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

// One row per client: a ring for local training, a shape per method, a bar from the ring to the compared one.
function clientPlot(plot, lines, unit, width, href) {
  const narrow = width < 560;
  const left = narrow ? 120 : 215;
  const height = narrow ? 24 : Math.max(22, Math.min(36, 300 / lines.length));
  const values = lines.flatMap((line) => [line.local, ...line.scores]).filter((value) => value !== null);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low || 1) * 0.06;
  [low, high] = [low - pad, high + pad];
  const x = (value) => left + 12 + (width - left - 28) * (value - low) / (high - low);
  const total = lines.length * height + 40;
  const whole = draw("svg", { class: "clients", viewBox: `0 0 ${width} ${total}`, role: "group",
    "aria-label": `${plot.score} by client under ${plot.labels.join(", ")}; the report has the numbers` });
  for (const tick of steps(low, high, narrow ? 4 : 7)) {
    whole.append(draw("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: total - 28 }),
      draw("text", { class: "tick", x: x(tick), y: total - 10, "text-anchor": "middle" }, `${tick}${unit}`));
  }
  const most = narrow ? 12 : 24;
  lines.forEach((line, k) => {
    const y = 16 + k * height;
    const row = draw("a", { href: href(line.client) });
    const name = line.client.length > most ? line.client.slice(0, most - 1) + "…" : line.client;
    row.append(draw("title", {}, [line.client, line.local === null ? "" : `local ${line.local.toFixed(1)}`,
      ...plot.labels.map((method, i) => (line.scores[i] === null ? "" : `${method} ${line.scores[i].toFixed(1)}`))]
      .filter(Boolean).join("\n")));
    const label = draw("text", { x: left, y: y + 4, "text-anchor": "end" }, name + " ");
    label.append(draw("tspan", { class: "samples" }, line.samples));
    row.append(label);
    whole.append(row);
    const [start, end] = [line.local, line.scores[plot.labels.indexOf(plot.compared)]];
    if (line.gain && start !== null && end !== null) {
      const [gain, , , significant] = line.gain;
      whole.append(draw("line", { class: `bar-line ${gain >= 0 ? "gain" : "loss"}${significant ? "" : " faint"}`,
        x1: x(start), x2: x(end), y1: y, y2: y }));
    }
    if (line.local !== null) whole.append(draw("circle", { class: "ring", cx: x(line.local), cy: y, r: 5.5 }));
    line.scores.forEach((value, i) => { if (value !== null) whole.append(marker(i, x(value), y)); });
  });
  return whole;
}

// Lines over rounds with uPlot, whose colours are taken from the theme.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function swatch(stroke, dash) {  // a piece of a line, as it is drawn
  return draw("svg", { width: 24, height: 10, "aria-hidden": "true" },
    draw("line", { x1: 0, x2: 24, y1: 5, y2: 5, stroke, "stroke-width": 2, "stroke-dasharray": dash.join(" ") }));
}

// The legend has the values at the pointer.
function chart(place, rounds, series, label) {
  const dashes = [[], [8, 4], [2, 3], [8, 3, 2, 3]];
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const data = [rounds];
  const lines = [{ label: "round" }];
  const bands = [];
  const legend = document.createElement("div");
  legend.className = "legend";
  const values = series.map((each, i) => {
    const stroke = colour("--m" + (i % 7));
    const dash = dashes[i % 4];
    lines.push({ label: each.label, stroke, dash, width: 2, points: { show: rounds.length < 30 }, spanGaps: true });
    data.push(each.values);
    if (each.low) {
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      lines.push(edge, edge);
      data.push(each.low, each.high);
      bands.push({ series: [lines.length - 1, lines.length - 2], fill: stroke + "26" });
    }
    const entry = document.createElement("span");
    const value = document.createElement("b");
    entry.append(swatch(stroke, dash), each.label + " ", value);
    legend.append(entry);
    return value;
  });
  const tell = (plot) => series.forEach((each, i) => {
    const value = each.values[plot.cursor.idx];
    values[i].textContent = value === null || value === undefined ? "" : value.toFixed(2);
  });
  const whole = [1, 2, 5].flatMap((k) => [1, 10, 100, 1000, 10000, 100000].map((size) => k * size)).sort((a, b) => a - b);
  const options = {
    width: Math.max(260, place.clientWidth || 700), height: 260, scales: { x: { time: false } }, bands,
    axes: [{ ...axis, label: "round", labelSize: 20, size: 32, incrs: whole }, { ...axis, label, labelSize: 20, size: 56 }], series: lines, legend: { show: false },
    hooks: { setCursor: [tell] },
  };
  place.append(legend);
  return new uPlot(options, data, place);
}

// Curves of several methods on common rounds.
function joined(curves, pick) {
  const rounds = [...new Set(Object.values(curves).flatMap((each) => pick(each).round))].sort((a, b) => a - b);
  const series = Object.entries(curves).map(([label, each]) => {
    const curve = pick(each);
    const at = new Map(curve.round.map((round, k) => [round, k]));
    const column = (name) => rounds.map((round) => (at.has(round) ? curve[name][at.get(round)] : null));
    return { label, values: column("mean"), low: curve.low && column("low"), high: curve.high && column("high") };
  });
  return [rounds, series];
}
