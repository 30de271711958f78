// Which of two models found the right answer: what the filters of the page "evaluate" count.

export const DEPTHS = [1, 3, 5, 10];

export const FILTERS = {
  all: { label: "All", keep: () => true },
  a: { label: "A right, B wrong", keep: (a, b) => a && !b },
  b: { label: "B right, A wrong", keep: (a, b) => b && !a },
  both: { label: "Both right", keep: (a, b) => a && b },
  neither: { label: "Both wrong", keep: (a, b) => !a && !b },
};

/** Whether the right answer is among a model's first `depth`. */
export const isRight = (question, model, depth) => {
  const rank = question.ranks[model];
  return typeof rank === "number" && rank <= depth;
};

/** The questions of each filter. */
export function sortQuestions(questions, { a, b, depth }) {
  const kept = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, []]));
  for (const question of questions) {
    const [rightA, rightB] = [isRight(question, a, depth), isRight(question, b, depth)];
    for (const [name, { keep }] of Object.entries(FILTERS)) if (keep(rightA, rightB)) kept[name].push(question);
  }
  return kept;
}

/** The two models that the page opens with: the one with the best MRR as B, and the first of the others as A. */
export function pickModels({ models, metrics }) {
  const best = models.reduce((one, other) => ((metrics[other]?.MRR ?? 0) > (metrics[one]?.MRR ?? 0) ? other : one));
  return [models.find((model) => model !== best) ?? best, best];
}
