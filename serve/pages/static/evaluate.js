// The page "evaluate": models side by side on the questions of a set, and the questions on which they differ.

import { find, hideProblem, isTyping, make, makeTitle, nameAnswer, plural, renderText, request, showProblem } from "/static/common.js";

const DEPTHS = [1, 3, 5, 10];
const SHOWN = 3; // answers of each model before more are asked for
const FILTERS = {
  all: ["All", () => true],
  a: ["A right, B wrong", (a, b) => a && !b],
  b: ["B right, A wrong", (a, b) => b && !a],
  both: ["Both right", (a, b) => a && b],
  neither: ["Both wrong", (a, b) => !a && !b],
};

let sets = [];
let set = null; // what GET /evaluations/{name} gave
let kept = {}; // its questions by filter
let state = {}; // a, b, depth, show (filter), q (id of the question)
let running = null; // the request under way

async function start() {
  try {
    sets = (await request("/evaluations")).evaluations;
  } catch (problem) {
    showProblem(problem, start);
    return;
  }
  hideProblem();
  if (!sets.length) {
    const flag = make("code", {}, "--evaluation FOLDER");
    find("about").replaceChildren("No evaluation was given. Start the service with ", flag, " to compare models here.");
    return;
  }
  find("set-label").hidden = sets.length < 2;
  find("set").replaceChildren(...sets.map(({ name }) => make("option", { value: name }, name)));
  await readAddress();
}

/** Shows what the address names, and where it names nothing the first set: its best model as B, another as A. */
async function readAddress() {
  const address = new URLSearchParams(location.search);
  const name = sets.some((one) => one.name === address.get("set")) ? address.get("set") : sets[0].name;
  try {
    if (set?.name !== name) set = await request(`/evaluations/${encodeURIComponent(name)}`);
  } catch (problem) {
    showProblem(problem, readAddress);
    return;
  }
  hideProblem();
  const known = (value, values, otherwise) => (values.includes(value) ? value : otherwise);
  const measure = (model) => set.metrics[model]?.MRR ?? 0;
  const best = set.models.reduce((one, other) => (measure(other) > measure(one) ? other : one));
  state = {
    a: known(address.get("a"), set.models, set.models.find((model) => model !== best) ?? best),
    b: known(address.get("b"), set.models, best),
    depth: known(Number(address.get("depth")), DEPTHS, 1),
    show: known(address.get("show"), Object.keys(FILTERS), "all"),
    q: address.get("q"),
  };
  show();
}

/** Takes over a change of the state, and puts it into the address. */
function change(changes) {
  state = { ...state, ...changes };
  const pairs = Object.entries({ set: set.name, ...state }).filter(([, value]) => value !== null);
  history.pushState(null, "", `?${new URLSearchParams(pairs)}`);
  show();
}

const isRight = (question, model) => (question.ranks[model] ?? Infinity) <= state.depth;
const places = () => kept[state.show];
const place = () => places().findIndex((question) => question.id === state.q);
const letterOf = (model) => (model === state.a ? "A" : model === state.b ? "B" : "");

function show() {
  for (const [name, [, keep]] of Object.entries(FILTERS)) {
    kept[name] = set.questions.filter((one) => keep(isRight(one, state.a), isRight(one, state.b)));
  }
  find("content").hidden = false;
  find("set").value = set.name;
  const counts = [plural(set.questions.length, "question"), plural(set.models.length, "model")];
  find("about").textContent = `${set.name}: ${counts.join(", ")}.`;
  document.title = `Evaluate ${set.name}`;
  find("figures").replaceChildren(renderFigures());
  const models = set.models.map((model) => [model, model]);
  const depths = DEPTHS.map((depth) => [depth, depth === 1 ? "first" : `among the first ${depth}`]);
  for (const [id, options] of Object.entries({ a: models, b: models, depth: depths })) {
    find(id).replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
    find(id).value = state[id];
  }
  redraw(find("filters"), Object.entries(FILTERS).map(renderFilter));
  const none = make("li", { class: "none muted" }, "No question of this kind.");
  redraw(find("questions"), places().length ? places().map(renderItem) : [none]);
  find("questions").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  showQuestion();
}

/** Replaces what is in a box; where one of its buttons has the focus, the one in its place gets it. */
function redraw(box, children) {
  const focused = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.replaceChildren(...children);
  if (focused >= 0) box.querySelectorAll("button")[focused]?.focus();
}

/** A row for each model, the best value of each column in bold. */
function renderFigures() {
  const names = [...new Set(Object.values(set.metrics).flatMap(Object.keys))];
  const best = (name) => Math.max(...set.models.map((model) => set.metrics[model]?.[name] ?? 0));
  const cell = (value, name) => make(value === best(name) ? "strong" : "span", {}, value?.toFixed(3) ?? "");
  const head = ["Model", ...names].map((name) => make("th", { scope: "col" }, name));
  const rows = set.models.map((model) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, renderLetter(model), model),
      names.map((name) => make("td", {}, cell(set.metrics[model]?.[name], name))),
    ),
  );
  return make("table", { class: "figures" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
}

function renderLetter(model) {
  const letter = letterOf(model);
  return letter ? make("span", { class: `letter letter-${letter.toLowerCase()}` }, letter) : null;
}

function renderFilter([name, [label]]) {
  const pick = () => change({ show: name, q: kept[name][0]?.id ?? null });
  const count = make("span", { class: "count" }, kept[name].length.toLocaleString("en"));
  return make("button", { type: "button", "aria-pressed": String(state.show === name), onclick: pick }, label, count);
}

function renderItem(question) {
  const ranks = [state.a, state.b].map((model) => {
    const rank = question.ranks[model] ?? "–";
    return make("span", { class: `rank ${isRight(question, model) ? "good" : "bad"}` }, `${letterOf(model)} ${rank}`);
  });
  const button = make(
    "button",
    {
      type: "button",
      "aria-current": question.id === state.q ? "true" : null,
      onclick: () => change({ q: question.id }),
    },
    make("span", { class: "words" }, question.text),
    make("span", { class: "ranks" }, ranks),
  );
  return make("li", {}, button);
}

async function showQuestion() {
  running?.abort();
  const box = find("question");
  if (state.q === null) {
    box.replaceChildren(make("p", { class: "card empty" }, "Pick a question. The arrow keys → and ← go to the next and the previous one."));
    return;
  }
  const own = (running = new AbortController());
  try {
    const path = `/evaluations/${encodeURIComponent(set.name)}/questions/${encodeURIComponent(state.q)}`;
    const found = await request(path, { signal: own.signal });
    if (running !== own) return;
    hideProblem();
    const others = set.models.filter((model) => !letterOf(model));
    const compared = [...new Set([state.a, state.b])];
    redraw(box, [
      renderPager(),
      make("h2", { class: "asked" }, found.text),
      make("p", {}, make("a", { href: `/?${new URLSearchParams({ q: found.text })}` }, "Ask it")),
      renderRight(found.right),
      make("div", { class: "models" }, [...compared, ...others].map((model) => renderModel(found, model))),
    ]);
    find("status").textContent = `${place() + 1} of ${places().length}: ${found.text}`;
  } catch (problem) {
    if (running !== own) return;
    box.replaceChildren();
    showProblem(problem, showQuestion);
  }
}

function renderPager() {
  const where = place() < 0 ? "outside this filter" : `${place() + 1} of ${places().length}`;
  const step = (by, text) =>
    make("button", { type: "button", disabled: places()[place() + by] ? null : "", onclick: () => move(by) }, text);
  return make("div", { class: "pager" }, step(-1, "Previous"), make("span", { class: "muted" }, where), step(1, "Next"));
}

function renderRight(right) {
  if (!right.length) return make("p", { class: "muted" }, "The text of the right answer is not known here.");
  const summary = make("summary", {}, right.length === 1 ? "The right answer" : `${right.length} right answers`);
  return make("details", { class: "right" }, summary, right.map((answer) => renderText(answer.text)));
}

/** A model's answers; those of models other than A and B open on a click. */
function renderModel(found, model) {
  const rank = found.ranks[model];
  const verdict = rank === 1 ? "right answer first" : rank ? `right answer at rank ${rank}` : "right answer not found";
  const items = found.answers[model].map(renderAnswer);
  const more = make("details", {}, make("summary", {}, plural(items.length - SHOWN, "more answer")), items.slice(SHOWN));
  return make(
    "details",
    { class: "model", open: letterOf(model) ? "" : null },
    make(
      "summary",
      {},
      renderLetter(model),
      make("h3", {}, model),
      make("span", { class: `verdict ${rank === 1 ? "good" : rank ? "late" : "bad"}` }, verdict),
    ),
    items.length ? items.slice(0, SHOWN) : make("p", { class: "muted" }, "Nothing found."),
    items.length > SHOWN ? more : null,
  );
}

function renderAnswer(answer, index) {
  return make(
    "div",
    { class: answer.right ? "one is-right" : "one" },
    make(
      "div",
      { class: "line" },
      make("span", { class: "place" }, String(index + 1)),
      make("h4", {}, makeTitle(nameAnswer(answer), answer.url)),
      answer.right ? make("span", { class: "tick" }, "✓ right") : null,
      answer.score === null ? null : make("span", { class: "muted number" }, answer.score.toPrecision(3)),
    ),
    renderText(answer.text, [], 400),
  );
}

function move(by) {
  const to = places()[place() + by];
  if (to) change({ q: to.id });
}

document.addEventListener("keydown", (event) => {
  if (isTyping(event) || !set) return;
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") move(event.key === "ArrowRight" ? 1 : -1);
});
find("compare").addEventListener("change", () =>
  change({ a: find("a").value, b: find("b").value, depth: Number(find("depth").value) }),
);
find("set").addEventListener("change", () => {
  history.pushState(null, "", `?${new URLSearchParams({ set: find("set").value })}`);
  readAddress();
});
window.addEventListener("popstate", () => set && readAddress());
start();
