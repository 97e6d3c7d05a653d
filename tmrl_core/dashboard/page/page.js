// The page: takes events of one stream, and shows the latest. It computes nothing but pictures; words come from the
// server (faults.py, verdict.py), which has tests for them.
//
// Times: the server tells ages, since clocks of machines differ. Between two events this page lets them grow.

import {Chart, Curve, numberText, timeText} from "./chart.js";

const $ = id => document.getElementById(id);
const MARK = {good: "✓", note: "•", warn: "!", bad: "✕", off: "–"};
const RETURN = "rollout/ep_rew", EVALUATION = "eval/mean_reward", LOWEST = "eval/min_reward", HIGHEST = "eval/max_reward";
const TITLES = {
  "rollout/ep_rew_mean": "Mean return", "rollout/ep_len_mean": "Steps of an episode", "rollout/success_rate": "Success rate",
  "train/ent_coef_loss": "Loss of the entropy coefficient", "train/value_loss": "Loss of the values",
  "train/memory_len": "Samples in the memory", "time/fps": "Environment steps per second", "time/updates_per_s": "Updates per second",
  "train/actor_loss": "Loss of the policy", "train/critic_loss": "Loss of the critics", "train/ent_coef": "Entropy coefficient",
  "worker/policy_lag_mean": "Policy lag, in versions", "wire/queue_bytes": "Bytes that wait for training",
};
// Of a scene, which leaves out what has its default.
const EMPTY = {version: [0, 0], elapsed_s: 0, state: "collecting", waits: "", env_steps: 0, updates: 0, target_return: null,
  values: {}, events: [], checkpoints: [], policies: [], settings: {}, orders: []};
const LONGEST_SILENCE_S = 5; // of the server of this page, which sends each second

let every = {}; // all settings
let screen = null, curves = {}, axis = "steps", heardAt = 0, lost = "", sent = new Map();
const known = new Map(); // latest values of which curves have a point already
const shown = new Map(); // what a table shows, so that it is made again only if it changes

const returns = new Chart($("return-chart"), {label: "Return of training episodes", smooth: true, curve: new Curve()});
const charts = new Map();

function make(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function setText(id, text) {
  const at = $(id);
  if (at.textContent !== text) at.textContent = text;
}

// Replace the rows of a table if they have changed. A cell is text, a number, or an element.
function rows(id, lines, numbers = []) {
  const key = JSON.stringify(lines);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  const body = document.querySelector(`#${id} tbody`);
  body.replaceChildren(...lines.map(line => {
    const row = make("tr");
    line.forEach((cell, i) => row.append(make("td", String(cell), numbers.includes(i) ? "n" : "")));
    return row;
  }));
}

// Year, month, day: read alike everywhere.
const date = seconds => new Date(seconds * 1000).toLocaleString("sv-SE");
const short = value => value === null || value === undefined ? "–" : numberText(Number(value.toPrecision(3)));
const ago = seconds => seconds === null || seconds === undefined ? "never" : seconds < 90 ? `${Math.round(seconds)} s` : timeText(seconds);

function showScreen(next) {
  if (next.scene) next.scene = {...EMPTY, ...next.scene};
  screen = next;
  const scene = screen.scene;
  document.title = `${worst() === "bad" ? "✕ " : worst() === "warn" ? "! " : ""}${scene?.run ?? $("run").textContent}`;
  if (scene) {
    setText("run", scene.run);
    setText("steps", numberText(scene.env_steps));
    setText("updates", numberText(scene.updates));
    setText("elapsed", timeText(scene.elapsed_s));
    setText("version", scene.version[1] ? `v${scene.version[1]}` : "–");
    $("version").title = `policy version ${scene.version.join(".")}: incarnation of the trainer, and counter`;
  }
  const state = !screen.link.startsWith("connected") ? "not connected" : scene ? scene.state : "no trainer";
  setText("state", state);
  $("state").className = {training: "good", collecting: "note", evaluating: "note", paused: "note", ended: "note", waiting: "warn"}[state] ?? "bad";
  showVerdict(); showFaults(); showAlive(); showOrders(); showPictures();
  if (!scene) return;
  document.body.classList.remove("empty");
  grow(scene);
  rows("policies", scene.policies.map(([version, time, mean]) => [`v${version[1]}`, date(time), numberText(mean)]).reverse(), [2]);
  rows("checkpoints", scene.checkpoints.map(([time, updates, name]) => [name, date(time), numberText(updates)]).reverse(), [2]);
  rows("events", scene.events.map(([time, name, message]) => [date(time), name.replaceAll("_", " "), message]).reverse());
  rows("settings", Object.entries(scene.settings));
  rows("values", Object.entries(scene.values).map(([name, value]) => [name, numberText(value)]), [1]);
}

const worst = () => screen?.faults.some(one => one.level === "bad") ? "bad" : screen?.faults.some(one => one.level === "warn") ? "warn" : "good";

function showVerdict() {
  setText("verdict", screen.verdict.headline);
  $("verdict").className = `answer ${screen.verdict.reached || screen.verdict.trend === "rising" ? "good" : ""}`;
  setText("verdict-text", screen.verdict.text);
}

function showFaults() {
  const faults = lost ? [{level: "bad", text: lost, step: "Is `--dashboard` still running? This page connects again by itself."}] : screen?.faults ?? [];
  const count = faults.filter(one => one.level !== "note").length;
  setText("wrong-answer", count ? `Yes: ${count === 1 ? "one thing" : `${count} things`}` : "No");
  $("wrong-answer").className = `answer ${faults.some(one => one.level === "bad") ? "bad" : count ? "warn" : "good"}`;
  const key = JSON.stringify(faults);
  if (shown.get("faults") === key) return;
  shown.set("faults", key);
  $("faults").replaceChildren(...faults.map(({level, text, step}) => {
    const item = make("li", undefined, level);
    item.append(make("b", text), make("span", step));
    return item;
  }));
}

function showAlive() {
  const key = JSON.stringify(screen.parts);
  if (shown.get("parts") !== key) {
    shown.set("parts", key);
    $("parts").replaceChildren(...screen.parts.map(({name, level, text}) => {
      const item = make("li", undefined, level);
      item.append(make("b", `${MARK[level]} ${name}`), make("span", text));
      return item;
    }));
  }
  $("workers").hidden = screen.recorded;
  // Rows stay in place while their worker stays, so that a button does not vanish under the pointer.
  const body = document.querySelector("#workers tbody");
  screen.workers.forEach((worker, index) => {
    let row = body.rows[index];
    if (!row) {
      row = body.insertRow();
      for (let i = 0; i < 9; i++) row.insertCell().className = i > 1 ? "n" : "";
      const cell = row.insertCell(), button = make("button");
      cell.className = "order";
      button.type = "button";
      button.addEventListener("click", () => orderWorker(row.dataset.name, row.dataset.paused === "true"));
      cell.append(button);
    }
    row.dataset.name = worker.name;
    row.dataset.paused = worker.paused;
    const texts = [worker.name, `${MARK[worker.level]} ${worker.state}`, worker.level === "off" ? "–" : ago(worker.last_sample_s), short(worker.steps_per_s),
      short(worker.lateness_ms), short(worker.version_lag), short(worker.rtt_ms), numberText(worker.drops), ago(worker.since_s)];
    texts.forEach((text, i) => { if (row.cells[i].textContent !== text) row.cells[i].textContent = text; });
    row.cells[1].className = worker.level;
    const button = row.cells[9].firstChild, word = worker.paused ? "Resume" : "Pause";
    if (button.textContent !== word) button.textContent = word;
    const label = `${word} ${worker.name}`;
    if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    button.disabled = worker.level === "off";
  });
  while (body.rows.length > screen.workers.length) body.deleteRow(-1);
}

// --- curves ---

function takeCurves({series, settings}) {
  known.clear();
  every = settings ?? {};
  showSettings();
  curves = Object.fromEntries(Object.entries(series).map(([name, columns]) => [name, new Curve(columns)]));
  drawCurves();
}

// Curves come each half minute; in between the values of each screen are their last points. Values are measured once an
// episode, a round or an evaluation and not once a second, so one that has not changed is no new point.
function grow(scene) {
  let changed = false;
  for (const name in curves) {
    const curve = curves[name], value = scene.values[name], last = curve.length - 1;
    if (!Number.isFinite(value) || scene.env_steps <= (curve.steps[last] ?? -1)) continue;
    if (Math.abs(value - (known.get(name) ?? curve.values[last])) <= 1e-4 * Math.abs(value)) continue;
    known.set(name, value);
    curve.add(scene.env_steps, scene.elapsed_s, value);
    changed = true;
  }
  if (changed || returns.options.target !== scene.target_return) drawCurves();
}

function drawCurves() {
  returns.set({
    curve: curves[RETURN] ?? new Curve(), axis, target: screen?.scene?.target_return ?? null,
    spread: curves[EVALUATION] ? {mean: curves[EVALUATION], low: curves[LOWEST], high: curves[HIGHEST]} : null,
  });
  $("target-legend").style.visibility = returns.options.target === null ? "hidden" : ""; // its place stays
  for (const name in curves) {
    if (name === RETURN || name.startsWith("eval/")) continue;
    if (!charts.has(name)) {
      const figure = make("figure", undefined, "chart");
      $("charts").append(figure);
      charts.set(name, new Chart(figure, {title: TITLES[name] ?? name}));
    }
    charts.get(name).set({curve: curves[name], axis});
  }
}

for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => {
  axis = button.dataset.axis;
  for (const one of document.querySelectorAll("[data-axis]")) one.setAttribute("aria-pressed", String(one === button));
  drawCurves();
});

// --- orders ---

let asked = 0; // number of the latest question

async function confirmed(text, {command = "", yes = "Send"} = {}) {
  setText("confirm-text", text);
  setText("confirm-command", command);
  $("confirm-command").hidden = !command;
  $("confirm-yes").hidden = !yes;
  if (yes) setText("confirm-yes", yes);
  setText("confirm-no", yes ? "Cancel" : "Close");
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  // A dialog tells later that it was closed, when the next question may be open already: that is no answer to it.
  const mine = ++asked;
  return new Promise(resolve => dialog.addEventListener("close", function closed() {
    if (mine === asked && dialog.open) return;
    dialog.removeEventListener("close", closed);
    resolve(mine === asked && dialog.returnValue === "yes");
  }));
}

async function post(order) {
  const answer = await fetch("orders", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(order)});
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

async function send(order, question, yes) {
  if (!await confirmed(question, {yes})) return;
  setText("outcome", "sending …");
  try {
    const found = await post(order);
    sent.set(found.id, question);
    setText("outcome", "sent; the trainer has not answered yet");
    showOrders();
  } catch (error) {
    setText("outcome", `not sent: ${error.message}`);
  }
}

function orderWorker(name, paused) {
  if (paused) send({kind: "resume_worker", worker: name}, `Let ${name} collect again?`, "Resume");
  else send({kind: "pause_worker", worker: name}, `Pause ${name} at the end of its episode?`, "Pause");
}

$("pause").addEventListener("click", () => screen?.scene?.state === "paused"
  ? send({kind: "resume"}, "Let training go on?", "Resume")
  : send({kind: "pause"}, "Pause training? Samples are still received.", "Pause"));
$("checkpoint").addEventListener("click", () => send({kind: "checkpoint"}, "Write a checkpoint now?", "Write"));
$("ratio").addEventListener("submit", event => {
  event.preventDefault();
  const value = $("ratio-value").valueAsNumber;
  if (value > 0) send({kind: "ratio", value}, `At most ${numberText(value)} updates per environment step from now on?`, "Set");
});
$("revoke").addEventListener("submit", event => {
  event.preventDefault();
  const name = $("revoke-name").value;
  const quoted = /^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
  confirmed(`Type this where the CA's key is. It shuts ${name} out for good; running roles apply it.`,
    {command: `python -m tmrl_core --credentials revoke ${quoted}`, yes: ""});
});

function showOrders() {
  const may = Boolean(screen?.may_order);
  $("orders").hidden = !may;
  document.body.classList.toggle("orders", may);
  if (!may) return;
  const orders = screen.scene?.orders ?? [];
  setText("pause", screen.scene?.state === "paused" ? "Resume training" : "Pause training");
  for (const [id, text, outcome] of orders) if (sent.delete(id)) setText("outcome", `${text}: ${outcome}`);
  const lines = orders.map(([, text, outcome, time, by]) => `${date(time)}  ${by ? `${by}: ` : ""}${text}: ${outcome}`).reverse();
  const key = JSON.stringify(lines);
  if (shown.get("orders") !== key) {
    shown.set("orders", key);
    $("order-list").replaceChildren(...lines.map(line => make("li", line)));
  }
  const names = screen.workers.map(worker => worker.name);
  if (shown.get("names") !== names.join("\n")) {
    shown.set("names", names.join("\n"));
    $("names").replaceChildren(...names.map(name => { const option = make("option"); option.value = name; return option; }));
  }
}

// --- camera and video ---

// A picture is fetched when its number has changed, and not while nobody sees this page: the worker stops soon after.
const pictures = new Map(); // figures by worker and kind

function showPictures() {
  showLooked();
  const may = Boolean(screen?.may_order), workers = may ? screen.workers.filter(one => one.level !== "off").map(one => one.name) : [];
  $("pictures").hidden = !screen.pictures.length && !workers.length;
  $("look").hidden = !workers.length;
  if (shown.get("look") !== workers.join("\n")) {
    shown.set("look", workers.join("\n"));
    const chosen = $("look-worker").value;
    $("look-worker").replaceChildren(...workers.map(name => make("option", name)));
    if (workers.includes(chosen)) $("look-worker").value = chosen;
  }
  if (document.hidden) return;
  for (const one of screen.pictures) {
    const key = `${one.kind} ${one.worker}`;
    if (!pictures.has(key)) {
      const figure = make("figure"), media = make(one.kind === "camera" ? "img" : "video"), caption = make("figcaption");
      if (one.kind === "video") Object.assign(media, {controls: true, loop: true, muted: true, playsInline: true});
      figure.append(media, caption);
      $("picture-list").append(figure);
      pictures.set(key, {figure, media, caption, number: -1, busy: false});
    }
    const at = pictures.get(key);
    if (at.number !== one.number && !at.busy) fetchPicture(at, one);
  }
}

async function fetchPicture(at, {worker, kind, number, size, text, origin}) {
  const what = kind === "camera" ? `Camera of ${worker}` : worker ? `Latest evaluation of ${worker}` : "Latest evaluation";
  const proven = origin && origin !== worker ? `certificate ${origin}` : "";
  at.number = number;
  at.busy = true;
  at.media.hidden = !size;
  at.caption.textContent = [what, proven, text, date(number / 1e6)].filter(Boolean).join(" · ");
  try {
    if (!size) return;
    const answer = await fetch(`pictures/${kind}?worker=${encodeURIComponent(worker)}`);
    if (!answer.ok) return;
    const before = at.media.src, url = URL.createObjectURL(await answer.blob());
    at.media[kind === "camera" ? "alt" : "ariaLabel"] = what;
    at.media.src = url;
    if (before) URL.revokeObjectURL(before);
  } catch { /* not reached: the stream says so */ } finally { at.busy = false; }
}

$("look").addEventListener("submit", async event => {
  event.preventDefault();
  const kind = event.submitter.value, worker = $("look-worker").value;
  setText("look-outcome", `asking ${worker} …`);
  try {
    const answer = await post({kind, worker});
    looked = {id: answer.id, worker};
    showLooked();
  } catch (error) {
    setText("look-outcome", `not sent: ${error.message}`);
  }
});

let looked = null; // the latest wish

function showLooked() {
  if (!looked) return;
  const answer = (screen?.scene?.orders ?? []).find(([id]) => id === looked.id);
  if (!answer) return;
  setText("look-outcome", answer[2] === "done" ? `${looked.worker} was asked` : answer[2]);
  looked = null;
}

// --- all settings ---

function showSettings() {
  const names = Object.keys(every), wanted = $("setting-filter").value.trim().toLowerCase();
  $("all-settings").hidden = !names.length;
  if (!$("all-settings").open) return;
  rows("every-setting", names.filter(name => `${name} ${every[name]}`.toLowerCase().includes(wanted)).map(name => [name, every[name]]));
}

$("all-settings").addEventListener("toggle", showSettings);
$("setting-filter").addEventListener("input", showSettings);

// --- the stream ---

function connect() {
  const stream = new EventSource("events");
  const heard = () => { heardAt = performance.now(); if (lost) { lost = ""; shown.delete("faults"); } };
  stream.addEventListener("open", heard);
  stream.addEventListener("screen", event => { heard(); showScreen(JSON.parse(event.data)); });
  stream.addEventListener("curves", event => { heard(); takeCurves(JSON.parse(event.data)); });
  stream.addEventListener("end", () => { stream.close(); lose("The live page has ended."); again(); });
  stream.addEventListener("error", () => {
    lose("The server of this page is not reached.");
    if (stream.readyState === EventSource.CLOSED) again(); // refused: by itself it would never try again
  });
}

async function again() {
  await new Promise(resolve => setTimeout(resolve, 3000));
  try {
    const answer = await fetch("about");
    if (answer.status === 401) { location.href = "login/"; return; }
    if (answer.ok) { connect(); return; }
  } catch { /* not reached */ }
  again();
}

function lose(text) {
  lost = text;
  showFaults();
}

setInterval(() => {
  const silence = (performance.now() - heardAt) / 1000;
  if (heardAt && !lost && silence > LONGEST_SILENCE_S) lose(`The server of this page has been silent for ${Math.round(silence)} s.`);
  if (!screen) return;
  const age = screen.scene_age_s + silence;
  setText("age", screen.scene ? (screen.recorded ? "a recorded run" : `values of ${age < 2 ? "now" : `${ago(age)} ago`}`) : "");
}, 1000);

fetch("about").then(answer => answer.json()).then(about => {
  if ($("run").textContent.trim() === "") setText("run", about.run);
  setText("about", `tmrl_core ${about.version}`);
  $("logout").hidden = !about.login;
  $("links").replaceChildren(...(about.links ?? []).map(({title, url}) => { const link = make("a", title); link.href = url; return link; }));
}).catch(() => {});
connect();
