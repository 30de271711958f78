// Requests to the service, whose refusals become a Problem: a title and a sentence for people.

const TOKEN = "kinspan-token"; // where the token is kept until the tab is closed

export class Problem extends Error {
  constructor(status, title, text, retryAfter = null) {
    super(text);
    Object.assign(this, { status, title, text, retryAfter });
  }
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

/** The JSON that the service answers. Raises Problem where it refuses, fails or cannot be reached. */
export async function request(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No connection", "The service cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await explain(response, Boolean(token));
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "Cut off", "The answer did not arrive whole.");
  }
}

async function explain(response, hadToken) {
  const reason = await readReason(response);
  const after = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const retryAfter = Number.isFinite(after) ? Math.min(after, 60) : 3;
  switch (response.status) {
    case 401:
    case 403:
      return new Problem(
        401,
        "A token is needed",
        hadToken
          ? "The service does not know this token. Check it and type it again."
          : "This service answers only those who have its token.",
      );
    case 404:
      return new Problem(404, "Not found", reason || "The service has nothing at this address.");
    case 413:
    case 422:
      return new Problem(422, "This cannot be asked", reason || "Ask a shorter, plain question.");
    case 429:
      return new Problem(429, "Busy", "Many are asking at this moment.", retryAfter);
    case 503:
      return new Problem(503, "Not ready", "The service is starting or about to stop.", retryAfter);
    case 504:
      return new Problem(
        504,
        "Too slow",
        "The service did not answer in time. Fewer answers, or no re-ranking, take less.",
      );
    default:
      return new Problem(
        response.status,
        "Something failed",
        reason || `The service answered with status ${response.status}.`,
      );
  }
}

/** What the service says was wrong, in the forms that FastAPI gives it. */
async function readReason(response) {
  try {
    const { detail } = await response.json();
    if (typeof detail === "string") return asSentence(detail);
    if (Array.isArray(detail))
      return asSentence(
        detail
          .map((one) => one.msg)
          .filter(Boolean)
          .join("; "),
      );
  } catch {
    // no JSON: the status has to do
  }
  return "";
}

function asSentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return !begun || /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
