"use strict";
// Theme first, so that nothing flashes.
const root = document.documentElement;
root.classList.add("js");
const kept = { get() { try { return localStorage.getItem("theme"); } catch { return null; } },
               set(v) { try { localStorage.setItem("theme", v); } catch { /* a page from a file may not keep it */ } } };
if (kept.get() === "dark" || kept.get() === "light") root.dataset.theme = kept.get();

// -- numbers as text: as number() in text.py --------------------------------------------------------------------------
const RAISED = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076",
                 7: "\u2077", 8: "\u2078", 9: "\u2079" };
const power = (k) => "10" + [...String(k)].map((c) => RAISED[c]).join("");
const trim = (s) => (s.includes(".") && !s.includes("e") ? s.replace(/0+$/, "").replace(/\.$/, "") : s);
function number(v) {
  if (v === null || !Number.isFinite(v)) return "\u2013";
  if (v === 0) return "0";
  const size = Math.abs(v);
  if ((size >= 1e3 && size < 1e7) || (Number.isInteger(v) && size < 1e3)) {
    return v.toLocaleString("en-US", { maximumFractionDigits: 0 });
  }
  if (size < 1e-3 || size >= 1e7) {
    const [digits, exponent] = v.toExponential(2).split("e");
    return trim(digits) + "e" + Number(exponent);
  }
  return trim(v.toPrecision(4));
}
function short(v) {
  for (const [unit, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(v) >= unit * 0.9999999) return trim((v / unit).toPrecision(4)) + suffix;
  }
  return number(v);
}

// -- axes --------------------------------------------------------------------------------------------------------------
function domain(values, log, fromZero) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v) && (v > 0 || !log)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) [low, high] = [log ? 0.1 : 0, 1];
  if (log) {
    const room = Math.max(0.03 * Math.log10(high / low), 0.02);
    return [low / 10 ** room, high * 10 ** room];
  }
  if (fromZero && low >= 0 && low <= 0.3 * high) return [0, high * 1.02 || 1];
  const room = 0.04 * (high - low) || 0.5 * Math.abs(high) || 1;
  return [low - room, high + room];
}
function scale([low, high], start, end, log) {
  const f = log ? Math.log10 : (v) => v;
  const at = (v) => start + ((f(v) - f(low)) / (f(high) - f(low))) * (end - start);
  return Object.assign(at, { ticks: (most) => (log ? logTicks : linearTicks)(low, high, most) });
}
function logTicks(low, high, most) {
  const a = Math.ceil(Math.log10(low) - 1e-9), b = Math.floor(Math.log10(high) + 1e-9), out = [];
  for (const inner of b - a < 3 ? [[1, 2, 5], [1, 3]] : []) {
    const inside = [];
    for (let k = a - 1; k <= b; k++) for (const m of inner) inside.push(m * 10 ** k);
    const fits = inside.filter((v) => v >= low && v <= high);
    if (fits.length > 2 && fits.length <= most + 1) return fits.map((v) => [v, short(v)]);
  }
  if (b - a >= 1) {
    const step = [1, 2, 3, 4, 5, 10, 20, 50, 100, 1000].find((s) => (b - a) / s < most);
    for (let k = Math.ceil(a / step) * step; k <= b; k += step) out.push([10 ** k, power(k)]);
    return out;
  }
  return linearTicks(low, high, most);
}
function linearTicks(low, high, most) {
  const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough)), out = [];
  const step = [1, 2, 2.5, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999);
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) out.push([k * step, short(k * step)]);
  return out;
}

// -- a figure ----------------------------------------------------------------------------------------------------------
const LEFT = 54, RIGHT = 14, TOP = 30, BOTTOM = 46, MARKERS = 8;
// names at the ends of curves: their room, the least width, and the most curves and letters for which there are any
const LABELS = 128, LABELS_FROM = 480, MOST_LABELS = 8, LONGEST_LABEL = 19;
const DASHES = { "-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3" };
// markers around the origin, by matplotlib's letters
const SHAPES = {
  o: "M0-4A4 4 0 1 1 0 4A4 4 0 1 1 0-4Z",
  s: "M-3.6-3.6H3.6V3.6H-3.6Z",
  "^": "M0-4.6L4.4 3.4H-4.4Z",
  v: "M0 4.6L4.4-3.4H-4.4Z",
  "<": "M-4.6 0L3.4-4.4V4.4Z",
  ">": "M4.6 0L-3.4-4.4V4.4Z",
  p: "M0.0 -4.8L4.6 -1.5L2.8 3.9L-2.8 3.9L-4.6 -1.5Z",
  8: "M1.8 -4.2L4.2 -1.8L4.2 1.8L1.8 4.2L-1.8 4.2L-4.2 1.8L-4.2 -1.8L-1.8 -4.2Z",
  P: "M-1.7-4.6H1.7V-1.7H4.6V1.7H1.7V4.6H-1.7V1.7H-4.6V-1.7H-1.7Z",
  X: "M-4.4-2.1L-2.1-4.4L0-2.2L2.1-4.4L4.4-2.1L2.2 0L4.4 2.1L2.1 4.4L0 2.2L-2.1 4.4L-4.4 2.1L-2.2 0Z",
  D: "M0-5L5 0L0 5L-5 0Z",
  d: "M0 -5L3 0L0 5L-3 0Z",
  "*": "M0.0 -5.4L1.3 -1.8L5.1 -1.7L2.1 0.7L3.2 4.4L0.0 2.2L-3.2 4.4L-2.1 0.7L-5.1 -1.7L-1.3 -1.8Z",
  h: "M0.0 -4.6L4.0 -2.3L4.0 2.3L0.0 4.6L-4.0 2.3L-4.0 -2.3Z",
};
function make(tag, attributes, ...inside) {
  const node = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  node.append(...inside);
  return node;
}
const path = (points) => "M" + points.map(([u, v]) => u.toFixed(1) + " " + v.toFixed(1)).join("L");

class Chart {
  constructor(node, panel, looks) {
    Object.assign(this, { node, panel, looks, x: panel.x, hidden: new Set(), cursor: null, near: -1 });
    this.svg = node.querySelector(".chart");
    this.tip = node.querySelector(".tip");
    this.live = node.querySelector(".live");
    this.at = node.querySelector(".at");
    this.keys = [...node.querySelectorAll(".key")];
    // Shown text comes from the page, where it is escaped and its invisible characters are marked.
    const choices = [...node.querySelectorAll(".switch label")];
    this.labels = new Map(choices.map((l) => [l.control.value, l.title]));
    this.units = new Map(choices.map((l) => [l.control.value, l.textContent]));
    this.labels.set(panel.x, this.svg.dataset.x);
    this.y = this.svg.dataset.y;
    this.names = new Map(this.keys.map((b) => [Number(b.dataset.k), b.dataset.name]));
    this.still = [...this.svg.querySelectorAll("title, desc, clipPath")];
    this.ratio = this.svg.viewBox.baseVal.height / this.svg.viewBox.baseVal.width;
    for (const key of this.keys) this.swatch(key, Number(key.dataset.k));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.svg.parentNode);
  }

  listen() {
    const { svg, node } = this;
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "figure; the arrow keys read its values");
    for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (e) => this.point(e.offsetX, e.offsetY));
    svg.addEventListener("pointerleave", (e) => { if (e.pointerType === "mouse") this.leave(); });
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener("keydown", (e) => this.press(e));
    for (const input of node.querySelectorAll(".switch input")) {
      input.addEventListener("change", () => { this.x = input.value; this.leave(); this.draw(true); });
    }
    for (const key of this.keys) {
      const k = Number(key.dataset.k);
      key.addEventListener("click", (e) => this.toggle(k, key, e.shiftKey));
    }
    const choice = node.querySelector(".switch");
    if (choice) choice.hidden = false;
  }

  // a method goes or comes in all figures; a curve that shares its method with others here is switched alone
  toggle(k, key, here) {
    const on = this.hidden.has(k), { method } = this.panel.series[k];
    const alone = this.panel.series.filter((s) => s.method === method && s.kind !== "bound").length === 1;
    if (method && alone && !here) { this.everywhere(method, on); return; }
    this.set(k, on, key);
    this.leave();
    this.draw(true);
  }

  set(k, on, key) {
    on ? this.hidden.delete(k) : this.hidden.add(k);
    key.setAttribute("aria-pressed", String(on));
  }

  // -- what acts on all figures at once ---------------------------------------------------------------------------------
  method(name, on) {
    let changed = false;
    for (const key of this.keys) if (this.panel.series[Number(key.dataset.k)].method === name) { this.set(Number(key.dataset.k), on, key); changed = true; }
    if (changed) { this.leave(); this.draw(true); }
  }

  against(x) {
    const input = [...this.node.querySelectorAll(".switch input")].find((i) => i.value === x);
    if (input) { input.checked = true; this.x = x; this.leave(); this.draw(true); }
  }

  shown() {
    return this.panel.series.map((s, k) => k).filter((k) => !this.hidden.has(k) && this.panel.series[k].x[this.x]);
  }

  drawn(v) {
    const { y_floor: floor, y_scale } = this.panel;
    if (v === null) return NaN;
    if (floor !== null) return Math.max(v, floor);
    return y_scale === "log" && v <= 0 ? NaN : v;
  }

  range(shown) {
    const log = this.panel.y_scale === "log", measured = [], theory = [];
    for (const k of shown) {
      const s = this.panel.series[k], into = s.kind === "bound" ? theory : measured;
      for (const column of [s.y, s.low || [], s.high || []]) for (const v of column) into.push(this.drawn(v));
    }
    const [low, high] = domain(measured.length ? measured : theory, log, true);
    if (!measured.length || !theory.length) return [low, high];
    const [least, most] = domain(theory, log, true), half = log ? Math.max(Math.sqrt(high / low), 1e3) : (high - low) / 2;
    return log ? [Math.max(Math.min(low, least), low / half), Math.min(Math.max(high, most), high * half)]
               : [Math.max(Math.min(low, least), low - half), Math.min(Math.max(high, most), high + half)];
  }

  draw(force) {
    const width = Math.round(this.svg.parentNode.clientWidth);
    if (!width || (width === this.width && !force)) return;
    this.width = width;
    this.height = Math.round(Math.min(Math.max(width * this.ratio, 270), 440));
    const { panel, svg, height } = this, shown = this.shown(), log = panel.x_scale === "log";
    const xs = shown.flatMap((k) => panel.series[k].x[this.x]).map((v) => (v === null ? NaN : v));
    const named = panel.series.filter((s) => s.kind !== "bound").length;
    this.room = width >= LABELS_FROM && named > 0 && named <= MOST_LABELS ? LABELS : RIGHT;
    this.sx = scale(domain(xs, log, true), LEFT, width - this.room, log);
    this.sy = scale(this.range(shown), height - BOTTOM, TOP, panel.y_scale === "log");
    this.pixels = panel.series.map((s, k) => (shown.includes(k) ? this.place(s, s.y) : []));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const box = svg.querySelector("clipPath rect");
    // a little beyond the axes, so that markers at the edge are drawn whole
    const edges = { x: LEFT - 6, y: TOP - 6, width: width - LEFT - this.room + 12, height: height - TOP - BOTTOM + 12 };
    for (const [k, v] of Object.entries(edges)) box.setAttribute(k, v);
    const curves = make("g", { "clip-path": `url(#${box.parentNode.id})` });
    const order = [...shown].sort((a, b) => this.looks[a].width - this.looks[b].width);
    for (const k of order) curves.append(...this.band(k));
    for (const k of order) curves.append(make("g", { class: "series", "data-k": k }, ...this.curve(k)));
    this.over = make("g", { class: "over" });
    svg.replaceChildren(...this.still, ...this.axes(), curves, ...this.ends(shown), this.over);
  }

  axes() {
    const { width, height } = this, bottom = height - BOTTOM, right = width - this.room, out = [];
    for (const [v, label] of this.sy.ticks(Math.max(3, Math.floor((bottom - TOP) / 44)))) {
      const at = this.sy(v);
      out.push(make("path", { class: "grid", d: `M${LEFT} ${at.toFixed(1)}H${right}` }));
      out.push(make("text", { class: "tick", x: LEFT - 8, y: (at + 4).toFixed(1), "text-anchor": "end" }, label));
    }
    for (const [v, label] of this.sx.ticks(Math.max(3, Math.floor((right - LEFT) / 86)))) {
      const at = this.sx(v).toFixed(1);
      out.push(make("path", { class: "grid", d: `M${at} ${TOP}V${bottom}` }));
      out.push(make("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, label));
    }
    out.push(make("path", { class: "axis-line", d: `M${LEFT} ${bottom}H${right}` }));
    out.push(make("text", { class: "label y-label", x: 2, y: 14 }, this.y));
    const label = this.labels.get(this.x);
    out.push(make("text", { class: "label x-label", x: right, y: height - 6, "text-anchor": "end" }, label));
    return out;
  }

  // the name of each curve at its end, moved apart where they would overlap
  ends(shown) {
    if (this.room === RIGHT) return [];
    const { height } = this, found = [];
    for (const k of shown) {
      const last = this.pixels[k].findLast((p) => p), name = this.names.get(k);
      if (!last || this.panel.series[k].kind === "bound") continue;
      const letters = [...name];
      found.push({ u: last[0], v: Math.min(Math.max(last[1], TOP), height - BOTTOM), color: this.looks[k].color,
                   name: letters.length <= LONGEST_LABEL ? name : letters.slice(0, LONGEST_LABEL - 1).join("") + "\u2026" });
    }
    // a curve may end in the middle of the others: its name goes to the nearest height where it lies on none of them
    const taken = [];
    for (const end of found) {
      if (end.u + 8 > this.width - this.room) continue;
      const free = (v) => v > TOP && v < height - BOTTOM && taken.every((other) => Math.abs(other - v) >= 14)
        && !this.crosses(shown, end.u + 6, end.u + 8 + 7 * [...end.name].length, v - 7, v + 7);
      const near = [0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5].map((steps) => end.v + 14 * steps);
      taken.push(end.v = near.find(free) ?? end.v);
    }
    found.sort((a, b) => a.v - b.v);
    found.forEach((end, k) => { if (k) end.v = Math.max(end.v, found[k - 1].v + 14); });
    found.reduceRight((limit, end) => { end.v = Math.min(end.v, limit); return end.v - 14; }, height - BOTTOM);
    return found.map(({ u, v, color, name }) => make("text", { class: "end", color, x: (u + 8).toFixed(1), y: (v + 4).toFixed(1) }, name));
  }

  // whether one of these curves passes through a rectangle
  crosses(shown, left, right, top, bottom) {
    return shown.some((k) => this.pieces(this.pixels[k]).some((piece) => piece.some(([u, v], i) => {
      const [x, y] = piece[i + 1] || [u, v];
      return [0, 0.25, 0.5, 0.75, 1].some((t) => {
        const across = u + t * (x - u), down = v + t * (y - v);
        return left < across && across < right && top < down && down < bottom;
      });
    })));
  }

  place(s, values) {
    const log = this.panel.x_scale === "log";
    return s.x[this.x].map((u, i) => {
      const v = this.drawn(values[i]);
      return u === null || Number.isNaN(v) || (log && u <= 0) ? null : [this.sx(u), this.sy(v)];
    });
  }

  pieces(points) {
    const out = [[]];
    for (const p of points) if (p) out[out.length - 1].push(p); else if (out[out.length - 1].length) out.push([]);
    return out.filter((piece) => piece.length);
  }

  curve(k) {
    const s = this.panel.series[k], points = this.pixels[k];
    const good = points.filter((p) => p), spread = Math.max(1, Math.floor(good.length / MARKERS));
    // each curve starts its markers elsewhere, so that they do not hide one another
    const first = Math.floor(((k % MARKERS) * spread) / MARKERS);
    const marked = s.kind === "bound" ? [] : s.kind === "points" ? good : good.filter((_, i) => i >= first && (i - first) % spread === 0);
    return this.pieces(points).map((piece) => this.line(k, piece)).concat(marked.map((p) => this.mark(k, p)));
  }

  line(k, points) {
    const look = this.looks[k], width = { bound: 1.2, points: 1 }[this.panel.series[k].kind] || look.width, dashes = DASHES[look.dashes];
    return make("path", { class: "line", color: look.color, "stroke-width": width, d: path(points), ...(dashes && { "stroke-dasharray": dashes }) });
  }

  mark(k, [u, v]) {
    const { color, hollow, marker } = this.looks[k];
    return make("path", { class: hollow ? "mark hollow" : "mark", color, transform: `translate(${u.toFixed(1)} ${v.toFixed(1)})`, d: SHAPES[marker] || "" });
  }

  // a short piece of the line beside its name in a legend
  swatch(key, k) {
    const marks = this.panel.series[k].kind === "bound" ? [] : [this.mark(k, [17, 8])];
    key.querySelector(".swatch").replaceChildren(this.line(k, [[1, 8], [33, 8]]), ...marks);
  }

  band(k) {
    const s = this.panel.series[k];
    if (!s.low || !s.high) return [];
    const low = this.pieces(this.place(s, s.low)), high = this.pieces(this.place(s, s.high));
    return high.map((top, i) => make("path", { class: "band", color: this.looks[k].color, d: path(top.concat((low[i] || []).slice().reverse())) + "Z" }));
  }

  // -- reading values ---------------------------------------------------------------------------------------------------
  point(px, py) {
    let best = null;
    for (const k of this.shown()) {
      this.pixels[k].forEach((p, i) => {
        if (!p) return;
        const far = (p[0] - px) ** 2 + 0.25 * (p[1] - py) ** 2;
        if (!best || far < best.far) best = { far, k, i };
      });
    }
    if (best) this.read(best.k, best.i);
  }

  press(e) {
    const shown = this.keys.map((b) => Number(b.dataset.k)).filter((k) => this.shown().includes(k));
    if (!shown.length) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[e.key], turn = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    let { k, i } = this.cursor || { k: shown[0], i: step || turn ? -1 : 0 };
    if (step) i += step;
    else if (turn) {
      const from = this.pixels[k][Math.max(i, 0)];
      k = shown[(shown.indexOf(k) + turn + shown.length) % shown.length];
      i = from ? this.nearest(k, from[0]) : 0;
    } else if (e.key === "Home") i = 0;
    else if (e.key === "End") i = this.pixels[k].length - 1;
    else if (e.key === "Escape") { this.leave(); return; }
    else return;
    e.preventDefault();
    i = Math.min(Math.max(i, 0), this.pixels[k].length - 1);
    while (!this.pixels[k][i] && i > 0) i--;
    this.read(k, i);
    this.live.textContent = this.tip.textContent;
  }

  nearest(k, px) {
    let best = -1, far = Infinity;
    this.pixels[k].forEach((p, i) => { if (p && Math.abs(p[0] - px) < far) { far = Math.abs(p[0] - px); best = i; } });
    return best;
  }

  read(k, i) {
    const here = this.pixels[k][i];
    if (!here) return;
    this.cursor = { k, i };
    const s = this.panel.series[k], where = `at ${number(s.x[this.x][i])} ${this.units.get(this.x) || ""}`, over = [];
    over.push(make("path", { class: "cross", d: `M${here[0].toFixed(1)} ${TOP}V${this.height - BOTTOM}` }));
    this.at.textContent = where;
    for (const key of this.keys) {
      const j = Number(key.dataset.k), val = key.querySelector(".val");
      const n = this.pixels[j].length ? this.nearest(j, here[0]) : -1;
      const inside = n >= 0 && Math.abs(this.pixels[j][n][0] - here[0]) < 24;
      val.textContent = inside ? number(this.panel.series[j].y[n]) : "\u2013";
      inside ? (val.dataset.value = this.panel.series[j].y[n]) : delete val.dataset.value;
      key.classList.toggle("near", j === k);
      if (inside) over.push(make("circle", { class: "dot", color: this.looks[j].color, cx: this.pixels[j][n][0].toFixed(1), cy: this.pixels[j][n][1].toFixed(1), r: j === k ? 5 : 3.5 }));
    }
    this.over.replaceChildren(...over);
    this.say(s, k, i, where, here);
  }

  say(s, k, i, where, here) {
    const strong = document.createElement("b"), value = document.createElement("data");
    strong.textContent = this.names.get(k);
    value.value = String(s.y[i]);
    value.textContent = number(s.y[i]);
    const parts = [strong, " ", value, ` ${where} `], extra = (line) => {
      const span = document.createElement("span");
      span.textContent = line;
      parts.push(span);
    };
    if (s.low && s.high) extra(`${number(s.low[i])} to ${number(s.high[i])}`);
    const title = this.keys.find((b) => Number(b.dataset.k) === k).title;
    if (title) extra(title);
    this.tip.replaceChildren(...parts);
    this.tip.hidden = false;
    this.tip.style.left = "0";
    const ratio = this.svg.clientWidth / this.width, wide = this.tip.offsetWidth, tall = this.tip.offsetHeight;
    const x = here[0] * ratio, y = here[1] * ratio, room = this.svg.clientWidth, above = y - tall - 14;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, room - wide))}px`;
    this.tip.style.top = `${above < -24 ? y + 14 : above}px`;
  }

  leave() {
    this.cursor = null;
    this.tip.hidden = true;
    this.live.textContent = "";
    this.at.textContent = "at the end";
    if (this.over) this.over.replaceChildren();
    for (const key of this.keys) {
      const { y } = this.panel.series[Number(key.dataset.k)], val = key.querySelector(".val");
      const last = y.findLast((v) => v !== null);
      val.textContent = last === undefined ? "\u2013" : number(last);
      key.classList.remove("near");
      delete val.dataset.value;
    }
  }
}

// -- the page ----------------------------------------------------------------------------------------------------------
document.addEventListener("DOMContentLoaded", () => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const results = read("results"), looks = read("styles");
  const charts = [...document.querySelectorAll("figure.panel")].map((node) => {
    const e = Number(node.dataset.e), p = Number(node.dataset.p);
    const chart = new Chart(node, results.experiments[e].panels[p], looks[e][p]);
    chart.draw();
    return chart;
  });
  const everywhere = document.querySelector(".everywhere");
  if (everywhere) {
    everywhere.hidden = false;
    for (const input of everywhere.querySelectorAll("input")) input.addEventListener("change", () => charts.forEach((c) => c.against(input.value)));
  }
  const shared = everywhere ? [...everywhere.querySelectorAll(".key")] : [];
  const switched = (method, on) => {
    for (const key of shared) if (key.dataset.method === method) key.setAttribute("aria-pressed", String(on));
    charts.forEach((c) => c.method(method, on));
  };
  charts.forEach((c) => { c.everywhere = switched; });
  for (const key of shared) {
    const { method } = key.dataset, of = (c) => c.panel.series.findIndex((s) => s.method === method && s.kind !== "bound");
    const chart = charts.find((c) => of(c) >= 0);
    chart.swatch(key, of(chart));
    key.addEventListener("click", () => switched(method, key.getAttribute("aria-pressed") === "false"));
  }
  // a link to the claims opens those of its figure
  for (const link of document.querySelectorAll("a.verdicts")) link.addEventListener("click", () => {
    const id = link.closest("section").id;
    for (const group of document.querySelectorAll("details.group")) if (group.querySelector(`a[href="#${id}"]`)) group.open = true;
  });
  const button = document.querySelector(".theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colors`); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; kept.set(root.dataset.theme); label(); });
  system.addEventListener("change", label);
  button.hidden = false;
  label();

  for (const copy of document.querySelectorAll(".copy")) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copy.previousElementSibling.textContent);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  }
});
