// Requests to the API. Nothing else of the plane is known to the page.

const BASE = "/api/v1";
const PATIENCE_SECONDS = 30;

/** The error of an answer that is not 200: `status`, 0 where there was none. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The JSON at a path of the API; `parts` are escaped. Throws ApiError. */
export async function get(parts, query = {}, signal = undefined) {
  return fetched(BASE + "/" + parts.map((part) => encodeURIComponent(part)).join("/"), query, signal);
}

let topics = null;

/** The first parts of the paths that this plane has, from its own description. */
async function knownTopics() {
  topics ??= fetched(BASE + "/openapi.json", {}, undefined)
    .then((description) => new Set(Object.keys(description.paths).map((path) => path.replace(BASE, "").split("/")[1])))
    .catch((error) => {
      topics = null;
      throw error;
    });
  return topics;
}

/** The same as `get`, or null where this plane has no such thing. */
export async function maybe(parts, query = {}, signal = undefined) {
  try {
    if (!(await knownTopics()).has(parts[0])) return null;
    return await get(parts, query, signal);
  } catch (error) {
    if (error instanceof ApiError && [404, 405, 409, 501].includes(error.status)) return null;
    throw error;
  }
}

const answers = new Map();
const RARELY_MS = 10000;

/** The same as `maybe`, for answers that cost the control plane more: the same again for ten seconds. */
export async function rarely(parts, query = {}) {
  const key = JSON.stringify([parts, query]);
  const known = answers.get(key);
  if (known && Date.now() - known.at < RARELY_MS) return known.answer;
  answers.clear();
  const answer = await maybe(parts, query).catch(() => null);
  answers.set(key, { at: Date.now(), answer });
  return answer;
}

async function fetched(path, query, signal) {
  const given = Object.entries(query)
    .flatMap(([name, value]) => (Array.isArray(value) ? value.map((each) => [name, each]) : [[name, value]]))
    .filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  const patience = AbortSignal.timeout(PATIENCE_SECONDS * 1000);
  let response;
  try {
    response = await fetch(path + (text ? "?" + text : ""), {
      headers: { accept: "application/json" },
      signal: signal ? AbortSignal.any([signal, patience]) : patience,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "the control plane does not answer");
  }
  if (response.status === 401) {
    location.assign("/login?next=/");
  }
  const body = await response.text();
  let value;
  try {
    value = JSON.parse(body);
  } catch {
    throw new ApiError(response.status, body.slice(0, 300) || `status ${response.status}`);
  }
  if (!response.ok) throw new ApiError(response.status, value?.error ?? `status ${response.status}`);
  return value;
}
