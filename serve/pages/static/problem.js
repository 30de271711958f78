// Shows what went wrong, and the way out: a button, a countdown where the service says when, or a field for the token.

import { keepToken } from "/static/api.js";
import { announce, find, make } from "/static/dom.js";

const TRIES = 5; // so often a busy service is asked again without a click
let timer = null;
let tries = 0;

export function hideProblem() {
  clearInterval(timer);
  find("problem").replaceChildren();
}

/** Forgets how often was tried: for a new question. */
export function resetTries() {
  tries = 0;
}

/** Shows a Problem; `again` does what failed once more. */
export function showProblem(problem, again) {
  hideProblem();
  announce(`${problem.title}. ${problem.text}`);
  const way = problem.status === 401 ? makeTokenForm(again) : problem.status === 422 ? null : makeRetry(problem, again);
  find("problem").append(
    make(
      "div",
      { class: "problem", "data-status": String(problem.status) },
      make("h2", {}, problem.title),
      make("p", {}, problem.text),
      way,
    ),
  );
  if (problem.status === 401) find("token").focus();
}

function makeTokenForm(again) {
  const field = make("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const send = (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    again();
  };
  return make(
    "form",
    { class: "token", onsubmit: send },
    make("label", { for: "token" }, "Token"),
    field,
    make("button", { class: "main", type: "submit" }, "Continue"),
  );
}

function makeRetry(problem, again) {
  const button = make("button", { type: "button", onclick: again }, "Try again");
  if (problem.retryAfter === null || tries >= TRIES) return button;
  tries += 1;
  let left = Math.max(1, problem.retryAfter);
  const note = make("span", { class: "muted" }, ` Trying again in ${left} s`);
  timer = setInterval(() => {
    left -= 1;
    note.textContent = ` Trying again in ${left} s`;
    if (left <= 0) {
      clearInterval(timer);
      again();
    }
  }, 1000);
  return make("div", {}, button, note);
}
