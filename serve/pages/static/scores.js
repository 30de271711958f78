// Scores and stages in words for people.

import { format, make, makeBar } from "/static/dom.js";

const HIGHEST_FUSION = 2 / 61; // the first of two orders
const KINDS = {
  cross_encoder: { name: "relevance", digits: 2, share: (score) => 1 / (1 + Math.exp(-score)) },
  bi_encoder: { name: "similarity", digits: 2, share: (score) => score },
  bm25: { name: "word score", digits: 1, share: (score, best) => score / best },
  fusion: { name: "combined", digits: 2, share: (score) => score / HIGHEST_FUSION },
  blend: { name: "combined", digits: 2, share: (score) => score / HIGHEST_FUSION },
};
const STAGES = {
  wait: "waiting",
  encode: "encoding",
  nearest: "comparing",
  words: "matching words",
  rerank: "re-ranking",
  read: "fetching",
};

/** Of which kind the score is that a hit was ranked by. */
const kindOf = (hit) =>
  ["blend", "cross_encoder", "fusion", "bi_encoder", "bm25"].find((kind) => kind in hit.scores) ?? "bi_encoder";

/** The score of a hit as a bar and a number; `best` is the first hit, which BM25 is measured against. */
export function renderScore(hit, best) {
  const kind = kindOf(hit);
  const { name, share, digits } = KINDS[kind];
  const filled = share(hit.scores[kind] ?? hit.score, Math.max(best.scores[kind] ?? 1, 1e-9));
  const shown = kind === "bm25" ? format(hit.scores[kind], digits) : format(filled, 2);
  const others = Object.entries(hit.scores).map(([of, score]) => `${of}: ${score.toPrecision(4)}`);
  return make(
    "span",
    { class: "score", title: others.join("\n") },
    makeBar(filled, `${name} ${shown}`),
    make("span", { "aria-hidden": "true" }, `${shown} `, make("span", { class: "muted" }, name)),
  );
}

/** How long each stage took, as one bar of parts and a legend. */
export function renderTimings(timings, total) {
  const stages = Object.entries(timings).filter(([stage]) => stage !== "total");
  const sum = Math.max(
    1e-9,
    stages.reduce((all, [, ms]) => all + ms, 0),
  );
  const parts = stages.map(([, ms], number) => {
    const part = make("span", { class: `stage-${number % 6}` });
    part.style.width = `${(100 * ms) / sum}%`;
    return part;
  });
  const legend = stages.map(([stage, ms], number) =>
    make("li", {}, make("span", { class: `dot stage-${number % 6}` }), `${STAGES[stage] ?? stage} ${formatTime(ms)}`),
  );
  return make(
    "div",
    { class: "timings" },
    make("span", { class: "parts", "aria-hidden": "true" }, parts),
    make("ul", { "aria-label": `Answered in ${formatTime(total)}` }, legend),
  );
}

export const formatTime = (ms) => (ms < 1000 ? `${format(ms, ms < 10 ? 1 : 0)} ms` : `${format(ms / 1000, 1)} s`);
