// The page "ask": a question, its best answers, and the time of each stage.

import { describeOrigin, find, hideProblem, isTyping, make, makeTitle, nameAnswer, plural, renderText, request, showProblem } from "/static/common.js";

const CHIPS = 8; // examples shown
const COUNTS = [1, 3, 5, 10, 20]; // choices for the number of answers, up to the service's limit
const SCORES = {
  blend: "blend",
  cross_encoder: "cross-encoder",
  fusion: "fusion",
  bi_encoder: "bi-encoder",
  bm25: "BM25",
};
const STAGES = {
  wait: "waiting",
  encode: "encoding",
  nearest: "comparing",
  words: "matching words",
  rerank: "re-ranking",
  read: "fetching",
};

const form = find("form");
const field = find("question");
let about = null;
let running = null; // the AbortController of the current request
let examples = [];

async function start() {
  try {
    about = await request("/about");
    examples = (await request("/examples")).questions.slice(0, CHIPS);
  } catch (problem) {
    showProblem(problem, start);
    return;
  }
  hideProblem();
  describe();
  const typed = field.value; // typed before the service answered
  readAddress();
  field.value ||= typed;
}

/** Shows the index and its models, and the options that the service has. */
function describe() {
  find("about").textContent = `${about.index}: ${plural(about.answers, "answer")}. Answers are quoted from the index, not generated.`;
  const counts = COUNTS.filter((count) => count <= about.limits.max_k);
  form.k.replaceChildren(...counts.map((count) => make("option", { value: count }, String(count))));
  find("rerank-label").hidden = !about.cross_encoder;
  field.maxLength = about.limits.max_question;
  const reranks = about.cross_encoder ? `Re-ranked by ${about.cross_encoder}. ` : "";
  find("footer").textContent = `Meaning is compared by ${about.bi_encoder}. ${reranks}`;
}

/** Fills the form from the URL, and sends its question. */
function readAddress() {
  const address = new URLSearchParams(location.search);
  field.value = address.get("q") ?? "";
  for (const [select, name, otherwise] of [
    [form.k, "k", "3"],
    [form.stage, "stage", about.first_stage],
  ]) {
    select.value = address.get(name) ?? otherwise;
    if (!select.value) select.value = otherwise;
  }
  form.rerank.checked = Boolean(about.cross_encoder) && address.get("rerank") !== "0";
  ask();
}

/** Writes the form into the URL, and sends the question; before the service has answered, `start` sends it later. */
function submit() {
  const address = new URLSearchParams({ q: field.value.trim() });
  if (!about) return history.replaceState(null, "", `?${address}`);
  if (form.k.value !== "3") address.set("k", form.k.value);
  if (form.stage.value !== about.first_stage) address.set("stage", form.stage.value);
  if (about.cross_encoder && !form.rerank.checked) address.set("rerank", "0");
  const path = field.value.trim() ? `?${address}` : location.pathname;
  if (path !== location.search) history.pushState(null, "", path);
  ask();
}

async function ask() {
  running?.abort();
  const current = (running = new AbortController());
  const query = field.value.trim();
  const results = find("results");
  hideProblem();
  document.title = query || `Ask ${about.index}`;
  if (!query) {
    results.replaceChildren();
    find("status").textContent = "";
    showExamples();
    return;
  }
  results.setAttribute("aria-busy", "true");
  find("status").textContent = "Searching";
  try {
    const body = { query, k: Number(form.k.value), first_stage: form.stage.value };
    if (about.cross_encoder) body.rerank = form.rerank.checked;
    const found = await request("/search", { body, signal: current.signal });
    if (running === current) showAnswers(found);
  } catch (problem) {
    if (running !== current) return; // a newer question was asked
    results.replaceChildren();
    showProblem(problem, ask);
  } finally {
    if (running === current) results.removeAttribute("aria-busy");
  }
  if (running === current) showExamples();
}

function showExamples() {
  const pick = (text) => () => {
    field.value = text;
    submit();
  };
  find("example-list").replaceChildren(
    ...examples.map((text) => make("li", {}, make("button", { type: "button", onclick: pick(text) }, text))),
  );
  find("examples").hidden = !examples.length || find("results").childElementCount > 0;
}

function showAnswers({ hits, timings, total }) {
  const words = form.stage.value === "bm25";
  const hint = words ? "Nothing was found by words: search by meaning." : "This index is empty.";
  const stages = Object.entries(timings).map(([stage, ms]) => `${STAGES[stage] ?? stage} ${ms.toFixed(1)} ms`);
  const heading = hits.length ? plural(hits.length, "answer") : "Nothing found";
  find("results").replaceChildren(
    make("h2", { class: hits.length ? null : "empty" }, heading),
    make("p", { class: "timings muted" }, hits.length ? `${total.toFixed(0)} ms: ${stages.join(", ")}` : hint),
    ...hits.map(renderHit),
  );
  find("status").textContent = heading;
}

function renderHit(hit, place) {
  const title = nameAnswer(hit);
  return make(
    "article",
    { class: "card", "aria-label": `Answer ${place + 1}: ${title}` },
    make(
      "header",
      {},
      make("span", { class: "place", "aria-hidden": "true" }, String(place + 1)),
      make("h3", {}, makeTitle(title, hit.url)),
      renderScore(hit),
    ),
    make("p", { class: "origin muted" }, describeOrigin(hit)),
    renderText(hit.text, hit.marks),
  );
}

/** Shows the score that the hit is ranked by, with all stages' in its tooltip. */
function renderScore({ score, scores }) {
  const kind = Object.keys(SCORES).find((name) => name in scores);
  const all = Object.entries(scores).map(([name, value]) => `${name}: ${value.toPrecision(4)}`);
  const name = make("span", { class: "muted" }, SCORES[kind]);
  return make("span", { class: "score", title: all.join("\n") }, `${score.toPrecision(3)} `, name);
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || isTyping(event)) return;
  event.preventDefault();
  field.select();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
form.addEventListener("change", (event) => {
  if (event.target !== field && field.value.trim()) submit();
});
window.addEventListener("popstate", () => about && readAddress());
start();
