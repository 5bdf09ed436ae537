"use strict";
// Elements, numbers and drawings. Text reaches the page as text nodes only, so a name can never become markup.

const DRAWING = document.getElementById("drawing").namespaceURI;
const MARKS = [
  "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z", // circle
  "M-4.5 -4.5H4.5V4.5H-4.5Z", // square
  "M0 -5.6L5.4 4.2H-5.4Z", // triangle
  "M0 -6L6 0L0 6L-6 0Z", // diamond
  "M-5.4 -4.2H5.4L0 5.6Z", // triangle upside down
  "M-5 -1.6H-1.6V-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5Z", // cross
];
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];

function put(parent, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") Object.assign(parent.style, value);
    else if (name.startsWith("on")) parent.addEventListener(name.slice(2), value);
    else parent.setAttribute(name, value === true ? "" : value);
  }
  parent.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return parent;
}
const el = (tag, attributes = {}, ...children) => put(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => put(document.createElementNS(DRAWING, tag), attributes, children);

// -- numbers --------------------------------------------------------------------------------------------------------

const known = (value) => typeof value === "number" && Number.isFinite(value);
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const unitFor = (value) => UNITS.find(([size]) => value >= size) || UNITS[UNITS.length - 1];

function digits(value, count = 3) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 8));
}
function flopsText(value, unit = unitFor(value)) {
  return known(value) ? `${value < 1000 && unit[0] === 1 ? Math.round(value) : digits(value / unit[0])} ${unit[1]}FLOPs` : "–";
}
const metricText = (value, isShare) => (!known(value) ? "–" : isShare ? `${(100 * value).toFixed(2)} %` : digits(value, 4));
// 12.3 ± 0.4; the unit comes once
function spreadText([mean, deviation], write, writeSpread = write) {
  return known(deviation) ? `${write(mean)} ± ${writeSpread(deviation)}` : write(mean);
}
const mean = (values) => (values.every(known) ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const number = (value, text, attributes = {}) => el("data", { value: known(value) ? String(value) : "", ...attributes }, text);

function ticksBetween(low, high, wanted) {
  const rough = (high - low || Math.abs(high) || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) || 10);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

// -- drawings -------------------------------------------------------------------------------------------------------

const mark = (kind, colour) =>
  draw("svg", { class: "mark", viewBox: "-7 -7 14 14", "aria-hidden": "true", focusable: "false" },
    draw("path", { d: MARKS[kind % MARKS.length], fill: colour }));

function lineMark(kind, colour) {
  return draw("svg", { width: 34, height: 14, viewBox: "-17 -7 34 14", "aria-hidden": "true", focusable: "false", style: { marginRight: "0.5rem" } },
    draw("path", { d: "M-17 0H17", stroke: colour, "stroke-width": 1.75, "stroke-dasharray": DASHES[kind % DASHES.length] }),
    draw("path", { d: MARKS[kind % MARKS.length], fill: colour, transform: "scale(0.8)" }));
}

// A line chart. series: {name, kind, colour, points: [[x, y, text]], others: [points], ring: [x, y, text]}
function lineChart({ width, height, label, series, xTitle, yTitle, xText, yText, level, within, fromZero }) {
  const all = series.flatMap((one) => [...one.points, ...(one.others || []).flat(), ...(one.ring ? [one.ring] : [])]);
  const xs = all.map((point) => point[0]), ys = all.map((point) => point[1]).concat(known(level) ? [level] : []);
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (fromZero) [x0, y0] = [0, 0];
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
  [y0, y1] = [fromZero ? 0 : y0 - room, y1 + room];
  if (x0 === x1) [x0, x1] = [x0 * 0.9, x1 * 1.1 || 1];
  if (!fromZero) [x0, x1] = [x0 - 0.03 * (x1 - x0), x1 + 0.03 * (x1 - x0)];
  const yTicks = ticksBetween(y0, y1, height < 220 ? 3 : 5);
  const left = 14 + 7 * Math.max(...yTicks.map((tick) => yText(tick).length)), right = 16, top = 22, bottom = 40;
  const xTicks = ticksBetween(x0, x1, Math.max(3, Math.floor((width - left - right) / 90)));
  const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const Y = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const tick of yTicks)
    svg.append(draw("path", { class: "grid", d: `M${left} ${Y(tick)}H${width - right}` }),
      draw("text", { x: left - 8, y: Y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  for (const tick of xTicks) svg.append(draw("text", { x: X(tick), y: height - bottom + 18, "text-anchor": "middle" }, xText(tick)));
  svg.append(draw("path", { class: "axis", d: `M${left} ${height - bottom}H${width - right}` }),
    draw("text", { x: width - right, y: height - 4, "text-anchor": "end" }, xTitle), draw("text", { x: 0, y: 12 }, yTitle));
  if (known(within))
    svg.append(draw("rect", { class: "within", x: left, y: top, width: Math.max(0, X(within) - left), height: height - top - bottom, fill: series[0].colour }));
  if (known(level)) svg.append(draw("path", { d: `M${left} ${Y(level)}H${width - right}`, stroke: "var(--ink)", "stroke-dasharray": "4 3" }));
  for (const { kind, colour, points, others = [], ring, plain } of series) {
    const dash = DASHES[kind % DASHES.length];
    for (const other of others) svg.append(draw("path", { class: "series other", d: path(other), stroke: colour, "stroke-dasharray": dash }));
    svg.append(draw("path", { class: "series", d: path(points), stroke: colour, "stroke-dasharray": dash }));
    if (!plain)
      for (const [x, y, text] of points)
        svg.append(draw("path", { d: MARKS[kind % MARKS.length], fill: colour, transform: `translate(${X(x)} ${Y(y)}) scale(${points.length > 40 ? 0.4 : 0.65})` }, draw("title", {}, text)));
    if (ring) svg.append(draw("circle", { cx: X(ring[0]), cy: Y(ring[1]), r: 9, fill: "none", stroke: colour, "stroke-width": 2 }, draw("title", {}, ring[2])));
  }
  return svg;
}

// Rows of marks on a common scale. rows: {label: nodes, values: {series name: [mean, deviation]}}
function dotPlot({ label, rows, series, low, high, base, text }) {
  const at = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const ticks = ticksBetween(low, high, window.innerWidth < 760 ? 4 : 8);
  const rules = () => ticks.map((tick) => el("span", { class: "rule" + (tick === base ? " base" : ""), style: { left: at(tick) } }));
  const head = el("div", { class: "row ticks-row" }, el("span", { class: "label" }),
    el("div", { class: "track ticks" }, ticks.map((tick) => el("span", { style: { left: at(tick) } }, text(tick)))));
  const body = rows.map((row) =>
    el("div", { class: "row" }, el("span", { class: "label" }, row.label), el("div", { class: "track" }, rules(),
      series.map(({ name, kind, colour }) => {
        const [value, deviation] = row.values[name] || [];
        if (!known(value)) return null;
        const dot = mark(kind, colour);
        dot.style.left = at(value);
        dot.append(draw("title", {}, `${name}: ${spreadText([value, deviation], text)}`));
        if (!known(deviation)) return dot;
        const [from, to] = [Math.max(low, value - deviation), Math.min(high, value + deviation)];
        return [el("span", { class: "range", style: { left: at(from), width: `${(100 * (to - from)) / (high - low)}%`, background: colour } }), dot];
      }))));
  return el("div", { class: "dots", role: "img", "aria-label": label }, head, body);
}

function seriesLegend(series, line) {
  return el("ul", { class: "legend" }, series.map(({ name, kind, colour }) =>
    el("li", {}, line ? lineMark(kind, colour) : put(mark(kind, colour), { style: { marginRight: "0.5rem" } }, []), name)));
}

// A table of texts; the first cell of a row is its head.
function plainTable(caption, head, rows) {
  return scrolling(caption, el("table", {}, el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", {}, rows.map(([first, ...cells]) => el("tr", {}, el("th", { scope: "row" }, first), cells.map((cell) => el("td", {}, cell)))))));
}
// What may be wider than the screen can be scrolled with the keyboard, too.
const scrolling = (name, content) => el("div", { class: "scroll", role: "region", "aria-label": name, tabindex: "0" }, content);
const inNumbers = (...content) => el("details", {}, el("summary", {}, "The same in numbers"), content);
