// The page of runs. Whatever comes from files is written by textContent only.
"use strict";

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"];
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const chosen = new Set();
let leave = () => {};  // ends what the shown view has started

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const child of [content].flat()) {
    if (child === undefined || child === null) continue;
    if (child instanceof Node) made.append(child);
    else made.append(document.createTextNode(String(child)));
  }
  return made;
}

async function ask(what, parameters) {
  const response = await fetch(`/api/${what}?${new URLSearchParams(parameters)}`);
  const answer = await response.json();
  if (answer.problem) throw new Error(answer.problem);
  return answer;
}

function show(...content) {
  const main = document.getElementById("main");
  main.replaceChildren(...content);
}

function say(text) {
  document.getElementById("status").textContent = text;
}

function shown(value, scale, digits = 1) {
  if (value === null || value === undefined) return "-";
  return (scale * value).toFixed(digits) + (scale === 100 ? " %" : "");
}

function table(header, rows, label) {
  const head = element("tr", header.map((cell) => element("th", cell, { scope: "col" })));
  const whole = element("table", [element("thead", head), element("tbody", rows)]);
  return element("div", whole, { class: "scroll", tabindex: "0", role: "region", "aria-label": label });
}

const cell = (content, kind = "") => element("td", content, kind ? { class: kind } : {});
const runLink = (id, text) => element("a", text, { href: "#/run/" + encodeURIComponent(id) });
const clientLink = (id, name) =>
  element("a", name, { href: `#/client/${encodeURIComponent(id)}/${encodeURIComponent(name)}` });

// Charts

function chart(place, x, series, label, band) {
  const lines = series.map((each, i) => ({
    label: each.label,
    stroke: COLOURS[i % COLOURS.length],
    dash: DASHES[i % DASHES.length],
    width: 2,
    points: { show: x.length < 30 },
    spanGaps: true,
    value: (_, value) => (value === null || value === undefined ? "-" : value.toFixed(2)),
  }));
  const options = {
    width: Math.max(280, Math.min(place.clientWidth || 700, 900)),
    height: 300,
    scales: { x: { time: false } },
    axes: [{ label: "round" }, { label, size: 60 }],
    series: [{ label: "round" }, ...lines],
    bands: band ? [{ series: band, fill: "rgba(86, 180, 233, 0.25)" }] : [],
  };
  return new uPlot(options, [x, ...series.map((each) => each.values)], place);
}

// The list of runs

async function showRuns() {
  const words = element("input", [], { type: "search", id: "words", "aria-label": "Filter runs",
    placeholder: "rule, dataset, seed=0, running ..." });
  const compare = element("button", "Compare", { id: "compare", type: "button" });
  const count = element("span", "", { id: "count" });
  const place = element("div", []);
  show(element("h1", "Runs"), element("div", [words, compare, count], { class: "bar" }), place);
  let timer = 0;
  let asked = 0;
  const chose = () => {
    compare.textContent = `Compare ${chosen.size} chosen`;
    compare.disabled = chosen.size < 1;
  };
  const row = (run) => {
    const box = element("input", [], { type: "checkbox", "aria-label": `Choose ${run.id}` });
    box.checked = chosen.has(run.id);
    box.disabled = run.state === "broken";
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(run.id); else chosen.delete(run.id);
      chose();
    });
    const name = run.state === "broken" ? run.id || "." : runLink(run.id, run.id || ".");
    const state = run.problem ? `broken: ${run.problem}` : run.state;
    return element("tr", [
      cell(box), cell(name, "name"), cell(run.title), cell(run.dataset), cell(run.seed, "number"),
      cell(`${run.round} of ${run.rounds}`, "number"),
      cell(state, run.problem ? "name state-broken" : `state-${run.state}`),
      cell(shown(run.mean, run.scale), "number"), cell(shown(run.worst, run.scale), "number"),
    ]);
  };
  const load = async () => {
    clearTimeout(timer);
    const mine = ++asked;
    let found;
    try {
      found = await ask("runs", { words: words.value });
    } catch (error) {
      say(error.message);
      return;
    }
    if (mine !== asked || !words.isConnected) return;  // a later question was asked
    document.getElementById("folder").textContent = found.folder;
    count.textContent = found.matching > found.runs.length
      ? `the first ${found.runs.length} of ${found.matching} runs` : `${found.matching} runs`;
    const header = ["", "folder", "method", "dataset", "seed", "rounds", "state", "mean", "worst tenth"];
    place.replaceChildren(table(header, found.runs.map(row), "Runs"));
    say("");
    if (found.running) timer = setTimeout(load, 2000);
  };
  let waiting = 0;
  words.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(load, 150);
  });
  compare.addEventListener("click", () => {
    location.hash = "#/compare/" + [...chosen].map(encodeURIComponent).join("/");
  });
  leave = () => { clearTimeout(timer); clearTimeout(waiting); asked++; };
  chose();
  await load();
}

// One run

async function showRun(id) {
  const found = await ask("run", { id });
  const run = found.run;
  const progress = element("progress", [], { max: run.rounds, value: run.round, "aria-label": "rounds" });
  const words = element("span", "", { id: "progress" });
  const told = (state, round) => {
    words.textContent = `${state}: round ${round} of ${run.rounds}`;
    progress.value = round;
  };
  told(run.state, run.round);
  const place = element("div", [], { class: "chart" });
  const clients = element("div", []);
  const search = element("input", [], { type: "search", id: "client-words", placeholder: "client",
    "aria-label": "Filter clients" });
  show(
    element("h1", `${run.title}: ${run.id || "."}`),
    element("div", [progress, words], { class: "bar" }),
    element("h2", `${run.score} over rounds`),
    element("p", "The line is the mean over clients; the band lies between worst and best tenth.",
      { class: "note" }),
    place,
    element("h2", "Clients"),
    element("div", [search], { class: "bar" }),
    clients,
    figure("Weights over rounds: whom the rule favoured", "weights", id),
    figure("Regret", "regret", id),
    unfold("The rule", element("p", found.rule.about), element("pre", found.rule.details)),
    unfold("The experiment", element("pre", found.experiment)),
    unfold("Versions", element("pre", JSON.stringify(found.facts, null, 2))),
  );
  const columns = found.curve;
  const scaled = (key) => columns[key].map((value) => (value === null ? null : found.scale * value));
  const data = () => [columns.round, scaled("mean"), scaled("worst_10"), scaled("best_10")];
  const [x, mean, worst, best] = data();
  const plot = chart(place, x, [
    { label: "mean", values: mean },
    { label: "worst tenth", values: worst },
    { label: "best tenth", values: best },
  ], run.score + (found.scale === 100 ? " (%)" : ""), [3, 2]);
  let source = null;
  let asked = 0;
  const list = async () => {
    const mine = ++asked;
    let page;
    try {
      page = await ask("clients", { id, words: search.value });
    } catch (error) {
      clients.replaceChildren(element("p", error.message));
      return;
    }
    if (mine !== asked) return;
    const rows = page.clients.map((each) => element("tr", [
      cell(clientLink(id, each.name), "name"), cell(shown(each.score, page.scale, 2), "number"),
      cell(each.rows, "number"),
    ]));
    clients.replaceChildren(
      element("p", `${page.clients.length} of ${page.all} clients, the worst off first`, { class: "note" }),
      table(["client", page.score, "rows"], rows, "Clients"));
  };
  search.addEventListener("input", list);
  leave = () => { asked++; if (source) source.close(); plot.destroy(); };
  list();
  if (run.state === "finished") return;
  source = new EventSource("/api/follow?" + new URLSearchParams({ id }));
  source.addEventListener("rounds", (event) => {
    const news = JSON.parse(event.data);
    const last = columns.round.length ? columns.round[columns.round.length - 1] : 0;
    for (const each of news.evaluated) {
      if (each.round <= last) continue;
      columns.round.push(each.round);
      for (const key of ["mean", "worst_10", "best_10", "worst"]) {
        columns[key].push(each.metrics[key] === undefined ? null : each.metrics[key]);
      }
    }
    told("running", news.round);
    plot.setData(data());
    if (news.evaluated.length) list();
  });
  source.addEventListener("finished", () => {
    told("finished", run.rounds);
    source.close();
  });
  source.addEventListener("problem", (event) => {
    say(JSON.parse(event.data).problem);
    source.close();
  });
}

function unfold(title, ...content) {
  return element("details", [element("summary", title), ...content]);
}

// A figure is drawn when it is unfolded, and not before.
function figure(title, what, ...ids) {
  const place = element("div", []);
  const whole = unfold(title, place);
  whole.addEventListener("toggle", () => {
    if (!whole.open || place.firstChild) return;
    const address = "/api/figure?" + new URLSearchParams([["what", what], ...ids.map((id) => ["id", id])]);
    const image = element("img", [], { alt: title });
    image.addEventListener("error", async () => {
      const answer = await fetch(address).then((response) => response.json());
      place.replaceChildren(element("p", answer.problem));
    });
    image.src = address;
    place.append(image);
  });
  return whole;
}

// One client

async function showClient(id, name) {
  const found = await ask("client", { id, name });
  const scores = element("div", [], { class: "chart" });
  const weights = element("div", [], { class: "chart" });
  show(
    element("h1", name),
    element("p", ["in ", runLink(id, id || ".")]),
    element("h2", `${found.score} over rounds`),
    scores,
    element("h2", "Weight over rounds, and why"),
    element("p", "1 is the weight of an equal share, and the mean loss of the cohort: a fair rule gives "
      + "more weight to a client whose loss is above 1.", { class: "note" }),
    weights,
    found.events.length ? element("ul", found.events.map((each) => element("li", each))) : null,
    element("h2", `The rule: ${found.rule.name}`),
    element("p", found.rule.about),
    element("pre", found.rule.details),
  );
  const scaled = found.scores.score.map((value) => (value === null ? null : found.scale * value));
  const plots = [
    chart(scores, found.scores.round, [{ label: found.score, values: scaled }], found.score),
    chart(weights, found.weights.round, [
      { label: "weight relative to equal", values: found.weights.weight },
      { label: "loss relative to the cohort's mean", values: found.weights.loss },
    ], "relative to the cohort"),
  ];
  leave = () => plots.forEach((each) => each.destroy());
}

// Several runs

async function showComparison(ids) {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  const found = await ask("compare", query);
  const place = element("div", [], { class: "chart" });
  const rows = found.rows.map((row) => element("tr", row.map((each, i) => cell(each, i ? "number" : "name"))));
  const first = ids[0];
  const alone = found.worth ? [
    element("h2", "Compared with local training"),
    table(found.worth.header, found.worth.rows.map((row) => element("tr",
      row.map((each, i) => cell(each, i ? "number" : "name")))), "Compared with local training"),
    figure("Every client's score, with local training as a ring", "clients", ...ids),
  ] : [];
  const changes = found.changes.flatMap((each) => [
    element("h2", `${each.label} against ${found.base}`),
    who("gained", each.gained, each.more[0], first),
    who("lost", each.lost, each.more[1], first),
  ]);
  show(
    element("h1", "Comparison"),
    element("p", found.title),
    table(found.header, rows, "Comparison"),
    ...alone,
    ...found.notes.map((note) => element("p", note, { class: "note" })),
    element("h2", "Worst tenth of the clients over rounds (first seed)"),
    place,
    ...changes,
  );
  const x = [...new Set(Object.values(found.curves).flatMap((each) => each.round))].sort((a, b) => a - b);
  const series = Object.entries(found.curves).map(([label, curve]) => {
    const by = new Map(curve.round.map((round, k) => [round, curve.worst_10[k]]));
    const value = (round) => (by.get(round) === undefined || by.get(round) === null ? null : found.scale * by.get(round));
    return { label, values: x.map(value) };
  });
  const plot = chart(place, x, series, found.score);
  leave = () => plot.destroy();
}

function who(what, pairs, more, id) {
  const items = pairs.flatMap(([name, change], i) => [
    i ? ", " : "", clientLink(id, name), ` ${change > 0 ? "+" : ""}${change.toFixed(1)}`,
  ]);
  const rest = more ? `, and ${more} more` : "";
  return element("p", [`${pairs.length + more} ${what}${pairs.length ? ": " : ""}`, ...items, rest]);
}

// Where we are

async function go() {
  leave();
  leave = () => {};
  say("");
  try {
    const [view, ...rest] = location.hash.slice(2).split("/").map(decodeURIComponent);
    if (view === "run") await showRun(rest[0]);
    else if (view === "client") await showClient(rest[0], rest[1]);
    else if (view === "compare") await showComparison(rest);
    else await showRuns();
  } catch (error) {
    show(element("p", error.message, { class: "problem" }), element("a", "All runs", { href: "#/" }));
  }
}

window.addEventListener("hashchange", () => {
  go().then(() => {
    document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  });
});
go();
