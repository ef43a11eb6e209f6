"use strict";
// Draws the charts of a report and answers its sliders; every number comes from the page's own data.
(() => {
  const answers = JSON.parse(document.getElementById("data").textContent);
  const axis = (text, more) => ({ type: "linear", title: { display: true, text }, ...more });
  const common = { animation: false, responsive: true, maintainAspectRatio: false, parsing: false };

  const drawHistory = (canvas, history) => {
    const line = (field, label, color, more) => ({
      label, borderColor: color, backgroundColor: color + "22", borderWidth: 2, stepped: "before", spanGaps: false,
      pointRadius: history.seconds.length < 12 ? 3 : 0,
      data: history.seconds.map((x, i) => ({ x, y: history[field][i] === null ? NaN : history[field][i] })), ...more,
    });
    new Chart(canvas, {
      type: "line",
      data: { datasets: [
        line("log_prob", "best found", "#00664f"),
        line("log_upper_bound", "upper bound", "#9f2d1f", { fill: 0 }),
      ] },
      options: { ...common, interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: axis("seconds", { min: 0 }), y: axis("natural log of probability") } },
    });
  };

  const drawFront = (canvas, pairs) => {
    const curve = pairs.map(([x, y]) => ({ x, y }));
    if (curve.length) curve.push({ x: 1, y: curve[curve.length - 1].y });
    return new Chart(canvas, {
      type: "line",
      data: { datasets: [
        { label: "smallest delta earned", data: curve, borderColor: "#2f4a80", backgroundColor: "#2f4a80", borderWidth: 2,
          stepped: "before", pointRadius: 0 },
        { label: "slider", data: [], borderColor: "#9f2d1f", backgroundColor: "#9f2d1f", pointRadius: 6, showLine: false },
      ] },
      options: { ...common, scales: {
        x: axis("tolerance epsilon", { min: 0, max: 1 }), y: axis("failure probability delta", { min: 0 }) } },
    });
  };

  const shown = (x) => Number(x.toPrecision(3)).toString();
  const sentence = (epsilon, delta) => {
    const factor = Number((1 - epsilon).toFixed(3));
    if (delta === null) return `At epsilon ${epsilon} nothing is proved.`;
    const claim = `the answer is at least ${factor} times as probable as the best assignment`;
    if (delta === 0) return `At epsilon ${epsilon}, delta is 0: it is certain that ${claim}.`;
    return `At epsilon ${epsilon}, delta is ${shown(delta)}: ${claim}, a claim that is wrong in at most ${shown(delta)} of all runs.`;
  };

  answers.forEach((answer, i) => {
    const over = document.getElementById(`history-${i}`);
    if (over) drawHistory(over, answer.history);
    const canvas = document.getElementById(`front-${i}`);
    const slider = document.getElementById(`epsilon-${i}`);
    if (!canvas || !slider) return;
    const chart = drawFront(canvas, answer.pareto);
    const output = document.getElementById(`delta-${i}`);
    const read = () => {
      const epsilon = Number(slider.value);
      const held = answer.pareto.filter(([e]) => e <= epsilon);
      const delta = held.length ? Math.min(...held.map(([, d]) => d)) : null;
      output.textContent = sentence(epsilon, delta);
      slider.setAttribute("aria-valuetext", output.textContent);
      chart.data.datasets[1].data = delta === null ? [] : [{ x: epsilon, y: delta }];
      chart.update("none");
    };
    slider.addEventListener("input", read);
    read();
  });
  document.documentElement.dataset.drawn = "true";
})();
