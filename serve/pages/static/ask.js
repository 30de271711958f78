// The page "ask": a question, the best answers, how they were found and how long it took.

import { request } from "/static/api.js";
import { announce, find, isTyping, make, plural, readLink } from "/static/dom.js";
import { hideProblem, resetTries, showProblem } from "/static/problem.js";
import { formatTime, renderScore, renderTimings } from "/static/scores.js";
import { renderFolded } from "/static/text.js";

const CHIPS = 6; // examples shown at a time
const COUNTS = [1, 3, 5, 10, 20]; // of answers to choose from, as far as the service allows
const PATIENCE = 200; // ms before the page says that it waits: a quick answer should not flicker

const form = find("form");
const field = find("question");
let about = { index: "" };
let running = null; // the request under way
let examples = [];
let firstExample = 0;

async function start() {
  try {
    about = await request("/about");
  } catch (problem) {
    showProblem(problem, start);
    return;
  }
  hideProblem();
  resetTries();
  describe();
  loadExamples();
  await readAddress();
}

/** Says what is searched, and offers what the service can do. */
function describe() {
  const count = plural(about.answers, "answer");
  find("about").textContent =
    `${about.index ? `${about.index}: ` : ""}${count}. The best ones are shown, word for word.`;
  document.title = about.index ? `Ask ${about.index}` : "Ask";
  const most = about.limits?.max_k ?? 10;
  const counts = COUNTS.filter((count) => count <= most);
  find("k").replaceChildren(...counts.map((count) => make("option", { value: count }, String(count))));
  form.k.value = String(counts.includes(3) ? 3 : counts.at(-1));
  form.stage.value = about.first_stage ?? "bi_encoder";
  find("rerank-label").hidden = !about.cross_encoder;
  form.rerank.checked = Boolean(about.cross_encoder);
  find("rerank-label").title = `${about.cross_encoder} reads the best candidates together with the question`;
  if (about.limits?.max_question) field.maxLength = about.limits.max_question;
  find("footer").hidden = false;
  find("footer").textContent = [
    `Meaning: ${about.bi_encoder}.`,
    about.cross_encoder ? `Re-ranking: ${about.cross_encoder}.` : "",
    about.version ? `kinspan ${about.version}.` : "",
    "Keys: / to ask, Enter to search, arrows between answers, Escape to start again.",
  ].join(" ");
}

async function loadExamples() {
  try {
    examples = (await request("/examples")).questions;
  } catch {
    examples = []; // the page works without
  }
  showExamples();
}

function showExamples() {
  const shown = Array.from(
    { length: Math.min(CHIPS, examples.length) },
    (_, n) => examples[(firstExample + n) % examples.length],
  );
  find("example-list").replaceChildren(
    ...shown.map((text) => make("li", {}, make("button", { type: "button", onclick: () => askAnew(text) }, text))),
  );
  find("more-examples").hidden = examples.length <= CHIPS;
  find("examples").hidden = !examples.length || Boolean(find("results").children.length);
}

function askAnew(text) {
  field.value = text;
  submit();
}

/** Asks what the form says, and puts it into the address. */
function submit() {
  const query = field.value.trim();
  if (!query) {
    showHome();
    return;
  }
  const address = `?${new URLSearchParams({ q: query, ...readOptions() })}`;
  if (address !== location.search) history.pushState(null, "", address);
  resetTries();
  ask(query);
}

/** The settings that differ from the service's own, as they stand in an address. */
function readOptions() {
  const options = {};
  if (form.k.value !== "3") options.k = form.k.value;
  if (form.stage.value !== (about.first_stage ?? "bi_encoder")) options.stage = form.stage.value;
  if (about.cross_encoder && !form.rerank.checked) options.rerank = "0";
  return options;
}

/** Fills the form from the address, and asks what stands there. */
async function readAddress() {
  const address = new URLSearchParams(location.search);
  const offered = (select, value) => [...select.options].some((option) => option.value === value);
  field.value = address.get("q") ?? "";
  form.k.value = offered(form.k, address.get("k")) ? address.get("k") : offered(form.k, "3") ? "3" : form.k.value;
  form.stage.value = offered(form.stage, address.get("stage"))
    ? address.get("stage")
    : (about.first_stage ?? "bi_encoder");
  form.rerank.checked = Boolean(about.cross_encoder) && address.get("rerank") !== "0";
  resetTries();
  if (field.value.trim()) await ask(field.value.trim());
  else showHome();
}

async function ask(query) {
  running?.abort();
  const own = new AbortController();
  running = own;
  hideProblem();
  const waiting = setTimeout(showWaiting, PATIENCE);
  try {
    const body = { query, k: Number(form.k.value), first_stage: form.stage.value };
    if (about.cross_encoder) body.rerank = form.rerank.checked;
    const answered = await request("/search", { body, signal: own.signal });
    if (running === own) showAnswers(answered);
  } catch (problem) {
    if (running !== own) return; // a newer question took over
    find("results").replaceChildren();
    showProblem(problem, () => ask(query));
    showExamples();
  } finally {
    clearTimeout(waiting);
    if (running === own) find("results").removeAttribute("aria-busy");
  }
}

function showHome() {
  running?.abort();
  running = null;
  hideProblem();
  find("results").replaceChildren();
  if (location.search) history.pushState(null, "", location.pathname);
  document.title = about.index ? `Ask ${about.index}` : "Ask";
  announce("");
  showExamples();
  field.focus();
}

function showWaiting() {
  const lines = () => make("div", { class: "card waiting" }, ...[1, 2, 3].map(() => make("span")));
  find("results").setAttribute("aria-busy", "true");
  find("results").replaceChildren(lines(), lines(), lines());
  find("examples").hidden = true;
  announce("Searching");
}

function showAnswers({ query, hits, timings, total }) {
  const took = total ?? timings.total ?? 0;
  document.title = query;
  find("examples").hidden = true;
  if (!hits.length) {
    const hint =
      form.stage.value === "bm25"
        ? "No answer shares a word with the question. Search by meaning, or say it in other words."
        : "There is nothing to find in this index yet.";
    find("results").replaceChildren(
      make("div", { class: "card empty" }, make("h2", {}, "Nothing found"), make("p", {}, hint)),
    );
    announce(`Nothing found. ${hint}`);
    return;
  }
  const link = make("button", { class: "quiet", type: "button", onclick: copyLink }, "Copy link");
  const head = make(
    "div",
    { class: "found" },
    make("h2", {}, `${plural(hits.length, "answer")} in ${formatTime(took)}`),
    link,
  );
  find("results").replaceChildren(
    head,
    renderTimings(timings, took),
    ...hits.map((hit, place) => renderHit(hit, place, hits[0])),
  );
  announce(
    `${plural(hits.length, "answer")} in ${formatTime(took)}. The best: ${hits[0].question || hits[0].text.slice(0, 100)}`,
  );
}

function renderHit(hit, place, best) {
  const link = readLink(hit.url);
  const title = hit.question || `Answer ${hit.id}`;
  const heading = link ? make("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, title) : title;
  return make(
    "article",
    { class: "card", tabindex: "-1", "aria-label": `Answer ${place + 1}: ${title}` },
    make(
      "header",
      {},
      make("span", { class: "place", "aria-hidden": "true" }, String(place + 1)),
      make("div", {}, make("h3", {}, heading), link ? make("p", { class: "muted source" }, new URL(link).host) : null),
      renderScore(hit, best),
    ),
    ...renderFolded(`answer-${place}`, hit.text, hit.marks),
  );
}

async function copyLink(event) {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy the address above";
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = "Copy link"), 2000);
}

/** Moves to the next answer, or to the one before, which is the question field at last. */
function move(step) {
  const cards = [...document.querySelectorAll("#results article")];
  const place = cards.findIndex((card) => card.contains(document.activeElement)) + step;
  if (!cards.length || place >= cards.length) return;
  if (place < 0) field.focus();
  else cards[place].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.tagName !== "SELECT") {
    event.preventDefault();
    field.value = "";
    showHome();
  } else if (event.key === "/" && !isTyping(event)) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (event.target === field || !isTyping(event))) {
    if (!document.querySelector("#results article")) return;
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  }
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
form.addEventListener("change", (event) => {
  if (event.target !== field && field.value.trim()) submit();
});
find("more-examples").addEventListener("click", () => {
  firstExample = (firstExample + CHIPS) % examples.length;
  showExamples();
});
window.addEventListener("popstate", readAddress);
start();
