// Requests to the API. Nothing else of the plane is known to the page.

const BASE = "/api/v1";
const PATIENCE_MS = 30000;

/** The error of an answer that is not 200: `status`, 0 where there was none. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const hearers = new Set();

/** Calls `hear()` whenever the control plane has answered. */
export function onAnswer(hear) {
  hearers.add(hear);
}

/** The JSON at a path of the API; `parts` are escaped. Throws ApiError. */
export async function get(parts, query = {}, signal = undefined) {
  return asked("GET", parts, query, signal);
}

/** The same, or null where there is no such thing. */
export async function maybe(parts, query = {}, signal = undefined) {
  try {
    return await get(parts, query, signal);
  } catch (error) {
    if (error instanceof ApiError && [404, 405, 409, 501].includes(error.status)) return null;
    throw error;
  }
}

/** Leaves for the login, which leads back to this address. */
export function login() {
  location.assign("/login?next=" + encodeURIComponent("/" + location.hash));
}

async function asked(method, parts, query, signal) {
  const given = Object.entries(query)
    .flatMap(([name, value]) => (Array.isArray(value) ? value.map((each) => [name, each]) : [[name, value]]))
    .filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  const path = BASE + "/" + parts.map((part) => encodeURIComponent(part)).join("/") + (text ? "?" + text : "");
  // AbortSignal.any would be shorter; browsers have it since 2024 only.
  const own = new AbortController();
  const abort = () => own.abort();
  const timer = setTimeout(abort, PATIENCE_MS);
  signal?.addEventListener("abort", abort);
  if (signal?.aborted) abort();
  try {
    const response = await fetch(path, { method, headers: { accept: "application/json" }, signal: own.signal });
    if (response.status === 401) login();
    const body = await response.text();
    for (const hear of hearers) hear(response);
    return answered(response, body);
  } catch (error) {
    if (signal?.aborted || error instanceof ApiError) throw error;
    throw new ApiError(0, "the control plane does not answer");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

function answered(response, body) {
  let value;
  try {
    value = JSON.parse(body);
  } catch {
    throw new ApiError(response.status, body.slice(0, 300) || `status ${response.status}`);
  }
  if (!response.ok) throw new ApiError(response.status, value?.error ?? `status ${response.status}`);
  return value;
}

const answers = new Map();
const RARELY_MS = 10000;
const SPARINGLY_MS = 5000;

/** The same as `maybe`, for answers that cost the control plane more: the same again for ten seconds. */
export function rarely(parts, query = {}) {
  return remembered(RARELY_MS, parts, query, () => maybe(parts, query).catch(() => null));
}

/** The same as `get`, for answers that change every few seconds: the same again for five. */
export function sparingly(parts, query = {}, signal = undefined) {
  return remembered(SPARINGLY_MS, parts, query, () => get(parts, query, signal));
}

async function remembered(forMs, parts, query, ask) {
  const key = JSON.stringify([forMs, parts, query]);
  const known = answers.get(key);
  if (known && Date.now() - known.at < forMs) return known.answer;
  for (const [each, { at }] of answers) if (Date.now() - at >= RARELY_MS) answers.delete(each);
  const answer = await ask();
  answers.set(key, { at: Date.now(), answer });
  return answer;
}
