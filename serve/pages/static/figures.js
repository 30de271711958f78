// The figures of each model as a table.

import { make, makeBar } from "/static/dom.js";

const write = (value) => (typeof value === "number" ? value.toFixed(3).replace(/^0/, "") : "");

const explain = (name) =>
  name === "MRR"
    ? "Mean of 1 / rank of the first right answer"
    : name.replace(/^R@(\d+)$/, "Share of the right answers among the first $1");

/** A row for each model, the best value of each column in bold; `a` and `b` are marked. */
export function renderFigures({ models, metrics }, { a, b }) {
  const names = [...new Set(models.flatMap((model) => Object.keys(metrics[model] ?? {})))];
  const best = Object.fromEntries(
    names.map((name) => [name, Math.max(...models.map((model) => metrics[model]?.[name] ?? 0))]),
  );
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "Model"),
    names.map((name) => make("th", { scope: "col", title: explain(name) }, name)),
  );
  const rows = models.map((model) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("span", { class: "name" }, badge(model, a, b), model)),
      names.map((name) => {
        const value = metrics[model]?.[name];
        const shown = write(value);
        return make(
          "td",
          {},
          make(shown && shown === write(best[name]) ? "strong" : "span", {}, shown),
          name === names[0] ? makeBar(value ?? 0, `${name} ${shown}`) : null,
        );
      }),
    ),
  );
  return make("table", { class: "figures" }, make("thead", {}, head), make("tbody", {}, rows));
}

function badge(model, a, b) {
  if (model === a) return make("span", { class: "letter letter-a", "aria-label": "A:" }, "A");
  if (model === b) return make("span", { class: "letter letter-b", "aria-label": "B:" }, "B");
  return make("span", { class: "letter", "aria-hidden": "true" });
}
