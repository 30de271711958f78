// The page "evaluate": models side by side on the questions of a set, and the questions on which they differ.

import { request } from "/static/api.js";
import { DEPTHS, FILTERS, isRight, pickModels, sortQuestions } from "/static/compare.js";
import { announce, find, format, isTyping, make, plural } from "/static/dom.js";
import { renderFigures } from "/static/figures.js";
import { hideProblem, resetTries, showProblem } from "/static/problem.js";
import { renderQuestion } from "/static/question.js";

const PAGE = 50; // questions of the list shown at a time

let sets = [];
let set = null; // what GET /evaluations/{name} gave
let kept = {}; // its questions by filter
let state = {}; // set, a, b, depth, show (filter), q (id of the question), also (models beside A and B)
let running = null; // the request under way

async function start() {
  try {
    sets = (await request("/evaluations")).evaluations;
  } catch (problem) {
    showProblem(problem, start);
    return;
  }
  hideProblem();
  resetTries();
  if (!sets.length) {
    find("about").replaceChildren(
      "No evaluation is at hand. Start the service with ",
      make("code", {}, "--evaluation FOLDER"),
      " to compare models here.",
    );
    return;
  }
  find("set-label").hidden = sets.length < 2;
  find("set").replaceChildren(...sets.map(({ name }) => make("option", { value: name }, name)));
  await readAddress();
}

/** Shows what the address names, and where it names nothing the first set. */
async function readAddress() {
  const address = new URLSearchParams(location.search);
  const name = sets.some((one) => one.name === address.get("set")) ? address.get("set") : sets[0].name;
  if (set?.name !== name && !(await loadSet(name))) return;
  const known = (model, otherwise) => (set.models.includes(model) ? model : otherwise);
  const [a, b] = pickModels(set);
  const depth = Number(address.get("depth"));
  state = {
    a: known(address.get("a"), a),
    b: known(address.get("b"), b),
    depth: DEPTHS.includes(depth) ? depth : 1,
    show: address.get("show") in FILTERS ? address.get("show") : "all",
    also: address.getAll("also").filter((model) => set.models.includes(model)),
    q: address.get("q"),
  };
  show();
}

async function loadSet(name) {
  try {
    set = await request(`/evaluations/${encodeURIComponent(name)}`);
  } catch (problem) {
    find("content").hidden = true;
    showProblem(problem, readAddress);
    return false;
  }
  hideProblem();
  resetTries();
  return true;
}

/** Takes over a change of the state, and puts it into the address. */
function change(changes) {
  state = { ...state, ...changes };
  const { a, b, depth, show: filter, also, q } = state;
  const pairs = Object.entries({ set: set.name, a, b, depth, show: filter });
  pairs.push(...also.map((model) => ["also", model]));
  if (q !== null) pairs.push(["q", q]);
  history.pushState(null, "", `?${new URLSearchParams(pairs)}`);
  show();
}

/** Draws anew, and leaves the focus on the button that had it. */
function keepFocus(draw) {
  const key = document.activeElement?.dataset.key;
  draw();
  if (key) [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
}

function show() {
  keepFocus(showAll);
  showQuestion();
}

function showAll() {
  kept = sortQuestions(set.questions, state);
  find("content").hidden = false;
  find("set").value = set.name;
  const counts = [plural(set.questions.length, "question"), plural(set.models.length, "model")];
  find("about").textContent = `${set.name}: ${counts.join(", ")} side by side.`;
  document.title = `Evaluate ${set.name}`;
  find("figures").replaceChildren(renderFigures(set, state));
  showChoices();
  showFilters();
  showList();
}

function showChoices() {
  for (const [id, value] of [
    ["a", state.a],
    ["b", state.b],
  ]) {
    find(id).replaceChildren(...set.models.map((model) => make("option", { value: model }, model)));
    find(id).value = value;
  }
  const deep = DEPTHS.map((depth) =>
    make("option", { value: depth }, depth === 1 ? "first" : `among the first ${depth}`),
  );
  find("depth").replaceChildren(...deep);
  find("depth").value = String(state.depth);
  const others = set.models.filter((model) => model !== state.a && model !== state.b);
  const buttons = others.map((model) => {
    const pressed = state.also.includes(model);
    const also = pressed ? state.also.filter((one) => one !== model) : [...state.also, model];
    return make(
      "button",
      { type: "button", "data-key": `also ${model}`, "aria-pressed": String(pressed), onclick: () => change({ also }) },
      model,
    );
  });
  find("also").replaceChildren(...(buttons.length ? ["Also show", ...buttons] : []));
}

function showFilters() {
  const buttons = Object.entries(FILTERS).map(([name, { label }]) =>
    make(
      "button",
      {
        type: "button",
        "data-key": `filter ${name}`,
        "aria-pressed": String(state.show === name),
        onclick: () => change({ show: name, q: kept[name][0]?.id ?? null }),
      },
      label,
      make("span", { class: "count" }, format(kept[name].length)),
    ),
  );
  find("filters").replaceChildren(...buttons);
}

const places = () => kept[state.show];
const place = () => places().findIndex((question) => question.id === state.q);

function showList() {
  const first = PAGE * Math.floor(Math.max(0, place()) / PAGE);
  const shown = places().slice(first, first + PAGE);
  find("questions").start = first + 1;
  find("questions").replaceChildren(...shown.map(renderItem));
  find("pages").replaceChildren();
  if (places().length > PAGE) {
    const turn = (to, text) =>
      make(
        "button",
        { type: "button", "data-key": text, disabled: !places()[to], onclick: () => change({ q: places()[to].id }) },
        text,
      );
    const range = `${format(first + 1)} to ${format(first + shown.length)} of ${format(places().length)}`;
    find("pages").append(
      turn(first - PAGE, "Before"),
      make("span", { class: "muted" }, range),
      turn(first + PAGE, "After"),
    );
  }
  if (!shown.length) find("questions").append(make("li", { class: "none muted" }, "No question of this kind."));
  find("questions").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function renderItem(question) {
  const rank = (model, letter) => {
    const right = isRight(question, model, state.depth);
    const shown = question.ranks[model] ?? "–";
    const label = `${letter} ${question.ranks[model] ? `rank ${shown}` : "not found"}`;
    return make(
      "span",
      { class: `rank ${right ? "good" : "bad"}`, role: "img", "aria-label": label },
      `${letter} ${shown}`,
    );
  };
  return make(
    "li",
    {},
    make(
      "button",
      {
        type: "button",
        "data-key": `question ${question.id}`,
        "aria-current": question.id === state.q ? "true" : null,
        onclick: () => change({ q: question.id }),
      },
      make("span", { class: "words" }, question.text),
      make("span", { class: "ranks" }, rank(state.a, "A"), rank(state.b, "B")),
    ),
  );
}

async function showQuestion() {
  running?.abort();
  const box = find("question");
  find("content").dataset.view = state.q === null ? "list" : "question";
  if (state.q === null) {
    const hint = make("p", {}, "Arrow keys left and right go through them.");
    box.replaceChildren(make("div", { class: "card empty" }, make("h2", {}, "Pick a question"), hint));
    return;
  }
  const own = new AbortController();
  running = own;
  box.setAttribute("aria-busy", "true");
  try {
    const path = `/evaluations/${encodeURIComponent(set.name)}/questions/${encodeURIComponent(state.q)}`;
    const found = await request(path, { signal: own.signal });
    if (running !== own) return;
    hideProblem();
    resetTries();
    const models = [...new Set([state.a, state.b, ...state.also])];
    const letters = { [state.b]: "B", [state.a]: "A" };
    keepFocus(() => box.replaceChildren(renderPager(), ...renderQuestion(found, models, letters)));
    announce(`${place() + 1} of ${places().length}: ${found.text}`);
  } catch (problem) {
    if (running !== own) return;
    box.replaceChildren();
    showProblem(problem, showQuestion);
  } finally {
    if (running === own) box.removeAttribute("aria-busy");
  }
}

function renderPager() {
  const here = place();
  const where = here < 0 ? "outside this filter" : `${format(here + 1)} of ${format(places().length)}`;
  const step = (by, text) =>
    make("button", { type: "button", "data-key": text, disabled: !places()[here + by], onclick: () => move(by) }, text);
  return make(
    "div",
    { class: "pager" },
    make("button", { class: "back quiet", type: "button", onclick: leaveQuestion }, "All questions"),
    step(-1, "Previous"),
    make("span", { class: "muted" }, where),
    step(1, "Next"),
  );
}

function move(by) {
  const next = places()[place() + by];
  if (next) change({ q: next.id });
}

function leaveQuestion() {
  const key = `question ${state.q}`;
  change({ q: null });
  const buttons = [...find("questions").querySelectorAll("button")];
  (buttons.find((button) => button.dataset.key === key) ?? buttons[0])?.focus();
}

document.addEventListener("keydown", (event) => {
  if (!set || isTyping(event)) return;
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    if (event.target.closest?.(".scroll, .code")) return; // which scroll sideways
    event.preventDefault();
    move(event.key === "ArrowRight" ? 1 : -1);
  } else if (event.key === "Escape" && state.q !== null) {
    leaveQuestion();
  } else if (event.key === "/") {
    event.preventDefault();
    find("a").focus();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const buttons = [...find("questions").querySelectorAll("button")];
    const at = buttons.indexOf(event.target);
    if (at < 0) return;
    event.preventDefault();
    buttons[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }
});
find("compare").addEventListener("submit", (event) => event.preventDefault());
find("compare").addEventListener("change", () => {
  const [a, b] = [find("a").value, find("b").value];
  change({ a, b, depth: Number(find("depth").value), also: state.also.filter((model) => model !== a && model !== b) });
});
find("set").addEventListener("change", () => {
  history.pushState(null, "", `?${new URLSearchParams({ set: find("set").value })}`);
  readAddress();
});
window.addEventListener("popstate", readAddress);
start();
