// A chart of curves as SVG: its colours are the page's, it is sharp on every screen, and its parts can be tested.
//
// Weighed and turned down: uPlot and other libraries. They draw on a canvas, which takes no colours from a style sheet
// and cannot be read, and this package would carry copies of somebody else's code, which nobody here would update.
// What is needed is below.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 26;
const MOST_POINTS = 1500; // of one curve; then neighbours are averaged

export function numberText(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toPrecision(4) + " G";
  if (size >= 1e6) return (value / 1e6).toPrecision(4) + " M";
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function timeText(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60, two = n => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// Round positions of about `count` lines between two values.
export function ticks(low, high, count, bases = [1, 2, 5, 10]) {
  const rough = (high - low) / count;
  const power = bases[bases.length - 1] === 10 ? 10 ** Math.floor(Math.log10(rough)) : 1;
  const step = (bases.find(base => base * power >= rough) ?? bases[bases.length - 1] * Math.ceil(rough / bases[bases.length - 1])) * power;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

// Mean of the latest values before each point: a twentieth of the curve, 5 at least.
export function smoothed(values) {
  const width = Math.max(5, Math.floor(values.length / 20));
  let sum = 0;
  return values.map((value, index) => {
    sum += value - (index >= width ? values[index - width] : 0);
    return sum / Math.min(index + 1, width);
  });
}

export class Curve {
  constructor(columns = {steps: [], seconds: [], values: []}) {
    this.steps = columns.steps.slice(); this.seconds = columns.seconds.slice(); this.values = columns.values.slice();
  }

  get length() { return this.values.length; }

  add(steps, seconds, value) {
    if (this.length && steps < this.steps[this.length - 1]) return; // the run began again; its curves come
    this.steps.push(steps); this.seconds.push(seconds); this.values.push(value);
    if (this.length > MOST_POINTS) for (const name of ["steps", "seconds", "values"]) {
      const all = this[name], half = [];
      for (let i = 0; i + 1 < all.length; i += 2) half.push(name === "values" ? (all[i] + all[i + 1]) / 2 : all[i + 1]);
      this[name] = half;
    }
  }
}

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

export class Chart {
  // figure: an empty <figure>; options: {title, label, curve, smooth, spread: {mean, low, high}, target, axis}
  constructor(figure, options) {
    this.figure = figure;
    this.options = {axis: "steps", label: options.title, ...options};
    figure.tabIndex = 0;
    figure.setAttribute("role", "group");
    if (options.title) {
      figure.classList.add("named");
      this.caption = document.createElement("figcaption");
      this.caption.textContent = options.title;
      figure.append(this.caption);
    }
    this.svg = element("svg", {role: "img", "aria-label": this.options.label}, null);
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.tip.setAttribute("aria-live", "polite");
    figure.append(this.svg, this.tip);
    this.at = null;
    // Sizes come from the observer: to ask for them between changes of the page would lay it out for each chart. Charts
    // that nobody sees are drawn when they come into view.
    this.box = {width: 0, height: 0};
    this.inView = false;
    new ResizeObserver(([{contentRect}]) => { this.box = contentRect; this.later(); }).observe(this.svg);
    new IntersectionObserver(entries => { this.inView = entries[entries.length - 1].isIntersecting; this.later(); },
      {rootMargin: "300px"}).observe(figure);
    this.svg.addEventListener("pointermove", event => this.point(this.nearest(event.offsetX)));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    figure.addEventListener("blur", () => this.point(null));
    figure.addEventListener("keydown", event => this.key(event));
  }

  set(changes) { Object.assign(this.options, changes); this.later(); }

  later() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = undefined; this.draw(); });
  }

  draw() {
    const {width, height} = this.box;
    if (!this.inView || width < 80 || height < 60) return;
    const {curve, spread, target, axis, smooth} = this.options;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const xs = curve ? curve[axis] : [];
    const spreadXs = spread?.mean ? spread.mean[axis] : [];
    let low = Infinity, high = -Infinity;
    const include = value => { if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); } };
    curve?.values.forEach(include);
    for (const one of [spread?.mean, spread?.low, spread?.high]) one?.values.forEach(include);
    if (low > high) {
      element("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, this.svg, "no values yet");
      this.svg.setAttribute("aria-label", `${this.options.label}: no values yet`);
      this.shown = null;
      return;
    }
    if (target !== null && target !== undefined) include(target);
    if (low === high) { const pad = Math.abs(low) / 10 || 1; low -= pad; high += pad; }
    const pad = (high - low) * .05; low -= pad; high += pad;
    const right = Math.max(1e-9, xs[xs.length - 1] ?? 0, spreadXs[spreadXs.length - 1] ?? 0);
    const x = value => LEFT + (width - LEFT - RIGHT) * value / right;
    const y = value => TOP + (height - TOP - BOTTOM) * (high - value) / (high - low);
    for (const at of ticks(low, high, Math.max(2, Math.floor(height / 55)))) {
      element("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at)}, this.svg);
      element("text", {x: LEFT - 7, y: y(at) + 4, "text-anchor": "end"}, this.svg, numberText(Math.abs(at) < (high - low) * 1e-9 ? 0 : at));
    }
    const bases = axis === "seconds" ? [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400] : undefined;
    const across = ticks(0, right, Math.max(2, Math.floor(width / 120)), bases);
    for (const at of across.filter(one => one || across.length > 1)) {
      const anchor = x(at) > width - 40 ? "end" : "middle";
      element("text", {x: anchor === "end" ? width - 2 : x(at), y: height - 7, "text-anchor": anchor}, this.svg,
        axis === "seconds" ? timeText(at) : numberText(at));
    }
    const path = (ats, values, name) => {
      let d = "", gap = true;
      values.forEach((value, i) => {
        if (!Number.isFinite(value)) { gap = true; return; }
        d += `${gap ? "M" : "L"}${x(ats[i]).toFixed(1)} ${y(value).toFixed(1)}`; gap = false;
      });
      if (d) element("path", {class: name, d}, this.svg);
    };
    const smooths = smooth && curve ? smoothed(curve.values) : null;
    if (curve) { if (smooths) path(xs, curve.values, "raw"); path(xs, smooths ?? curve.values, "line"); }
    if (spread?.mean) {
      spreadXs.forEach((at, i) => {
        const from = spread.low?.values[i], to = spread.high?.values[i];
        if (Number.isFinite(from) && Number.isFinite(to)) element("line", {class: "spread", x1: x(at), x2: x(at), y1: y(from), y2: y(to)}, this.svg);
      });
      path(spreadXs, spread.mean.values, "mean");
      spreadXs.forEach((at, i) => element("circle", {class: "dot", cx: x(at), cy: y(spread.mean.values[i]), r: 3.5}, this.svg));
    }
    if (target !== null && target !== undefined) {
      element("line", {class: "target", x1: LEFT, x2: width - RIGHT, y1: y(target), y2: y(target)}, this.svg);
      const above = y(target) > 30;
      element("text", {class: "target", x: LEFT + 6, y: y(target) + (above ? -6 : 16)}, this.svg, `target ${numberText(target)}`);
    }
    const last = smooths ?? curve?.values ?? [];
    const latest = last.length ? last[last.length - 1] : spread?.mean?.values[spread.mean.length - 1];
    this.svg.setAttribute("aria-label", `${this.options.label}: latest ${numberText(latest)}, lowest ${numberText(low + pad)}, highest ${numberText(high - pad)}`);
    if (this.caption) this.caption.textContent = `${this.options.title}: ${numberText(latest)}`;
    this.shown = {xs: xs.length ? xs : spreadXs, smooths, x, width, height};
    this.rule = element("line", {class: "rule", y1: TOP, y2: height - BOTTOM, visibility: "hidden"}, this.svg);
    if (this.at !== null) this.point(Math.min(this.at, this.shown.xs.length - 1));
  }

  nearest(offset) {
    if (!this.shown) return null;
    const {xs, x} = this.shown;
    let from = 0, to = xs.length - 1;
    while (to - from > 1) { const half = (from + to) >> 1; if (x(xs[half]) < offset) from = half; else to = half; }
    return Math.abs(x(xs[from]) - offset) <= Math.abs(x(xs[to]) - offset) ? from : to;
  }

  key(event) {
    const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9};
    if (event.key === "Escape") { this.point(null); return; }
    if (!(event.key in moves) || !this.shown) return;
    event.preventDefault();
    const last = this.shown.xs.length - 1;
    this.point(Math.max(0, Math.min(last, (this.at ?? last + (moves[event.key] < 0 ? 1 : 0)) + moves[event.key])));
  }

  // Show the values of one point of the curve; null: of none.
  point(index) {
    this.at = index;
    if (index === null || index < 0 || !this.shown) { this.tip.hidden = true; this.rule?.setAttribute("visibility", "hidden"); return; }
    const {xs, smooths, x, width} = this.shown, {curve, spread, axis} = this.options;
    const at = x(xs[index]);
    this.rule.setAttribute("x1", at); this.rule.setAttribute("x2", at); this.rule.setAttribute("visibility", "visible");
    const lines = [];
    const source = curve?.length ? curve : spread.mean;
    lines.push(`${numberText(source.steps[index])} steps, ${timeText(source.seconds[index])}`);
    if (curve?.length) lines.push(smooths ? `mean ${numberText(smooths[index])}, this one ${numberText(curve.values[index])}` : numberText(curve.values[index]));
    if (spread?.mean?.length) {
      const sx = spread.mean[axis];
      let j = 0;
      while (j + 1 < sx.length && sx[j + 1] <= xs[index]) j++;
      if (sx[j] <= xs[index]) lines.push(`evaluation ${numberText(spread.mean.values[j])} (${numberText(spread.low?.values[j])} to ${numberText(spread.high?.values[j])})`);
    }
    this.tip.textContent = lines.join("\n");
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(width - wide, at + 10 + wide > width ? at - wide - 10 : at + 10))}px`;
    this.tip.style.top = `${TOP + (this.caption ? 24 : 0)}px`;
  }
}
