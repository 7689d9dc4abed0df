// The page: home, comparison, client and run. Names are text nodes, never markup.
"use strict";

const main = document.getElementById("main");
const tools = document.getElementById("tools");
const trail = document.getElementById("trail");
let leave = () => {};  // what the view that is left has to clean up
let plots = [];
const chosen = new Set();  // ids of runs

function element(name, children = [], attributes = {}) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  for (const child of [children].flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

async function ask(what, parameters) {
  const answer = await fetch(`/api/${what}?${new URLSearchParams(parameters)}`);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.problem || "the server did not answer");
  return value;
}

function say(text) { document.getElementById("status").textContent = text; }
function link(view, parameters, text, attributes = {}) {
  return element("a", text, { href: `#/${view}?${new URLSearchParams(parameters)}`, ...attributes });
}
function card(...children) { return element("section", children, { class: "card" }); }
function code(text) { return element("pre", text, { tabindex: "0" }); }  // it may scroll: reachable by the keyboard
function unfold(title, ...content) { return element("details", [element("summary", title), ...content]); }
function titled(score, unit) { return unit ? `${score} (${unit})` : score; }
function number(value, digits) { return value === null ? "–" : minus(value.toFixed(digits)); }
function minus(text) { return text.replace(/(^|[\s[(])-(?=\d)/g, "$1−"); }
function gain(text) {  // "+1.2 [+0.3, +2.1]" with a muted interval
  const [first, ...rest] = text.split(" ");
  if (!/^[+-]/.test(first) || !rest.length) return minus(text);
  return [minus(first), element("small", " " + minus(rest.join(" ")))];
}
function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find(([, k]) => past >= k) || ["second", 1];
  const count = Math.floor(past / size);
  return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
}

function crumbs(...parts) {
  trail.replaceChildren(...parts.flatMap((part) => [" › ", part]));
}

function download(title, parameters) {
  const name = title.replace(/[^A-Za-z0-9]+/g, "-");
  const items = [
    ["Picture (SVG)", "figure", { what: "clients", form: "svg", file: `${name}.svg` }],
    ["Picture (PNG)", "figure", { what: "clients", form: "png", file: `${name}.png` }],
    ["Curves (PDF)", "figure", { what: "rounds", form: "pdf", file: `${name}-rounds.pdf` }],
    ["Table (CSV)", "table", { form: "csv", file: `${name}.csv` }],
    ["Table (LaTeX)", "table", { form: "tex", file: `${name}.tex` }],
    ["Report (HTML)", "report", { title, file: `${name}.html` }],
  ];
  const list = items.map(([text, what, more]) => {
    const query = new URLSearchParams([...parameters, ...Object.entries(more)]);
    return element("li", element("a", text, { href: `/api/${what}?${query}`, download: "" }));
  });
  return element("details", [element("summary", "Download ▾", { class: "button" }), element("ul", list)], { class: "menu" });
}

function copyLink() {
  const button = element("button", "Copy link", { type: "button" });
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(location.href); say("The link was copied."); } catch { say(location.href); }
  });
  return button;
}

function search(placeholder, names, href) {
  const id = "names";
  const options = names.slice(0, 2000).map((name) => element("option", [], { value: name }));
  const input = element("input", [], { type: "search", id: "find", list: id, placeholder, "aria-label": placeholder });
  input.addEventListener("change", () => { if (names.includes(input.value)) location.hash = href(input.value).slice(1); });
  return element("span", [input, element("datalist", options, { id })]);
}

// A table whose header sorts. rows: { cells: [[content, value], ...], attributes }
function sortable(header, rows, label, first = []) {
  const body = element("tbody", []);
  let by = -1;
  let down = true;
  const fill = () => {
    const order = [...rows];
    if (by >= 0) {
      const value = (row) => row.cells[by][1];
      const rank = (a, b) => (typeof value(a) === "number" && typeof value(b) === "number" ? value(a) - value(b)
        : String(value(a)).localeCompare(String(value(b)), undefined, { numeric: true }));
      order.sort((a, b) => {
        const [x, y] = [value(a), value(b)].map((v) => v === null || v === "");
        if (x || y) return x - y;  // what has no value stands last
        return down ? rank(b, a) : rank(a, b);
      });
    }
    body.replaceChildren(...order.map((row) => element("tr",
      row.cells.map(([content], k) => element("td", content, first[k] ? { class: first[k] } : {})), row.attributes || {})));
  };
  const heads = header.map((title, k) => {
    if (title === "") return element("th", element("span", "Choose", { class: "unseen" }), { class: "box", scope: "col" });
    const button = element("button", title, { type: "button", title: "Sort" });
    const head = element("th", button, { scope: "col", ...(first[k] ? { class: first[k] } : {}) });
    button.addEventListener("click", () => {
      [by, down] = by === k ? [k, !down] : [k, typeof (rows[0] && rows[0].cells[k][1]) === "number"];
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill();
    });
    return head;
  });
  fill();
  const whole = element("table", [element("thead", element("tr", heads)), body]);
  return element("div", whole, { class: "scroll", tabindex: "0", role: "region", "aria-label": label });
}

function numbers(table, marks = (label) => label) {  // a table of the server; the significantly best cell is bold
  const rows = table.labels.map((label, r) => ({ cells: [[marks(label), label], ...table.columns.map(([, cells, best]) => {
    const content = gain(cells[r]);
    return [best === r ? element("b", content) : content, Number.isNaN(parseFloat(cells[r])) ? cells[r] : parseFloat(cells[r])];
  })] }));
  return sortable([table.header, ...table.columns.map(([title]) => title)], rows, table.title);
}

function show(...children) {
  main.replaceChildren(...children.filter((child) => child !== null));
}

function forget() {
  plots.forEach((plot) => plot.destroy());
  plots = [];
}

// Home

async function showHome() {
  crumbs();
  const words = element("input", [], { type: "search", id: "words", "aria-label": "Filter runs",
    placeholder: "Filter: rule, dataset, seed=0 …" });
  const compare = element("button", "Compare chosen", { id: "compare", type: "button", class: "main" });
  const count = element("span", "", { id: "count", class: "muted" });
  const place = element("div", element("div", [], { class: "skeleton" }));
  tools.replaceChildren();
  show(element("h1", "Experiments"), element("div", [words, compare, count], { class: "bar" }), place);
  let timer = 0;
  let asked = 0;
  const choose = () => {
    compare.textContent = chosen.size ? `Compare ${chosen.size} chosen runs` : "Compare chosen";
    compare.disabled = chosen.size < 1;
  };
  const load = async () => {
    clearTimeout(timer);
    const mine = ++asked;
    let found;
    try { found = await ask("home", { words: words.value }); } catch (error) { say(error.message); return; }
    if (mine !== asked || !words.isConnected) return;  // a later question was asked
    count.textContent = found.matching === found.all ? `${found.all} runs in ${found.folder}` : `${found.matching} of ${found.all} runs`;
    const cards = found.federations.map((each) => federationCard(each, choose));
    if (found.broken.length) {
      const rows = found.broken.map((run) => ({ cells: [[run.id || ".", run.id], [`broken: ${run.problem}`, run.problem]] }));
      cards.push(card(unfold(`${found.broken.length} broken run${found.broken.length === 1 ? "" : "s"}`,
        sortable(["folder", "reason"], rows, "Broken runs", ["name", "name"]))));
    }
    if (!found.all) cards.push(emptyCard());
    place.replaceChildren(...cards);
    if (found.running) timer = setTimeout(load, 3000);
  };
  let waiting = 0;
  words.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(load, 150); });
  compare.addEventListener("click", () => {
    location.hash = `/compare?${new URLSearchParams([...chosen].map((id) => ["id", id]))}`;
  });
  leave = () => { clearTimeout(timer); clearTimeout(waiting); asked++; };
  choose();
  await load();
}

function emptyCard() {
  return card(element("h2", "There are no runs here yet. To begin:"),
    code("commonweal demo\ncommonweal init patients.csv\ncommonweal compare patients.toml --seeds 5"));
}

function federationCard(federation, choose) {
  const better = new Map();
  const rows = federation.methods.map((method) => {
    const box = element("input", [], { type: "checkbox", "aria-label": `Choose ${method.label} of ${federation.name}` });
    box.checked = method.ids.every((id) => chosen.has(id));
    box.addEventListener("change", () => {
      for (const id of method.ids) if (box.checked) chosen.add(id); else chosen.delete(id);
      choose();
    });
    const off = element("span", "–");
    for (const id of method.finished) better.set(id, off);
    const named = { alone: "local training", pooled: "pooled data" };
    const name = method.baseline ? named[method.label] || method.label : method.label;
    const view = method.ids.length === 1 ? link("run", { id: method.ids[0] }, name)
      : link("compare", method.ids.map((id) => ["id", id]), name);
    return { attributes: method.baseline ? { class: "baseline" } : {}, cells: [
      [box, 0], [view, name],
      [number(method.worst, federation.digits), method.worst], [number(method.mean, federation.digits), method.mean],
      [off, name], [String(method.ids.length), method.ids.length],
      [method.progress ? `${method.state}: ${method.progress}` : method.state, method.state],
    ] };
  });
  const unit = federation.unit ? ` (${federation.unit})` : "";
  const header = ["", "method", `worst 10 % of clients${unit}`, `mean${unit}`, "better off than local", "seeds", "state"];
  const kinds = ["box", "name", "", "wide-only", "", "wide-only", "wide-only"];
  const samples = federation.samples === null ? "" : ` · ${federation.samples.toLocaleString("en")} samples`;
  const score = federation.score + (federation.lower_is_better ? ", lower is better" : "");
  const verdict = element("p", "", { class: "answer" });
  const ids = federation.methods.flatMap((method) => method.ids);
  const title = ids.length === 1 ? link("run", { id: ids[0] }, federation.name, { class: "title" })
    : link("compare", { federation: federation.key }, federation.name, { class: "title" });
  const whole = card(
    element("h2", [title, ` · ${federation.clients.toLocaleString("en")} clients${samples} · ${score} · last run ${ago(federation.changed)}`]),
    verdict, sortable(header, rows, `Methods of ${federation.name} (${federation.key.slice(0, 6)})`, kinds),
  );
  if (federation.methods.length > 1) {
    ask("verdict", { federation: federation.key }).then((found) => {
      verdict.textContent = minus(found.verdict);
      for (const [id, text] of Object.entries(found.better)) if (better.has(id)) better.get(id).textContent = text;
    }).catch((error) => { verdict.textContent = error.message; });
  }
  return whole;
}

// Comparison

const LOCAL = "local training";

function keys(plot) {  // the entries of a legend
  const methods = plot.labels.map((method, i) => element("span", [key(i), method]));
  return plot.has_local ? [element("span", [key(-1), LOCAL]), ...methods] : methods;
}

function inUnits(line, factor) {  // a line of the client plot with scores as shown
  const scaled = (value) => (value === null ? null : factor * value);
  return { ...line, local: scaled(line.local), scores: line.scores.map(scaled) };
}

function leftOut(lines) {
  if (!lines.length) return null;
  if (lines.length === 1) return element("p", lines[0], { class: "about" });
  const list = element("ul", lines.map((line) => element("li", line)), { class: "note" });
  return lines.length > 3 ? unfold(`${lines.length} notes on runs`, list) : list;
}

async function showComparison(query) {
  show(element("div", [], { class: "skeleton" }));
  const view = await ask("compare", query);
  const { overview: over, plot } = view;
  const unit = view.unit && ` ${view.unit}`;
  const all = plot.lines.map((line) => inUnits(line, view.factor));
  const href = (name) => `#/client?${new URLSearchParams([...query, ["name", name]])}`;
  const names = all.map((line) => line.client);
  crumbs(link("", {}, over.name), "comparison");
  tools.replaceChildren(search("Find a client … /", names, href), download(over.name, query), copyLink());
  const place = element("div", []);
  const legend = element("div", [
    ...keys(plot),
    plot.compared ? element("span", `bar: from ${LOCAL} to ${plot.compared}, faint if not significant`) : null,
  ], { class: "legend" });
  const MANY = 60;
  const every = element("button", `Show all ${all.length} clients`, { type: "button" });
  let lines = all.length > MANY ? [...all.slice(0, MANY / 2), ...all.slice(-MANY / 2)] : all;
  const redraw = () => place.replaceChildren(clientPlot(plot, lines, unit, Math.max(320, place.clientWidth), href));
  every.addEventListener("click", () => { lines = all; every.remove(); redraw(); });
  const side = element("aside", [
    over.advice.length ? element("h2", "What to do") : null,
    over.advice.length ? element("ul", over.advice.map((text) => element("li",
      text.startsWith("commonweal ") ? element("code", text) : text))) : null,
    ...over.named.flatMap((named) => [element("h2", named.title), element("ul", [
      ...named.clients.map(([name, value]) => element("li", [element("a", name, { href: href(name) }), " " + minus(value)])),
      named.more ? element("li", `and ${named.more} more`) : null])]),
  ], { class: "card side" });
  const metric = element("select", Object.entries(view.metrics).map(([value, text]) => element("option", text, { value })),
    { "aria-label": "Metric over rounds" });
  const curves = element("div", []);
  const settings = Object.entries(view.settings).flatMap(([label, texts]) => [element("h2", label), code(texts.join("\n") || "–")]);
  const runs = Object.entries(view.runs).flatMap(([label, ids]) => ids.map((id) => element("li", [label + ": ", link("run", { id }, id || ".")])));
  const marked = (label) => {
    const i = plot.labels.indexOf(label);
    return i < 0 && label !== LOCAL ? label : element("span", [key(i), " " + label]);
  };
  show(
    element("h1", minus(over.headline)),
    element("p", over.about, { class: "about" }),
    leftOut(view.left_out),
    element("div", over.cards.map((each) => card(element("h2", each.title), element("strong", minus(each.value)),
      each.more ? element("span", each.more, { class: "more" }) : null, element("p", minus(each.note)))), { class: "cards" }),
    element("div", [
      card(element("h2", plot.has_local ? "Every client: local training and the methods" : "Every client under each method"), legend, place,
        all.length > MANY ? element("p", [`The ${MANY / 2} highest and the ${MANY / 2} lowest. `, every], { class: "note" }) : null),
      side.childElementCount ? side : null,
    ], side.childElementCount ? { class: "two" } : {}),
    card(numbers(over.methods, marked), element("ul", over.notes.map((note) => element("li", minus(note))), { class: "note" }),
      unfold("All numbers", numbers(over.numbers), over.gains ? numbers(over.gains) : null),
      unfold("Every client", numbers(over.clients))),
    card(element("h2", ["Over rounds, mean and range over seeds: ", metric]), curves),
    card(unfold("Weights over rounds: whom the rules favour", ...figures("weights", view.runs)),
      unfold("Regret", ...figures("regret", view.runs)),
      unfold("Settings that differ", ...settings), unfold("Runs", element("ul", runs))),
  );
  const drawCurves = () => {
    forget();
    const [rounds, series] = joined(view.curves, (each) => each[metric.value]);
    curvesIn(curves, rounds, series, titled(view.score, view.unit));
  };
  metric.addEventListener("change", drawCurves);
  redraw();
  drawCurves();
  const again = () => { redraw(); drawCurves(); };
  window.addEventListener("resize", again);
  window.addEventListener("theme", drawCurves);
  leave = () => { window.removeEventListener("resize", again); window.removeEventListener("theme", drawCurves); forget(); };
}

// A chart, or why there is none.
function curvesIn(place, rounds, series, label) {
  place.replaceChildren();
  if (!rounds.length || !series.length) place.append(element("p", "Nothing was recorded.", { class: "note" }));
  else if (rounds.length < 2) place.append(element("p", "Only one round was evaluated: set evaluate_every lower.", { class: "note" }));
  else plots.push(chart(place, rounds, series, label));
}

// A figure of the first run of each method, drawn when it is unfolded and not before.
function figures(what, runs) {
  return Object.entries(runs).filter(([label, ids]) => ids.length && !["alone", "pooled"].includes(label))
    .map(([label, ids]) => figure(`${label}, first seed`, what, ids[0]));
}

function figure(title, what, id) {
  const place = element("div", []);
  const whole = unfold(title, place);
  whole.addEventListener("toggle", () => {
    if (!whole.open || place.firstChild) return;
    const address = `/api/figure?${new URLSearchParams({ what, id })}`;
    const image = element("img", [], { alt: `${what} over rounds: ${title}`, class: "figure" });
    image.addEventListener("error", async () => {
      const answer = await fetch(address).then((response) => response.json());
      place.replaceChildren(element("p", answer.problem, { class: "note" }));
    });
    image.src = address;
    place.append(image);
  });
  return whole;
}

// One client under all methods

async function showClient(query) {
  show(element("div", [], { class: "skeleton" }));
  const view = await ask("client", query);
  const rest = query.filter(([name]) => name !== "name");
  const href = (name) => `#/client?${new URLSearchParams([...rest, ["name", name]])}`;
  crumbs(link("", {}, view.dataset), link("compare", rest, "comparison"), view.name);
  tools.replaceChildren(search("Find a client … /", view.names, href), element("a", "← Previous", { href: href(view.before), class: "button", id: "before" }),
    element("a", "Next →", { href: href(view.after), class: "button", id: "after" }), copyLink());
  const rows = view.methods.map((method, i) => ({ cells: [
    [element("span", [key(method.label === LOCAL ? -1 : i), " " + method.label]), method.label], [method.score, method.value],
    [gain(method.gain), parseFloat(method.gain)], [method.weight || "–", parseFloat(method.weight)],
  ] }));
  const picture = element("div", []);
  const scores = element("div", []);
  const weights = element("div", []);
  const losses = element("div", []);
  const events = view.methods.flatMap((method) => method.events.map((text) => element("li", `${method.label}, ${text}`)));
  show(
    element("h1", view.sentence),
    element("p", `${view.samples} test samples, ${view.share} of all.`, { class: "about" }),
    card(element("div", keys(view.plot), { class: "legend" }), picture,
      sortable(["method", view.score, "gain over local training", "mean weight (1: equal)"],
        rows, "Methods", ["", "", "", "wide-only"])),
    card(element("h2", `${view.score} over rounds (first seed)`), scores),
    element("div", [
      card(element("h2", "Weight over rounds (first seed)"), weights,
        element("p", "1 is an equal weight.", { class: "note" })),
      card(element("h2", "Loss over rounds (first seed)"), losses,
        element("p", "1 is the cohort's mean. A fair rule gives more weight where the loss is above it.", { class: "note" })),
    ], { class: "halves" }),
    events.length ? card(element("h2", "Replies that were not used, or reduced"), element("ul", events)) : null,
  );
  const named = Object.fromEntries(view.methods.map((method) => [method.label, method]));
  const drawAll = () => {
    forget();
    const line = view.plot.lines.map((each) => inUnits(each, view.factor));
    picture.replaceChildren(clientPlot(view.plot, line, view.unit && ` ${view.unit}`, Math.max(320, picture.clientWidth), href));
    const [rounds, series] = joined(named, (each) => ({ round: each.rounds, mean: each.scores }));
    curvesIn(scores, rounds, series, titled(view.score, view.unit));
    for (const [place, column, label] of [[weights, "weights", "relative weight"], [losses, "losses", "relative loss"]]) {
      const [at, lines] = joined(named, (each) => ({ round: each.weights_at, mean: each[column] }));
      curvesIn(place, at, lines.filter((each) => each.values.some((value) => value !== null)), label);
    }
  };
  drawAll();
  window.addEventListener("theme", drawAll);
  leave = () => { window.removeEventListener("theme", drawAll); forget(); };
}

// One run

async function showRun(query) {
  show(element("div", [], { class: "skeleton" }));
  const view = await ask("run", query);
  const id = view.id;
  crumbs(link("compare", { federation: view.federation }, view.dataset), id || ".");
  tools.replaceChildren(copyLink());
  const progress = element("progress", [], { max: view.total, value: view.round, "aria-label": "rounds" });
  const words = element("span", "", { id: "progress" });
  const tell = (state, round, left = null) => {
    const time = left === null ? "" : `, about ${left < 90 ? `${Math.round(left)} s` : `${Math.round(left / 60)} min`} left`;
    words.textContent = `${state}: round ${round} of ${view.total}${time}`;
    progress.value = round;
  };
  tell(view.state, view.round, view.seconds_left);
  const known = view.clients.length || !view.private.length;
  const more = card(
    known ? figure("Weights over rounds: whom the rule favoured", "weights", id) : null,
    known ? figure("Regret", "regret", id) : null,
    view.rule.details ? unfold("The rule", element("p", view.rule.about), code(view.rule.details)) : null,
    unfold("The experiment", code(view.experiment)),
    unfold("Facts and versions", code(JSON.stringify(view.facts, null, 2))));
  const curve = element("div", []);
  const descent = element("div", []);
  const clients = element("div", []);
  const worst = element("h1", "");
  const list = (rows) => {
    const missing = view.private.length ? `${view.label}: the scores of clients are private` : `${view.label}: not evaluated yet`;
    worst.textContent = rows.length ? `${view.label} serves ${rows[0][0]} worst: ${rows[0][1]}` : missing;
    const rated = Object.keys(view.rates).length > 0;
    const mixed = Object.keys(view.partners).length > 0;
    const number = (value) => (value === undefined ? ["–", NaN] : [value.toPrecision(2), value]);
    clients.replaceChildren(sortable(["client", view.score, "test samples", ...(rated ? ["rate of descent"] : []),
      ...(mixed ? ["weight of partners"] : [])],
      rows.map(([name, score, samples]) => ({ cells: [[link("client", [["id", id], ["name", name]], name), name],
        [score, parseFloat(score)], [samples, parseFloat(samples)], ...(rated ? [number(view.rates[name])] : []),
        ...(mixed ? [number(view.partners[name])] : [])] })), "Clients", ["", "", "", "wide-only", "wide-only"]));
  };
  list(view.clients);
  show(
    worst,
    element("p", `Run ${id || "."}`, { class: "about" }),
    element("div", [progress, words], { class: "bar" }),
    view.resume ? element("p", ["It was stopped. To continue: ", element("code", view.resume)]) : null,
    view.private.length ? card(element("h2", "Privacy"), element("ul", view.private.map((text) => element("li", text)))) : null,
    known ? element("div", [
      element("div", [
        card(element("h2", `${view.score} over rounds`), curve),
        Object.keys(view.descent).length ? card(element("h2", "Descent: the direction of each round"), descent) : null,
        more,
      ]),
      card(element("h2", "Clients, the worst first"), clients),
    ], { class: "halves" }) : more,
  );
  const columns = { round: [], mean: [], worst_10: [] };
  if (view.curves.mean) {
    columns.round = view.curves.mean.round;
    columns.mean = view.curves.mean.mean;
    columns.worst_10 = view.curves.worst_10.mean;
  }
  const drawCurve = () => {
    forget();
    curvesIn(curve, columns.round, [{ label: "mean", values: columns.mean },
      { label: "worst 10 % of clients", values: columns.worst_10 }], titled(view.score, view.unit));
    descent.replaceChildren();
    for (const [label, [rounds, values]] of Object.entries(view.descent)) plots.push(chart(descent, rounds, [{ label, values }], label));
  };
  drawCurve();
  let source = null;
  window.addEventListener("theme", drawCurve);
  leave = () => { window.removeEventListener("theme", drawCurve); if (source) source.close(); forget(); };
  if (view.state === "finished") return;
  source = new EventSource(`/api/follow?${new URLSearchParams({ id })}`);
  source.addEventListener("rounds", async (event) => {
    const news = JSON.parse(event.data);
    const last = columns.round.length ? columns.round[columns.round.length - 1] : 0;
    for (const each of news.evaluated) {
      if (each.round <= last) continue;
      columns.round.push(each.round);
      for (const name of ["mean", "worst_10"]) columns[name].push(each.metrics[name] === undefined ? null : view.factor * each.metrics[name]);
    }
    if (news.round === view.round && view.state === "stopped") return;  // nothing new
    tell("running", news.round);
    drawCurve();
    if (news.evaluated.length) list((await ask("run", query)).clients);
  });
  source.addEventListener("finished", () => { tell("finished", view.total); source.close(); });
  source.addEventListener("problem", (event) => { say(JSON.parse(event.data).problem); source.close(); });
}

// Where we are

async function go() {
  leave();
  leave = () => {};
  say("");
  const [view, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = [...new URLSearchParams(query)];
  try {
    if (view === "compare") await showComparison(parameters);
    else if (view === "client") await showClient(parameters);
    else if (view === "run") await showRun(parameters);
    else await showHome();
  } catch (error) {
    crumbs();
    tools.replaceChildren();
    show(element("h1", "This cannot be shown."), element("p", error.message, { class: "problem" }), element("a", "All experiments", { href: "#/" }));
  }
}

window.addEventListener("hashchange", () => {
  go().then(() => { main.focus({ preventScroll: true }); scrollTo(0, 0); });
});

// Keyboard: / searches, j and k move in a table, Enter opens, Esc goes back.
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key === "Escape") {
    if (typing) document.activeElement.blur();
    else if (location.hash.length > 2) history.back();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.getElementById("find") || document.getElementById("words");
    if (field) { field.focus(); event.preventDefault(); }
    return;
  }
  const rows = [...main.querySelectorAll("tbody tr")].filter((row) => row.offsetParent !== null);
  const at = rows.findIndex((row) => row.classList.contains("here"));
  if (event.key === "j" || event.key === "k") {
    const next = Math.min(rows.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)));
    if (at >= 0) rows[at].classList.remove("here");
    if (rows[next]) { rows[next].classList.add("here"); rows[next].scrollIntoView({ block: "nearest" }); }
  } else if (event.key === "Enter" && at >= 0 && document.activeElement === main) {
    const target = rows[at].querySelector("a");
    if (target) target.click();
  }
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds for this page only */ }
  window.dispatchEvent(new Event("theme"));
});
go();
