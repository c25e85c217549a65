"use strict";
// Two or three clients in the plane. Everything is computed here, with the update rules of docs/methods.md.

// -- the mathematics ---------------------------------------------------------------------------------------------------
// f_i(x) = 1/2 (x - c_i)' H_i (x - c_i), with the same two curvatures, turned differently for each client
const CURVATURES = [1, 0.12];
function makeClients(n, distance) {
  return Array.from({ length: n }, (_, i) => {
    const at = (2 * Math.PI * i) / n + 0.5, turn = at + 0.8 + 0.5 * i, c = Math.cos(turn), s = Math.sin(turn);
    const [a, b] = CURVATURES;
    return {
      center: [distance * Math.cos(at), distance * Math.sin(at)],
      H: [a * c * c + b * s * s, (a - b) * c * s, a * s * s + b * c * c],
    };
  });
}
const times = (H, v) => [H[0] * v[0] + H[1] * v[1], H[1] * v[0] + H[2] * v[1]];
const add = (u, v, t = 1) => [u[0] + t * v[0], u[1] + t * v[1]];
const norm = (v) => Math.hypot(v[0], v[1]);
const mean = (vs) => vs.reduce((u, v) => add(u, v, 1 / vs.length), [0, 0]);
const gradient = (f, x) => times(f.H, add(x, f.center, -1));
function solve(clients) {
  const H = [0, 1, 2].map((k) => clients.reduce((t, f) => t + f.H[k], 0));
  const b = clients.reduce((t, f) => add(t, times(f.H, f.center)), [0, 0]), det = H[0] * H[2] - H[1] * H[1];
  return [(H[2] * b[0] - H[1] * b[1]) / det, (H[0] * b[1] - H[1] * b[0]) / det];
}
function random(seed) { // Mulberry32
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
const geometric = (p, draw) => (p >= 1 ? 1 : Math.max(1, Math.ceil(Math.log(1 - draw()) / Math.log(1 - p))));

// K shifted steps of one client: y <- y - gamma (grad f_i(y) - h)
function descend(f, x, h, gamma, K) {
  const path = [x];
  for (let k = 0; k < K; k++) path.push(add(path[k], add(gradient(f, path[k]), h, -1), -gamma));
  return path;
}

class Race {
  constructor({ n, distance, p, gamma }) {
    Object.assign(this, { p, gamma, clients: makeClients(n, distance), draw: random(7), round: 0 });
    this.solution = solve(this.clients);
    const start = [-1.1, 1.15];
    this.goal = this.clients.map((f) => gradient(f, this.solution));
    this.h = this.clients.map(() => [0, 0]);
    this.x = { local: start, scaffnew: start };
    this.trail = { local: [start], scaffnew: [start] };
    this.paths = { local: [], scaffnew: [] };
    this.errors = [];
    this.measure();
  }

  measure() {
    const error = (x) => norm(add(x, this.solution, -1));
    const learned = Math.max(...this.h.map((h, i) => norm(add(h, this.goal[i], -1))));
    this.errors.push({ local: error(this.x.local), scaffnew: error(this.x.scaffnew), h: learned });
  }

  step() {
    const { gamma, p } = this, K = geometric(p, this.draw);
    this.K = K;
    this.paths.local = this.clients.map((f) => descend(f, this.x.local, [0, 0], gamma, K));
    this.paths.scaffnew = this.clients.map((f, i) => descend(f, this.x.scaffnew, this.h[i], gamma, K));
    const ends = this.paths.scaffnew.map((path) => path[K]);
    this.x = { local: mean(this.paths.local.map((path) => path[K])), scaffnew: mean(ends) };
    // h_i <- h_i + (p/gamma) (x+ - xhat_i)
    this.h = this.h.map((h, i) => add(h, add(this.x.scaffnew, ends[i], -1), p / gamma));
    for (const name of ["local", "scaffnew"]) this.trail[name].push(this.x[name]);
    this.round++;
    this.measure();
  }
}

// -- the pictures ------------------------------------------------------------------------------------------------------
const NS = "http://www.w3.org/2000/svg";
const COLORS = ["#0072B2", "#D55E00", "#009E73"], DASHES = ["", "7 4", "2 4"];
function svg(tag, attributes, ...inside) {
  const node = document.createElementNS(NS, tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  node.append(...inside);
  return node;
}
const at = ([x, y]) => [(x + 2) * 100, (1.6 - y) * 100]; // the plane [-2, 2] x [-1.6, 1.6] on 400 x 320 pixels
const d = (points) => "M" + points.map((v) => at(v).map((w) => w.toFixed(1)).join(" ")).join("L");

function drawPlane(node, race, name) {
  const parts = [], { solution } = race;
  race.clients.forEach((f, i) => {
    const [u, v] = at(f.center), turn = 0.5 * Math.atan2(2 * f.H[1], f.H[0] - f.H[2]);
    for (const level of [0.25, 0.55]) {
      parts.push(svg("ellipse", { cx: u, cy: v, rx: 100 * level, ry: 100 * level / Math.sqrt(CURVATURES[1]), class: "level",
        stroke: COLORS[i], transform: `rotate(${(-turn * 180 / Math.PI).toFixed(1)} ${u} ${v})` }));
    }
    parts.push(svg("rect", { x: u - 5, y: v - 5, width: 10, height: 10, fill: COLORS[i] }));
    parts.push(svg("text", { x: u + 9, y: v - 7, class: "name" }, `client ${i + 1}`));
  });
  race.paths[name].forEach((path, i) => {
    parts.push(svg("path", { d: d(path), class: "path", stroke: COLORS[i], "stroke-dasharray": DASHES[i] }));
    const [u, v] = at(path[path.length - 1]);
    parts.push(svg("circle", { cx: u, cy: v, r: 3.5, fill: COLORS[i] }));
  });
  parts.push(svg("path", { d: d(race.trail[name]), class: "trail" }));
  if (name === "scaffnew") {
    // from the solution: what each h_i should be (thin) and what it is (thick)
    race.goal.forEach((g, i) => {
      const end = (h) => d([solution, add(solution, h, 0.8)]);
      parts.push(svg("path", { d: end(g), class: "goal", stroke: COLORS[i] }));
      parts.push(svg("path", { d: end(race.h[i]), class: "shift", stroke: COLORS[i] }));
    });
  }
  const [su, sv] = at(solution), [xu, xv] = at(race.x[name]);
  parts.push(svg("path", { d: `M${su - 8} ${sv}H${su + 8}M${su} ${sv - 8}V${sv + 8}`, class: "solution" }));
  parts.push(svg("circle", { cx: xu, cy: xv, r: 6, class: "server" }));
  node.replaceChildren(...parts);
}

function drawErrors(node, race) {
  const width = 840, height = 190, left = 54, bottom = 30, last = Math.max(40, race.round);
  const px = (k) => left + (k / last) * (width - left - 150), py = (v) => 10 + ((2 - Math.log10(Math.max(v, 1e-12))) / 14) * (height - bottom - 10);
  const parts = [];
  for (let k = 0; k >= -12; k -= 4) {
    parts.push(svg("path", { d: `M${left} ${py(10 ** k)}H${width - 150}`, class: "grid" }));
    parts.push(svg("text", { x: left - 6, y: py(10 ** k) + 4, "text-anchor": "end", class: "name" }, k ? `1e${k}` : "1"));
  }
  parts.push(svg("text", { x: width - 150, y: height - 4, "text-anchor": "end", class: "name" }, `communication rounds (${last})`));
  const lines = [["local", "LocalGD: |x − x*|", "#E69F00", "2 4"], ["scaffnew", "Scaffnew: |x − x*|", "#D55E00", ""], ["h", "Scaffnew: |h − ∇f(x*)|", "#0072B2", "7 4"]];
  const labels = lines.map(([name, label, color]) => ({ label, color, y: py(race.errors[race.round][name]) })).sort((a, b) => a.y - b.y);
  labels.forEach((l, k) => { if (k) l.y = Math.max(l.y, labels[k - 1].y + 15); });
  labels.reduceRight((below, l) => { l.y = Math.min(l.y, below); return l.y - 15; }, height - bottom);
  for (const [name, , color, dashes] of lines) {
    const points = race.errors.map((e, k) => `${px(k).toFixed(1)} ${py(e[name]).toFixed(1)}`);
    parts.push(svg("path", { d: "M" + points.join("L"), class: "path", stroke: color, "stroke-dasharray": dashes, "stroke-width": 2.2 }));
  }
  for (const l of labels) parts.push(svg("text", { x: px(race.round) + 8, y: l.y + 4, class: "name", fill: l.color }, l.label));
  node.replaceChildren(...parts);
}

// -- the page ----------------------------------------------------------------------------------------------------------
const CONTROLS = [
  ["n", "clients", 2, 3, 1, 2], ["distance", "distance between the clients", 0, 1.3, 0.05, 1],
  ["p", "p, the probability to communicate", 0.05, 1, 0.05, 0.2], ["gamma", "γ, the step size (1/L = 1)", 0.05, 2.1, 0.05, 0.9],
];
function build(root) {
  root.innerHTML = '<div class="controls"></div><div class="buttons"></div><div class="planes"></div><p class="said" aria-live="polite"></p>';
  const inputs = {}, planes = {}, controls = root.querySelector(".controls");
  for (const [name, label, min, max, step, value] of CONTROLS) {
    const line = document.createElement("label"), input = document.createElement("input"), shown = document.createElement("output");
    Object.assign(input, { type: "range", min, max, step, value, id: `play-${name}` });
    shown.textContent = value;
    line.append(`${label} `, shown, input);
    controls.append(line);
    inputs[name] = input;
    input.addEventListener("input", () => { shown.textContent = input.value; restart(wanted); });
  }
  for (const [name, title] of [["local", "LocalGD drifts"], ["scaffnew", "Scaffnew learns h"]]) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    planes[name] = svg("svg", { viewBox: "0 0 400 320", role: "img", "aria-label": title });
    caption.textContent = title;
    figure.append(caption, planes[name]);
    root.querySelector(".planes").append(figure);
  }
  const errors = svg("svg", { viewBox: "0 0 840 190", role: "img", "aria-label": "errors by communication rounds", class: "errors" });
  root.insertBefore(errors, root.querySelector(".said"));
  let race, timer = 0, wanted = 24; // rounds that are shown at first, and again when a control is moved
  const values = () => Object.fromEntries(Object.entries(inputs).map(([k, v]) => [k, Number(v.value)]));
  function show() {
    for (const name of ["local", "scaffnew"]) drawPlane(planes[name], race, name);
    drawErrors(errors, race);
    const now = race.errors[race.round], steps = race.K ? `, the last one with ${race.K} local step${race.K > 1 ? "s" : ""}` : "";
    root.querySelector(".said").textContent = `${race.round} rounds${steps}. Distance to the solution: LocalGD ${now.local.toExponential(1)}, Scaffnew ${now.scaffnew.toExponential(1)}.`;
    root.race = race;
  }
  function stop() { clearInterval(timer); timer = 0; play.textContent = "Play"; }
  const finite = () => Number.isFinite(race.errors[race.round].local + race.errors[race.round].scaffnew);
  function restart(rounds) {
    stop();
    for (race = new Race(values()), wanted = rounds; race.round < rounds && finite();) race.step();
    show();
  }
  function step() { race.step(); wanted = race.round; show(); }
  const button = (label, act) => {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = label;
    b.addEventListener("click", act);
    root.querySelector(".buttons").append(b);
    return b;
  };
  const play = button("Play", () => {
    if (timer) { stop(); return; }
    play.textContent = "Pause";
    timer = setInterval(() => { step(); if (race.round >= 120 || !finite()) stop(); }, 250);
  });
  button("One round", step);
  button("Start again", () => restart(0));
  restart(wanted);
}
document.addEventListener("DOMContentLoaded", () => { const root = document.getElementById("playground"); if (root) build(root); });
