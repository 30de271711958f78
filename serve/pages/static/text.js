// An answer's text as elements: paragraphs, lists and code keep their form, matched words are marked, what is long folds.

import { make, plural } from "/static/dom.js";

const FOLDED_CHARACTERS = 900;
const FOLDED_LINES = 16;
const BULLET = /^\s*([-*•+]|\(?\w{1,2}[.)])\s/;
const SIGNATURE = /^[\w.]+\(.*\)( -> .*)?$/; // a function as documentation begins with it
const FULL_LINE = 50; // characters: where lines are shorter, their ends mean something

/** Elements for `text`; `marks` are [start, end] pairs, counted in characters as Python counts them. */
export function renderText(text, marks = []) {
  const spans = toUnits(text, marks);
  const blocks = [];
  for (const match of text.matchAll(/[^\n](?:(?!\n[ \t]*\n)[\s\S])*/g)) {
    blocks.push(renderBlock(match[0], match.index, spans));
  }
  return blocks;
}

function renderBlock(block, start, spans) {
  const kind = classify(block);
  const scrolls = kind === "code" && block.includes("\n"); // a signature wraps
  const element = kind === "prose" ? make("p") : make("pre", { class: scrolls ? "code wide-code" : kind });
  if (scrolls) element.tabIndex = 0;
  element.append(...mark(block, start, spans));
  return element;
}

/** "prose" flows; "lines" keeps its line ends; "code" also its columns. */
function classify(block) {
  const lines = block.trimEnd().split("\n");
  const indents = lines.map((line) => line.search(/\S/));
  if (lines.some((line) => BULLET.test(line)) && BULLET.test(lines[0])) return "lines";
  if (
    lines.some((line) => /^(>>> |\.\.\. |\$ |\t| {4,}\S)/.test(line)) ||
    (lines.length === 1 && SIGNATURE.test(lines[0]))
  )
    return "code";
  if (lines.some((line) => BULLET.test(line)) || indents.some((indent) => indent !== indents[0])) return "lines";
  return lines.slice(0, -1).every((line) => line.length > FULL_LINE) ? "prose" : "lines";
}

/** The text of a block, with what the spans cover in <mark>. */
function mark(block, start, spans) {
  const parts = [];
  let done = 0;
  for (const [from, to] of spans) {
    const begin = Math.max(from - start, done);
    const end = Math.min(to - start, block.length);
    if (begin >= end) continue;
    parts.push(block.slice(done, begin), make("mark", {}, block.slice(begin, end)));
    done = end;
  }
  return [...parts, block.slice(done)].filter(Boolean);
}

/** Spans of code points as spans of the units in which JavaScript counts, in order. */
function toUnits(text, marks) {
  const sorted = [...marks].sort((one, other) => one[0] - other[0]);
  if (!/[\ud800-\udfff]/.test(text)) return sorted;
  const units = [0];
  for (const point of text) units.push(units.at(-1) + point.length);
  return sorted.map((span) => span.map((place) => units[Math.min(place, units.length - 1)]));
}

/** The text in a box that folds where it is longer than `room` characters; `id` names the box. */
export function renderFolded(id, text, marks = [], room = FOLDED_CHARACTERS) {
  const body = make("div", { class: "text", id }, ...renderText(text, marks));
  if (text.length <= room && text.split("\n").length <= FOLDED_LINES) return [body];
  const more = `Show all (${plural(text.split(/\s+/).length, "word")})`;
  const button = make(
    "button",
    { class: "quiet", type: "button", "aria-expanded": "false", "aria-controls": id },
    more,
  );
  body.classList.add("folded");
  button.addEventListener("click", () => {
    const folded = body.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!folded));
    button.textContent = folded ? more : "Show less";
  });
  return [body, button];
}
