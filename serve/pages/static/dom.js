// Elements are made here, and only here: text is always text, and never read as HTML.

export const find = (id) => document.getElementById(id);

/** An element with properties (`class`, `on...` listeners, attributes; null and false leave one out) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A bar that is filled as far as `share` (0 to 1) says; `label` says it in words. */
export function makeBar(share, label) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("span", { class: "bar", role: "img", "aria-label": label }, fill);
}

/** Says something to those who do not see the page. */
export function announce(text) {
  find("status").textContent = text;
}

export const format = (number, digits = 0) =>
  number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const plural = (count, one, many = `${one}s`) => `${format(count)} ${count === 1 ? one : many}`;

/** Whether a key goes to something in which it has a meaning of its own. */
export const isTyping = (event) =>
  event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName ?? "");

/** A link of an answer, where it is one to follow: of http and https alone. */
export function readLink(url) {
  try {
    return /^https?:$/.test(new URL(url).protocol) ? url : null;
  } catch {
    return null;
  }
}
