// The page: holds the question and its history, asks at each change, and writes what comes back.
import { Cards, element, shownForm, weightsOf } from "./cards.js";
import { Graph } from "./graph.js";
import { chance, number, rounded, share } from "./numbers.js";
import { ask, fetched, saved, stop } from "./talk.js";

const $ = (id) => document.getElementById(id);
const ALL = 300; // variables that are shown at once; of larger models a neighbourhood is
const PART = 40; // variables of a neighbourhood
const ROWS = 200; // of the table of an answer
let model, byName, cards, graph, pinned = [], asList = false, changed = 0;
const neighbours = new Map();
const moments = [];
const past = []; // of {question, what}
let now = -1;
const view = {
  question: { query: null, evidence: {}, do: {}, constraints: [], top_k: 1, epsilon: 0.01, time_limit: 10 },
  marginals: {}, assignment: {}, histograms: {}, answer: null, texts: {},
  isAsked: (name) => view.question.query?.includes(name) ?? (!(name in view.question.do) && !("state" in (view.question.evidence[name] ?? {})) && !("value" in (view.question.evidence[name] ?? {}))),
};

// ---- the question and its history

const change = (more, what) => {
  past.splice(now + 1);
  past.push({ question: { ...view.question, ...more }, what });
  go(past.length - 1);
};

const go = (place) => {
  if (place < 0 || place >= past.length) return;
  now = place;
  view.question = past[now].question;
  changed = performance.now();
  $("undo").disabled = now === 0;
  $("redo").disabled = now === past.length - 1;
  for (const name of ["top_k", "epsilon", "time_limit"]) $(name).value = view.question[name];
  drawQuestion();
  if (model.variables.length > ALL) drawPart();
  refresh();
  answer();
};

const observe = (variable, form) => {
  if (form === undefined) return;
  const { [variable.name]: _, ...evidence } = view.question.evidence, { [variable.name]: __, ...done } = view.question.do;
  const query = view.question.query?.filter((name) => name !== variable.name || form === null || weightsOf(form, variable.states?.length ?? 0));
  const more = { evidence: form === null ? evidence : { ...evidence, [variable.name]: form }, do: done };
  change({ ...more, query: query?.length ? query : null }, form === null ? `${variable.name} withdrawn` : `${variable.name} ${shownForm(variable, form)}`);
};

const drawQuestion = () => {
  const { question } = view, chips = [];
  const chip = (text, kind, drop) => {
    const button = element("button", { className: kind, onclick: drop }, `${text} ✕`);
    button.setAttribute("aria-label", `Withdraw ${text}`);
    chips.push(element("li", {}, button));
  };
  for (const [name, form] of Object.entries(question.evidence)) chip(`${name} ${shownForm(byName.get(name), form)}`, "seen", () => observe(byName.get(name), null));
  for (const [name, value] of Object.entries(question.do)) chip(`do ${name} ${shownForm(byName.get(name), { [byName.get(name).states ? "state" : "value"]: value })}`, "done", () => observe(byName.get(name), null));
  question.constraints.forEach((rule, k) => chip(shownRule(rule), "", () => change({ constraints: question.constraints.filter((_, j) => j !== k) }, "constraint withdrawn")));
  if (question.query) chip(`asks about ${question.query.slice(0, 6).join(", ")}${question.query.length > 6 ? " …" : ""}`, "", () => change({ query: null }, "asks about everything"));
  else chips.push(element("li", { className: "quiet", textContent: "asks about all that is not observed" }));
  $("chips").replaceChildren(...chips);
  $("history").replaceChildren(...past.map(({ what }, k) => {
    const button = element("button", { onclick: () => go(k) }, what);
    if (k === now) button.setAttribute("aria-current", "step");
    return element("li", {}, button);
  }));
};

// ---- answers

const seconds = (moment) => `${number(Number(moment.seconds.toPrecision(2)))} s`;

const busy = (is) => { $("stop").disabled = !is; };

const said = (text, kind = "") => {
  if ($("said").textContent !== text) $("said").textContent = text;
  $("verdict").className = `verdict ${kind}`;
};

const answer = () => {
  moments.length = 0;
  view.answer = null;
  busy(true);
  const waits = setTimeout(() => said("Searching for the best joint answer"), 300);
  ask("answer", view.question, (event, data) => {
    if (["answer", "refused", "stopped", "progress"].includes(event)) clearTimeout(waits);
    ({ asked: onAsked, progress: onProgress, answer: onAnswer, marginals: onMarginals, histograms: onHistograms, refused: onRefused, stopped: onStopped, end: () => busy(false) })[event]?.(data);
  });
};

const onAsked = (texts) => {
  view.texts = texts;
  for (const name of ["python", "shell"]) $(name).textContent = texts[name];
};

const onProgress = (moment) => {
  moments.push(moment);
  said("Searching: this is the best so far");
  drawBounds(moment);
  $("clock").textContent = seconds(moment);
  if (!moment.assignment) return;
  view.assignment = moment.assignment;
  refresh();
};

const onAnswer = (found) => {
  Object.assign(view, { answer: found, assignment: found.assignment });
  said(found.proved, found.certified ? "good" : "open");
  moments.push(found);
  drawBounds(found);
  $("clock").textContent = seconds(found);
  $("notes").replaceChildren(...found.notes.map((text) => element("p", {}, text)));
  $("facts").innerHTML = found.facts; // escaped by the server
  $("found").replaceChildren();
  refresh();
  document.documentElement.dataset.answered = (performance.now() - changed).toFixed(1);
};

const onMarginals = ({ "": fault, ...found }) => {
  view.marginals = found;
  if (fault) $("notes").append(element("p", {}, `No marginals: ${fault}`));
  refresh();
};

const onHistograms = ({ "": fault, ...found }) => {
  view.histograms = Object.fromEntries(Object.entries(found).map(([name, [ends, shares]]) => [name, { ends, shares }]));
  if (fault) $("notes").append(element("p", {}, `No histograms: ${fault}`));
  refresh();
};

const onRefused = ({ message }) => {
  Object.assign(view, { answer: null, assignment: {}, marginals: {} });
  said(message, "open");
  for (const id of ["bounds", "clock"]) $(id).textContent = "";
  $("notes").replaceChildren();
  $("chart").toggleAttribute("hidden", true);
  refresh();
};

const onStopped = () => { if (!view.answer) said("Stopped before there was an answer", "open"); };

const drawBounds = ({ low, high, what = "value" }) => {
  const [least, most] = [low, high].map((x) => (x === null ? null : chance(x)));
  const told = least === most ? least : least === null ? `at most ${most}` : most === null ? `at least ${least}` : `from ${least} to ${most}`;
  $("bounds").textContent = `${what} ${told ?? "unknown"}`;
  const held = moments.filter((m) => m.low !== null && m.high !== null);
  $("chart").toggleAttribute("hidden", held.length < 3);
  if (held.length < 3) return;
  const bottom = Math.min(...held.map((m) => m.low)), top = Math.max(...held.map((m) => m.high)), first = held[0].seconds, last = held.at(-1).seconds;
  const at = (seconds, log) => `${(300 * (seconds - first) / (last - first || 1)).toFixed(1)} ${(66 - 62 * (log - bottom) / (top - bottom || 1)).toFixed(1)}`;
  const path = (field) => held.map((m) => at(m.seconds, m[field]));
  $("lower").setAttribute("d", `M${path("low").join("L")}`);
  $("upper").setAttribute("d", `M${path("high").join("L")}`);
  $("between").setAttribute("d", `M${path("low").join("L")}L${path("high").reverse().join("L")}Z`);
};

let waiting = false;
const refresh = () => {
  if (waiting) return;
  waiting = true;
  queueMicrotask(() => { waiting = false; cards.update(view); drawAnswer(); });
};

const label = (name, value) => byName.get(name).states?.[value] ?? number(rounded(value, view.histograms[name]?.ends));

const drawAnswer = () => {
  const top = view.answer?.top.length > 1 ? view.answer.top : [[view.assignment, null]], first = top[0][0];
  const differing = (name) => top.some(([a]) => a[name] !== first[name]);
  const names = Object.keys(first).filter((name) => byName.has(name)).sort((a, b) => differing(b) - differing(a));
  const head = element("tr", {}, element("th", { textContent: "variable", scope: "col" }), ...top.map(([, log], k) => element("th", { scope: "col", textContent: log === null ? "best" : `${k + 1}. ${chance(log)}` })), element("th", { textContent: "alone", scope: "col" }));
  const rows = names.slice(0, ROWS).map((name) => {
    const row = view.marginals[name], peak = row ? row.indexOf(Math.max(...row)) : null;
    const alone = element("td", {}, row ? `${label(name, peak)} ${share(row[peak])} ` : "");
    if (row && row[first[name]] < row[peak] * (1 - 1e-9)) alone.append(element("span", { className: "mark", textContent: "≠", title: "differs from the joint answer" }));
    const cells = top.map(([a], k) => element("td", { className: k && a[name] !== first[name] ? "differs" : "", textContent: label(name, a[name]) }));
    return element("tr", {}, element("th", { scope: "row" }, element("button", { textContent: name, onclick: () => find(name) })), ...cells, alone);
  });
  const more = names.length - ROWS;
  $("answer").replaceChildren(element("caption", { textContent: more > 0 ? `and ${number(more)} more variables, which Save answer holds` : "" }), element("thead", {}, head), element("tbody", {}, ...rows));
};

const dig = (kind) => {
  if (kind === "next" && !view.question.query) return $("found").replaceChildren("Every variable is queried, so none is left to test. Choose what you ask about: the name of a card has its options.");
  $("found").replaceChildren("Working");
  busy(true);
  ask(kind, view.question, (event, data) => {
    if (event === "html") $("found").innerHTML = `<h3>${data.title}</h3>${data.html}`; // escaped by the server
    if (event === "refused") $("found").replaceChildren(data.message);
    if (event === "stopped") $("found").replaceChildren("Stopped");
    if (event === "end") busy(false);
  });
};

// ---- constraints

const shownRule = (rule) => {
  const states = (held) => Object.entries(held).map(([n, s]) => `${n}=${s}`).join(", ");
  if (rule.kind === "Never") return `never ${states(rule.states)}`;
  if (rule.kind === "Implies") return `${states(rule.premise)} implies ${states(rule.conclusion)}`;
  if (rule.kind === "AllDifferent") return `all different: ${rule.names.join(", ")}`;
  return `${rule.kind.replace("At", "at ").toLowerCase()} ${rule.k} of ${rule.names.join(", ")} = ${rule.state}`;
};

const readPairs = (text) => Object.fromEntries(text.split(",").map((part) => part.split("=").map((x) => x.trim())).filter((pair) => pair.length === 2).map(([name, state]) => [name, typed(name, state)]));

/** The label that a text names: of a number or a truth value, not its text. */
const typed = (name, text) => { const v = byName.get(name); return v?.labels?.[v.states.indexOf(text)] ?? text; };

const addRule = (e) => {
  e.preventDefault();
  const kind = $("rule-kind").value, text = $("rule-text").value, [names, state] = [text.split("=")[0].split(",").map((x) => x.trim()), text.split("=")[1]?.trim()];
  const more = { Never: { states: readPairs(text) }, Implies: { premise: readPairs(text), conclusion: readPairs($("rule-then").querySelector("input").value) }, AllDifferent: { names } }[kind] ?? { k: Number($("rule-k").querySelector("input").value), names, state: typed(names[0], state) };
  const rule = { kind, ...more };
  change({ constraints: [...view.question.constraints, rule] }, shownRule(rule));
};

const ruleKind = () => {
  const kind = $("rule-kind").value, counted = ["AtMost", "AtLeast", "Exactly"].includes(kind);
  $("rule-k").hidden = !counted;
  $("rule-then").hidden = kind !== "Implies";
  $("rule-hint").textContent = counted ? "Variables and a state, such as A, B, C=yes" : kind === "AllDifferent" ? "Variables, such as A, B" : "States, such as A=yes, B=no";
};

// ---- options of a variable

const options = (variable) => {
  const dialog = $("options"), { name, states } = variable, form = view.question.evidence[name];
  const choice = (group, value, text, checked, ...more) => element("label", {}, element("input", { type: "radio", name: group, value, checked }), element("span", { textContent: text }), ...more);
  const legend = (text, ...inside) => element("fieldset", {}, element("legend", { textContent: text }), ...inside);
  const parts = [element("h2", { id: "options-title", textContent: name })];
  const held = weightsOf(form, states?.length) ?? states?.map((_, k) => (form?.state === undefined || form.state === k ? 1 : 0));
  if (states) {
    const p = view.marginals[name];
    parts.push(legend("Observe", choice("see", "", "not observed", !form), ...states.map((s, k) => choice("see", k, `${s}${p ? `  (${share(p[k])})` : ""}`, form?.state === k)), choice("see", "soft", "soft: the weights below", Boolean(weightsOf(form, states.length)))));
    parts.push(legend("Weights of soft evidence, P(observation | state)", ...states.map((s, k) => element("label", {}, element("span", { textContent: s }), element("input", { type: "range", min: 0, max: 1, step: 0.01, value: held[k], name: "weight", oninput: (e) => { e.target.form.elements.see.value = "soft"; } })))));
    if (model.causal) parts.push(legend("Set from outside, do()", choice("do", "", "no", !(name in view.question.do)), ...states.map((s, k) => choice("do", k, s, view.question.do[name] === k))));
  } else parts.push(element("p", { textContent: "Type a value, or low … high, below the histogram, or drag over it." }));
  parts.push(element("label", { className: "row" }, element("input", { type: "checkbox", name: "ask", checked: view.question.query?.includes(name) ?? false }), "Ask about this one (and others so marked), not about everything"));
  parts.push(element("p", { className: "row" }, element("button", { value: "apply", textContent: "Apply" }), element("button", { value: "", textContent: "Cancel" })));
  dialog.firstElementChild.replaceChildren(...parts);
  dialog.onclose = () => { if (dialog.returnValue === "apply") apply(variable, dialog.firstElementChild.elements); };
  dialog.returnValue = "";
  dialog.showModal();
};

const apply = ({ name, states }, fields) => {
  const { [name]: form, ...evidence } = view.question.evidence, { [name]: _, ...done } = view.question.do;
  let query = (view.question.query ?? []).filter((other) => other !== name);
  if (states) {
    const see = fields.see.value, weights = [...fields.weight].map((x) => Number(x.value));
    if (fields.do?.value) done[name] = Number(fields.do.value);
    else if (see === "soft") evidence[name] = { likelihood: weights };
    else if (see !== "") evidence[name] = { state: Number(see) };
  } else if (form) evidence[name] = form;
  const known = name in done || "state" in (evidence[name] ?? {}) || "value" in (evidence[name] ?? {});
  if (fields.ask.checked && !known) query = [...query, name];
  change({ evidence, do: done, query: query.length ? query : null }, `${name} changed`);
};

// ---- what is shown of a model

const shownVariables = () => {
  if (model.variables.length <= ALL) return model.variables;
  const { question } = view, found = new Set();
  const given = [...pinned, ...Object.keys(question.evidence), ...Object.keys(question.do), ...(question.query ?? [])];
  let ring = given.length ? given : [model.variables[0].name];
  while (ring.length && found.size < PART) {
    const next = [];
    for (const name of ring) {
      if (found.size >= PART || found.has(name)) continue;
      found.add(name);
      next.push(...(neighbours.get(name) ?? []));
    }
    ring = next;
  }
  for (const v of model.variables) if (!model.edges.length && found.size < PART) found.add(v.name);
  return model.variables.filter((v) => found.has(v.name));
};

let drawn = "";
const drawPart = () => {
  const shown = shownVariables(), names = new Set(shown.map((v) => v.name)), key = JSON.stringify([...names, asList]);
  if (key === drawn) return;
  drawn = key;
  cards.show(shown);
  cards.update(view);
  $("board").classList.toggle("list", asList);
  document.querySelector(".zoom").hidden = asList;
  $("cards").className = asList ? "" : "graph";
  $("cards").style.transform = "";
  (asList ? $("board") : $("graph")).prepend($("cards"));
  if (asList) for (const { root } of cards.cards.values()) Object.assign(root.style, { left: "", top: "", height: "" });
  if (!asList) graph.show(cards.cards, model.edges.map(([a, b]) => [model.variables[a].name, model.variables[b].name]).filter(([a, b]) => names.has(a) && names.has(b)));
  $("shown").hidden = shown.length === model.variables.length;
  $("shown").textContent = `${number(shown.length)} of ${number(model.variables.length)} variables: those near the question. Find shows others.`;
};

const find = (name) => {
  if (!cards.cards.has(name)) { pinned = [name, ...pinned].slice(0, 20); drawPart(); }
  if (!asList) graph.reveal(name, true);
  cards.cards.get(name).root.querySelector(".body :is(.state[tabindex='0'], input)").focus();
};

const searching = () => {
  const input = $("search"), list = $("matches");
  let picked = 0;
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const mark = () => [...list.children].forEach((item, k) => {
    item.setAttribute("aria-selected", String(k === picked));
    if (k === picked) input.setAttribute("aria-activedescendant", item.id);
  });
  const take = (name) => { close(); input.value = ""; find(name); };
  input.addEventListener("input", () => {
    const text = input.value.trim().toLowerCase();
    const found = text ? model.variables.filter((v) => v.name.toLowerCase().includes(text)).sort((a, b) => b.name.toLowerCase().startsWith(text) - a.name.toLowerCase().startsWith(text)).slice(0, 8) : [];
    list.replaceChildren(...found.map((v, k) => { const item = element("li", { id: `match-${k}`, textContent: v.name, onmousedown: (e) => { e.preventDefault(); take(v.name); } }); item.setAttribute("role", "option"); return item; }));
    picked = 0;
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    mark();
  });
  input.addEventListener("keydown", (e) => {
    if (e.key === "Escape") close();
    if (list.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) { e.preventDefault(); picked = (picked + step + list.children.length) % list.children.length; mark(); }
    if (e.key === "Enter") { e.preventDefault(); take(list.children[picked].textContent); }
  });
  input.addEventListener("blur", close);
};

// ---- saving, sharing, loading

const save = async (what, name, type) => {
  try {
    const url = URL.createObjectURL(new Blob([await (await saved(what)).text()], { type }));
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  } catch (error) {
    said(error.message, "open");
  }
};

const loadRow = async (e) => {
  e.preventDefault();
  const file = $("file").files[0];
  if (!file) { $("read").textContent = "Choose a table first."; return; }
  try {
    const found = await (await fetched("row", { name: file.name, text: await file.text(), row: Number($("number").value) })).json();
    const ignored = found.ignored.length ? `; no variables: ${found.ignored.join(", ")}` : "";
    $("read").textContent = `Row ${$("number").value} of ${number(found.rows)} is loaded${ignored}.`;
    const query = view.question.query?.filter((name) => !(name in found.evidence));
    change({ evidence: found.evidence, do: {}, query: query?.length ? query : null }, `row ${$("number").value} of ${file.name}`);
  } catch (error) {
    $("read").textContent = error.message;
  }
};

const wire = () => {
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("undo", "click", () => go(now - 1));
  on("redo", "click", () => go(now + 1));
  on("clear", "click", () => change({ evidence: {}, do: {}, constraints: [], query: null }, "cleared"));
  on("view", "click", () => { asList = !asList; $("view").setAttribute("aria-pressed", String(asList)); drawPart(); });
  on("share", "click", () => $("sharing").showModal());
  on("report", "click", () => save("report", "report.html", "text/html"));
  on("record", "click", () => save("record", "answer.json", "application/json"));
  on("row", "click", () => $("table").showModal());
  on("load", "click", loadRow);
  on("stop", "click", stop);
  on("explain", "click", () => dig("explain"));
  on("next", "click", () => dig("next"));
  on("closer", "click", () => graph.zoomBy(1.4));
  on("farther", "click", () => graph.zoomBy(1 / 1.4));
  on("fit", "click", () => graph.fit());
  on("rule", "submit", addRule);
  on("rule-kind", "change", ruleKind);
  for (const name of ["top_k", "epsilon", "time_limit"]) on(name, "change", (e) => { if (e.target.reportValidity()) change({ [name]: Number(e.target.value) }, `${name} ${e.target.value}`); });
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(view.texts[button.dataset.copy]);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  document.addEventListener("keydown", (e) => {
    if (!(e.ctrlKey || e.metaKey) || e.target.matches?.("input")) return;
    if (e.key === "z" && !e.shiftKey) { e.preventDefault(); go(now - 1); }
    if (e.key === "y" || (e.key.toLowerCase() === "z" && e.shiftKey)) { e.preventDefault(); go(now + 1); }
  });
};

const begin = async () => {
  const told = await (await fetched("model")).json();
  model = { ...told, variables: told.variables.map(([name, labels]) => ({ name, labels, states: labels?.map(String) })) };
  byName = new Map(model.variables.map((v) => [v.name, v]));
  for (const [a, b] of model.edges) for (const [x, y] of [[a, b], [b, a]]) {
    const name = model.variables[x].name;
    neighbours.set(name, [...(neighbours.get(name) ?? []), model.variables[y].name]);
  }
  $("model").textContent = model.path.split("/").at(-1);
  document.title = `${model.path.split("/").at(-1)} – certimap`;
  cards = new Cards($("cards"), { observe, open: options });
  graph = new Graph($("board"), $("graph"), $("cards"), model.causal);
  if (!model.edges.length || matchMedia("(max-width: 48rem)").matches) asList = true;
  $("view").hidden = !model.edges.length;
  $("view").setAttribute("aria-pressed", String(asList));
  searching();
  wire();
  drawPart();
  past.push({ question: view.question, what: "start" });
  go(0);
  document.documentElement.dataset.drawn = "true";
};

begin().catch((error) => said(error.message, "open"));
