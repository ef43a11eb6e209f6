// Numbers in the language of the browser.
const few = new Intl.NumberFormat(navigator.language, { maximumSignificantDigits: 4 });
const shares = new Intl.NumberFormat(navigator.language, { style: "percent", maximumFractionDigits: 1 });
const comma = new Intl.NumberFormat(navigator.language).format(0.5).includes(",");

export const number = (x) => x !== 0 && Math.abs(x) < 1e-4 ? scientific(x) : few.format(x);
export const rounded = (x, ends) => { const step = ends ? (ends[1] - ends[0]) / 1e5 : 0; return step ? Math.round(x / step) * step : x; };
export const share = (p) => shares.format(p);

/** A probability given by its natural log. */
export const chance = (log) => log < -700 || log > 700 ? `e^${few.format(log)}` : log < 12 ? number(Math.exp(log)) : scientific(Math.exp(log));
const scientific = (x) => x === 0 ? "0" : new Intl.NumberFormat(navigator.language, { notation: "scientific", maximumSignificantDigits: 4 }).format(x);

/** The number that a text names, with a comma before decimals where the browser's language has one; or NaN. */
export const parsed = (text) => {
  const plain = comma ? text.trim().replace(",", ".") : text.trim();
  return plain === "" ? NaN : Number(plain);
};
