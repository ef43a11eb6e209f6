// A card per variable: its states as bars (or its histogram), which are clicked, dragged, or used by keyboard.
import { number, parsed, rounded, share } from "./numbers.js";

const MOST_STATES = 8; // of a card; the options list all
const FAR = 6; // pixels that a pointer moves before a click is a drag

export const element = (tag, more = {}, ...children) => {
  const { dataset, ...plain } = more;
  const made = Object.assign(document.createElement(tag), plain);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
};

const svg = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

/** Weights of all states that evidence gives, or null. */
export const weightsOf = (form, n) => {
  if (!form) return null;
  if (form.likelihood) return form.likelihood;
  if (form.states) return Array.from({ length: n }, (_, k) => (form.states.includes(k) ? 1 : 0));
  if (form.log_weights) return form.log_weights.map((w) => (w === null ? 0 : Math.exp(w)));
  return null;
};

export const shownForm = (variable, form) => {
  if ("state" in form) return `= ${variable.states[form.state]}`;
  if ("value" in form) return `= ${number(form.value)}`;
  if ("interval" in form) return `in ${form.interval.map((x) => (x === null ? "∞" : number(x))).join(" … ")}`;
  return `soft: ${weightsOf(form, variable.states.length).map(number).join(" : ")}`;
};

/** The cards that are shown; `act` observes, and opens the options of a variable. */
export class Cards {
  constructor(place, act) {
    this.place = place;
    this.act = act;
    this.cards = new Map();
  }

  /** Show the cards of these variables and no others. */
  show(variables) {
    const kept = new Map(variables.map((v) => [v.name, this.cards.get(v.name) ?? this.made(v)]));
    this.cards = kept;
    this.place.replaceChildren(...[...kept.values()].map((card) => card.root));
  }

  made(variable) {
    const name = element("button", { className: "name", title: `Options of ${variable.name}`, textContent: variable.name });
    name.setAttribute("aria-haspopup", "dialog");
    name.addEventListener("click", () => this.act.open(variable));
    const mark = element("span", { className: "mark", hidden: true, textContent: "≠" });
    const big = element("div", { className: "big" });
    big.setAttribute("aria-hidden", "true");
    const body = element("div", { className: "body" });
    const root = element("article", { className: "card" }, element("h3", {}, name, mark), big, body);
    root.setAttribute("aria-label", variable.name);
    root.toggleAttribute("data-long", variable.name.length > 11 && variable.states?.length > 2);
    root.style.setProperty("--fit", Math.min(1, Math.max(0.6, 6.6 / variable.name.length)));
    const card = { variable, root, mark, big, body, rows: [] };
    if (variable.states) this.addStates(card);
    else this.addReal(card);
    return card;
  }

  addStates(card) {
    const list = element("ul");
    card.variable.states.slice(0, MOST_STATES).forEach((label, k) => {
      const bar = element("span", { className: "bar" });
      const p = element("span", { className: "p" });
      const dot = element("span", { className: "dot" });
      const button = element("button", { className: "state" }, bar, dot, element("span", { className: "label", textContent: label, title: label }), p);
      this.follow(card, button, k);
      card.rows.push({ button, bar, p });
      list.append(element("li", {}, button));
    });
    card.body.append(list);
    const more = card.variable.states.length - MOST_STATES;
    if (more > 0) list.append(element("li", {}, element("button", { className: "state quiet", textContent: `${more} more`, onclick: () => this.act.open(card.variable) })));
  }

  /** Let a state be clicked, dragged for soft evidence, and used by arrow keys. */
  follow(card, button, k) {
    const { variable } = card;
    let start = null, weight = null;
    const drawn = (w) => { card.rows[k].bar.style.width = share100(w); card.rows[k].p.textContent = `× ${number(w)}`; };
    const soft = (w) => {
      const held = weightsOf(card.form, variable.states.length) ?? variable.states.map(() => 1);
      const weights = held.map((x, j) => (j === k ? w : x));
      if (Math.max(...weights) > 0) this.act.observe(variable, weights.every((x) => x === 1) ? null : { likelihood: weights });
    };
    button.addEventListener("pointerdown", (e) => {
      e.stopPropagation();
      start = e.clientX;
      weight = null;
    });
    button.addEventListener("pointermove", (e) => {
      if (start === null || !(e.buttons & 1) || (weight === null && Math.abs(e.clientX - start) < FAR)) return;
      if (weight === null) button.setPointerCapture(e.pointerId);
      const box = button.getBoundingClientRect();
      weight = Math.round(Math.min(1, Math.max(0, (e.clientX - box.left) / box.width)) * 20) / 20;
      card.dragged = true;
      drawn(weight);
    });
    for (const ending of ["pointerup", "pointercancel"]) button.addEventListener(ending, (e) => {
      start = null;
      card.dragged = false;
      if (weight !== null && ending === "pointerup") soft(weight);
    });
    button.addEventListener("click", () => {
      if (weight !== null) { weight = null; return; }
      this.act.observe(variable, card.form?.state === k ? null : { state: k });
    });
    button.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -0.1, ArrowRight: 0.1 }[e.key], move = { ArrowUp: -1, ArrowDown: 1 }[e.key];
      if (!step && !move) return;
      e.preventDefault();
      if (move) card.rows[k + move]?.button.focus();
      else soft(Math.round(Math.min(1, Math.max(0, (weightsOf(card.form, variable.states.length)?.[k] ?? 1) + step)) * 10) / 10);
    });
  }

  addReal(card) {
    const { variable } = card;
    const picture = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
    const input = element("input", { placeholder: "value, or low … high", inputMode: "text" });
    input.setAttribute("aria-label", `Observe ${variable.name}: a value, or low … high`);
    input.addEventListener("change", () => this.act.observe(variable, this.readReal(input)));
    input.addEventListener("pointerdown", (e) => e.stopPropagation());
    let from = null, pick = null;
    const at = (e) => {
      const box = picture.getBoundingClientRect(), [low, high] = card.histogram.ends;
      return low + (high - low) * Math.min(1, Math.max(0, (e.clientX - box.left) / box.width));
    };
    const x = (value) => { const [low, high] = card.histogram.ends; return 100 * (value - low) / (high - low); };
    picture.addEventListener("pointerdown", (e) => {
      if (!card.histogram) return;
      e.stopPropagation();
      from = at(e);
      picture.setPointerCapture(e.pointerId);
      picture.append(pick = svg("rect", { class: "pick", x: x(from), y: 0, width: 0, height: 40 }));
    });
    picture.addEventListener("pointermove", (e) => {
      if (from === null) return;
      const ends = [x(from), x(at(e))].sort((a, b) => a - b);
      pick.setAttribute("x", ends[0]);
      pick.setAttribute("width", ends[1] - ends[0]);
    });
    picture.addEventListener("pointerup", (e) => {
      if (from === null) return;
      const ends = [from, at(e)].sort((a, b) => a - b).map((y) => Number(y.toPrecision(4)));
      pick.remove();
      from = null;
      if (ends[0] < ends[1]) this.act.observe(variable, { interval: ends });
    });
    card.picture = picture;
    card.input = input;
    card.body.append(element("div", { className: "real" }, picture, input));
  }

  readReal(input) {
    const parts = input.value.trim() === "" ? [] : input.value.split(/…|\.\.+|\bto\b|;/).map(parsed);
    const form = parts.length === 1 ? { value: parts[0] } : { interval: parts };
    const wrong = parts.length > 2 || parts.some(Number.isNaN);
    input.setCustomValidity(wrong ? "Expected a number, or low … high" : "");
    input.reportValidity();
    return wrong ? undefined : parts.length ? form : null;
  }

  /** Write a view's numbers into the cards; nothing is made anew, so nothing flickers. */
  update(view) {
    for (const [name, card] of this.cards) {
      const { question, marginals, assignment, histograms } = view;
      const done = question.do[name], form = done !== undefined ? { state: done, value: done } : question.evidence[name];
      card.form = question.evidence[name];
      const seen = form !== undefined && !weightsOf(form, 0);
      card.root.className = ["card", done !== undefined ? "done" : seen ? "seen" : form ? "soft" : "", view.isAsked(name) ? "asked" : ""].join(" ");
      if (card.variable.states) this.updateStates(card, form, marginals[name], assignment[name]);
      else this.updateReal(card, form, histograms[name], assignment[name]);
    }
  }

  updateStates(card, form, row, best) {
    const known = form && form.state !== undefined ? form.state : undefined;
    card.rows.forEach(({ button, bar, p }, k) => {
      const held = known !== undefined ? Number(k === known) : row?.[k];
      const label = card.variable.states[k];
      button.classList.toggle("best", best === k);
      button.setAttribute("aria-pressed", String(k === known));
      button.tabIndex = k === (known ?? best ?? 0) || (k === 0 && (known ?? best) >= card.rows.length) ? 0 : -1;
      button.setAttribute("aria-label", `${card.variable.name} ${label}${held === undefined ? "" : `, ${share(held)}`}${best === k ? ", in the best answer" : ""}`);
      if (card.dragged) return;
      bar.style.width = held === undefined ? "0" : share100(held);
      p.textContent = held === undefined ? "" : share(held);
    });
    const top = row ? row.indexOf(Math.max(...row)) : undefined;
    const differs = row !== undefined && best !== undefined && row[best] < row[top] * (1 - 1e-9);
    card.mark.hidden = !differs;
    card.mark.title = differs ? `alone, ${card.variable.states[top]} is more probable (${share(row[top])})` : "";
    card.big.textContent = card.variable.states[known ?? best] ?? "";
  }

  updateReal(card, form, histogram, best) {
    card.histogram = histogram ?? card.histogram;
    if (document.activeElement !== card.input) card.input.value = !form ? "" : form.value !== undefined ? number(form.value) : form.interval.map((x) => (x === null ? "∞" : number(x))).join(" … ");
    const [low, high] = card.histogram?.ends ?? [0, 1], shares = histogram?.shares ?? [];
    const most = Math.max(...shares, 1e-9), width = 100 / (shares.length || 1);
    card.picture.replaceChildren(...shares.map((s, k) => svg("rect", { x: k * width, y: 40 - 38 * s / most, width: width * 0.92, height: 38 * s / most })));
    const value = form?.value ?? best;
    if (value !== undefined && card.histogram) {
      const x = 100 * Math.min(1, Math.max(0, (value - low) / (high - low)));
      card.picture.append(svg("line", { x1: x, x2: x, y1: 0, y2: 40 }));
    }
    card.picture.setAttribute("aria-label", `${card.variable.name}${shares.length ? `, from ${number(low)} to ${number(high)}` : ""}${best === undefined ? "" : `, best ${number(rounded(best, [low, high]))}`}`);
    card.big.textContent = value === undefined ? "" : number(rounded(value, [low, high]));
  }
}

const share100 = (p) => `${(100 * p).toFixed(1)}%`;
