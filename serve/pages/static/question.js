// A question of a set: the right answer, and what each model found, side by side.

import { make, plural, readLink } from "/static/dom.js";
import { renderFolded } from "/static/text.js";

const ROOM = 400; // characters of an answer before it folds
const SHOWN = 3; // answers of each model before more are asked for

/** What `GET /evaluations/{name}/questions/{id}` gave, for these models; `letters` names A and B. */
export function renderQuestion(found, models, letters) {
  const shown = models.some((model) => (found.answers[model] ?? []).slice(0, SHOWN).some((answer) => answer.right));
  return [
    make("h2", { class: "asked" }, found.text),
    make("p", {}, make("a", { href: `/?${new URLSearchParams({ q: found.text })}` }, "Ask it")),
    renderRight(found.right, !shown),
    make(
      "div",
      { class: "models" },
      models.map((model, place) => renderModel(found, model, letters[model], place)),
    ),
  ];
}

function renderRight(right, open) {
  if (!right.length) return make("p", { class: "muted" }, "The text of the right answer is not at hand.");
  const name = right.length === 1 ? "The right answer" : `${right.length} right answers`;
  const titles = right.map((answer) => answer.question || answer.id).join(", ");
  return make(
    "details",
    { class: "right", open },
    make("summary", {}, make("strong", {}, name), `: ${titles}`),
    right.map((answer, place) => make("div", { class: "one" }, renderFolded(`right-${place}`, answer.text))),
  );
}

function renderModel(found, model, letter, column) {
  const rank = found.ranks[model];
  const answers = found.answers[model] ?? [];
  const verdict = rank === 1 ? "right answer first" : rank ? `right answer at rank ${rank}` : "right answer not found";
  const items = answers.map((answer, place) => renderAnswer(answer, place, column));
  items.slice(SHOWN).forEach((item) => (item.hidden = true));
  const list = make("ol", { class: "answers" }, items);
  return make(
    "section",
    { class: "model", "aria-label": letter ? `${letter}: ${model}` : model },
    make(
      "header",
      {},
      letter ? make("span", { class: `letter letter-${letter.toLowerCase()}` }, letter) : null,
      make("h3", {}, model),
      make("span", { class: `verdict ${rank === 1 ? "good" : rank ? "late" : "bad"}` }, verdict),
    ),
    answers.length ? list : make("p", { class: "muted" }, "Nothing found."),
    items.length > SHOWN ? makeMore(items) : null,
  );
}

function makeMore(items) {
  const text = `${plural(items.length - SHOWN, "more answer")}`;
  const button = make("button", { class: "quiet", type: "button", "aria-expanded": "false" }, text);
  button.addEventListener("click", () => {
    const hide = button.getAttribute("aria-expanded") === "true";
    items.slice(SHOWN).forEach((item) => (item.hidden = hide));
    button.setAttribute("aria-expanded", String(!hide));
    button.textContent = hide ? text : "Fewer answers";
  });
  return button;
}

function renderAnswer(answer, place, column) {
  const link = readLink(answer.url);
  const title = answer.question || answer.id;
  const id = `found-${column}-${place}`;
  return make(
    "li",
    { class: answer.right ? "one is-right" : "one" },
    make(
      "div",
      { class: "line" },
      make("span", { class: "place" }, String(place + 1)),
      make("h4", {}, link ? make("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, title) : title),
      answer.right ? make("span", { class: "tick" }, "✓ right") : null,
      answer.score === null ? null : make("span", { class: "muted number" }, answer.score.toPrecision(3)),
    ),
    renderFolded(id, answer.text, [], ROOM),
  );
}
