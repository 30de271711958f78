// Functions of both pages: elements, requests, error messages, and texts of answers. Text is never parsed as HTML.

const TOKEN = "kinspan-token"; // key of the token in the tab's sessionStorage
const TITLES = {
  0: "No connection",
  401: "A token is needed",
  413: "This cannot be asked",
  422: "This cannot be asked",
  429: "Busy",
  503: "Not ready",
  504: "Too slow",
};
let retry = null; // the timer of the next attempt

export const find = (id) => document.getElementById(id);

/** Returns an element with children and properties: `on...` listeners, or attributes, skipped if null or false. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const plural = (count, one) => `${count.toLocaleString("en")} ${count === 1 ? one : `${one}s`}`;

export const isTyping = (event) =>
  event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName ?? "");

/** Returns the heading of an answer: its question, the title of its document, or its id. */
export const nameAnswer = ({ id, question, title }) => question || title || id;

/** Says what the heading of an answer is, and gives its id unless that is the heading. */
export const describeOrigin = ({ id, question, title }) =>
  [question ? "the question it answered" : title ? "title of the document" : null, title && question ? `document: ${title}` : null, question || title ? `id: ${id}` : null]
    .filter(Boolean)
    .join(" · ");

/** Returns the title of an answer, as a link if its URL is http or https. */
export function makeTitle(title, url) {
  if (!/^https?:\/\//i.test(url)) return title;
  return make("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, title);
}

/** Returns the service's JSON. Throws an Error with `status`, `text` and `after` if the request fails. */
export async function request(path, { body, signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token.replace(/[^!-~]/g, "?")}`; // else fetch throws
  let response;
  let found = {};
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    found = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) fail(0, "The service cannot be reached. Is it still running?");
    if (response.ok) fail(0, "The response is incomplete.");
  }
  if (response.status === 401) {
    fail(401, token ? "The service does not know this token." : "This service answers only callers with its token.");
  }
  if (!response.ok) {
    const text = found.detail ?? `The service answered with status ${response.status}.`;
    const after = Number(response.headers.get("Retry-After"));
    fail(response.status, `${text.charAt(0).toUpperCase()}${text.slice(1)}.`.replace(/\.\.$/, "."), after);
  }
  return found;
}

function fail(status, text, after = 0) {
  throw Object.assign(new Error(text), { status, text, after });
}

export function hideProblem() {
  clearTimeout(retry);
  find("problem").replaceChildren();
}

/** Shows an error; `again` repeats the request: on a button, after the service's Retry-After, or with a token. */
export function showProblem(problem, again) {
  hideProblem();
  const { status, text = String(problem), after } = problem;
  const title = TITLES[status] ?? "Something failed";
  const parts = [make("h2", {}, title), make("p", {}, text)];
  if (status === 401) parts.push(makeTokenForm(again));
  else if (status !== 413 && status !== 422) parts.push(make("button", { type: "button", onclick: again }, "Try again"));
  if (after) {
    parts.push(make("span", { class: "muted" }, ` Trying again in ${after} s`));
    retry = setTimeout(again, 1000 * after);
  }
  find("problem").append(make("div", { class: "problem", "data-status": String(status) }, parts));
  find("status").textContent = `${title}. ${text}`;
  find("token")?.focus();
}

function makeTokenForm(again) {
  const field = make("input", { id: "token", type: "password", autocomplete: "current-password", required: "" });
  const send = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, field.value.trim());
    again();
  };
  const button = make("button", { class: "main", type: "submit" }, "Continue");
  return make("form", { class: "token", onsubmit: send }, make("label", { for: "token" }, "Token"), field, button);
}

/** Renders an answer's text, folded if it is long; `marks` are [start, end) in Unicode characters. */
export function renderText(text, marks = [], room = 900) {
  const characters = [...text];
  const blocks = [];
  let start = 0;
  for (const block of text.split(/(\n(?:[ \t]*\n)+)/)) {
    const end = start + [...block].length;
    if (block.trim()) blocks.push(make("p", { class: classify(block) }, mark(characters, start, end, marks)));
    start = end;
  }
  const body = make("div", { class: "text" }, blocks);
  if (text.length <= room && text.split("\n").length <= 16) return [body];
  const button = make("button", { class: "quiet", type: "button", "aria-expanded": "false" }, "Show all");
  body.classList.add("folded");
  button.addEventListener("click", () => {
    const folded = body.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!folded));
    button.textContent = folded ? "Show all" : "Show less";
  });
  return [body, button];
}

/** Returns the class of a block: "code" is not wrapped, "lines" keep their line breaks, "prose" is reflowed. */
function classify(block) {
  if (/^(>>> |\$ |\t| {4})/m.test(block)) return "code";
  return block.trimEnd().split("\n").slice(0, -1).every((line) => line.length > 50) ? "prose" : "lines";
}

function mark(characters, start, end, marks) {
  const parts = [];
  for (const [from, to] of marks) {
    if (from < start || to > end) continue;
    const text = characters.slice(from, to).join("");
    parts.push(characters.slice(start, from).join(""), make("mark", {}, text));
    start = to;
  }
  return [...parts, characters.slice(start, end).join("")];
}
