// Names and numbers as people read them.

/** Letters of other scripts, many of which look like Latin ones. */
const FOREIGN = /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Armenian}\p{Script=Cherokee}\p{Script=Coptic}\p{Script=Lisu}\uFF01-\uFF5E\u{1D400}-\u{1D7FF}]/u;

/** What nobody sees, or what turns other text around; a line's end and a tab are let through. */
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}\u00A0\u034F\u115F\u1160\u1680\u17B4\u17B5\u2000-\u200A\u202F\u205F\u2800\u3000\u3164\uFE00-\uFE0F\uFFA0]/u;

/** Text in pieces: `[text, isEscape]`. What cannot be seen is an escape, as is what looks like a Latin letter in a word
 * that has Latin letters, too; a word all of another script is what it looks like. */
export function pieces(text) {
  if (/^[\x20-\x7E]*$/.test(text)) return [[text, false]];
  const found = [];
  for (const word of text.split(/([\s/:,;()'"`]+)/)) {
    const isMixed = FOREIGN.test(word) && /[A-Za-z0-9]/.test(word);
    for (const letter of word) {
      const isEscape = UNSEEN.test(letter) || (isMixed && FOREIGN.test(letter));
      const shown = isEscape ? `\\u{${letter.codePointAt(0).toString(16)}}` : letter;
      const last = found.at(-1);
      if (last && last[1] === isEscape) last[0] += shown;
      else found.push([shown, isEscape]);
    }
  }
  return found;
}

/** The same as one string: for titles and labels. */
export function plain(text) {
  return pieces(String(text ?? "")).map(([piece]) => piece).join("");
}

/** `1 proxy`, `2 proxies`. */
export function counted(count, noun, plural = undefined) {
  return `${number(count)} ${count === 1 ? noun : (plural ?? plurals(noun))}`;
}

function plurals(noun) {
  return /[^aeiou]y$/.test(noun) ? noun.slice(0, -1) + "ies" : noun + "s";
}

/** A number with its thousands apart. */
export function number(count) {
  return Number(count ?? 0).toLocaleString("en");
}

/** A number of seconds in words. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 7200) return "2 h";
  if (seconds < 21600) {
    const minutes = Math.round((seconds % 3600) / 60);
    return minutes && minutes < 60 ? `${Math.floor(seconds / 3600)} h ${minutes} min` : `${Math.round(seconds / 3600)} h`;
  }
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return seconds < 63072000 ? `${Math.round(seconds / 86400)} days` : `${Math.round(seconds / 31536000)} years`;
}

/** A number of bytes in words. */
export function bytes(count) {
  if (!count) return "0 B";
  return count < 1024 ? `${count} B` : count < 1048576 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1048576).toFixed(1)} MiB`;
}

/** The time of day of a Date, as clocks here show it. */
export function clock(date) {
  const two = (part) => String(part).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** A time of the API to the second, in UTC. */
export function exact(text) {
  return String(text).slice(0, 19).replace("T", " ") + " UTC";
}

/** JSON as YAML, for people: what was applied looks like that. */
export function yaml(value, indent = "") {
  if (value === null || typeof value !== "object") return scalar(value);
  const inner = indent + "  ";
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return value.map((item) => `\n${indent}- ${nested(item) ? yaml(item, inner).trimStart() : yaml(item, inner)}`).join("");
  }
  const members = Object.entries(value);
  if (!members.length) return "{}";
  return members.map(([member, item]) => `\n${indent}${scalar(member)}: ${yaml(item, inner)}`.replace(/: \n/, ":\n")).join("");
}

function nested(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  return /^[A-Za-z_/.][A-Za-z0-9_./@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|\.nan|\.inf)$/i.test(value)
    ? value
    : JSON.stringify(value);
}
