// The YAML that people write objects in, read and written: block and flow maps and lists, plain and quoted words, block text.
// What is not understood (anchors, tags, several documents) is refused with its line, never guessed. The library that the
// console itself uses would be larger than all the rest of a bundle.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export class Mistake extends Error {
  constructor(readonly line: number, message: string) {
    super(`line ${line}: ${message}`);
  }
}

const NUMBER = /^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/;
/** Words that other readers of YAML take for something else. */
const SPECIAL = /^(~|null|true|false|yes|no|on|off|y|n|\.nan|[-+]?\.inf|[-+]?\.[0-9].*|[-+]?[0-9][0-9_]*([.:xob][0-9a-f_.:]*)?(e[-+]?[0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)$/i;
const PLAIN = /^[A-Za-z0-9_./$][A-Za-z0-9_./$@%+~()=:;,<>^*!?&|'"\\ -]*$/;

function word(text: string): string {
  const plain = PLAIN.test(text) && !SPECIAL.test(text) && !/: |:$| #|^---|\s$/.test(text);
  return plain ? text : JSON.stringify(text);
}

/** An object as YAML. */
export function write(value: Json, indent = ""): string {
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]\n";
    return value.map((item) => {
      const inner = write(item, `${indent}  `);
      return isCollection(item) ? `${indent}- ${inner.slice(indent.length + 2)}` : `${indent}- ${inner}`;
    }).join("");
  }
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value);
    if (entries.length === 0) return "{}\n";
    return entries.map(([key, item]) => `${indent}${word(key)}:${isCollection(item) ? "\n" : " "}${write(item, isCollection(item) ? `${indent}  ` : indent)}`).join("");
  }
  if (typeof value !== "string") return `${JSON.stringify(value)}\n`;
  // Tabs, and lines that end in blanks, are safe in quotes only.
  if (/\n/.test(value) && !/[ \t](\n|$)|\t|\r|[^\n\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]/.test(value) && /^[^ \n]/.test(value)) {
    const keep = value.endsWith("\n\n") ? "+" : value.endsWith("\n") ? "" : "-";
    const lines = value.replace(/\n$/, "").split("\n").map((line) => (line ? `${indent}  ${line}` : ""));
    return `|${keep}\n${lines.join("\n")}\n`;
  }
  return `${word(value)}\n`;
}

function isCollection(value: Json): boolean {
  return typeof value === "object" && value !== null && (Array.isArray(value) ? value.length : Object.keys(value).length) > 0;
}

interface Line {
  number: number;
  indent: number;
  text: string;
}

/** Reads YAML, or JSON, which is YAML. */
export function read(text: string): Json {
  const raw = text.replace(/\n$/, "").split("\n");
  const lines: Line[] = [];
  raw.forEach((line, at) => {
    const content = line.trimStart();
    if (content === "" || content.startsWith("#")) return;
    if (/^\s*\t/.test(line)) throw new Mistake(at + 1, "a tab stands where only blanks may");
    lines.push({ number: at + 1, indent: line.length - content.length, text: content.trimEnd() });
  });
  if (lines[0]?.text === "---") lines.shift();
  const first = lines[0];
  if (!first) return null;
  const reader = new Reader(lines, raw);
  const value = reader.node(first.indent);
  const left = reader.peek();
  if (left) throw new Mistake(left.number, left.text.startsWith("---") ? "only one document is read" : "this is not part of what stands above it");
  return value;
}

class Reader {
  private at = 0;
  constructor(private readonly lines: Line[], private readonly raw: string[]) {}

  peek(): Line | undefined {
    return this.lines[this.at];
  }

  /** What begins at the next line, whose indentation is this. */
  node(indent: number): Json {
    const line = this.lines[this.at]!;
    if (isItem(line.text)) return this.sequence(indent);
    if (keyOf(line) !== null) return this.mapping(indent);
    this.at += 1;
    return this.inline(line.text, line, indent - 1);
  }

  private sequence(indent: number): Json[] {
    const items: Json[] = [];
    for (let line = this.peek(); line && line.indent === indent && isItem(line.text); line = this.peek()) {
      const rest = line.text.slice(1).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.at += 1;
        items.push(this.below(indent));
        continue;
      }
      // What follows the dash is a node of its own, as deep as it stands.
      const inner: Line = { number: line.number, indent: indent + line.text.length - rest.length, text: rest };
      if (isItem(rest) || keyOf(inner) !== null) {
        this.lines[this.at] = inner;
        items.push(this.node(inner.indent));
      } else {
        this.at += 1;
        items.push(this.inline(rest, line, indent));
      }
    }
    return items;
  }

  private mapping(indent: number): Json {
    const map: { [key: string]: Json } = {};
    for (let line = this.peek(); line && line.indent === indent; line = this.peek()) {
      const found = keyOf(line);
      if (found === null) throw new Mistake(line.number, "this is neither a key nor part of what stands above it");
      const { key, rest } = found;
      if (Object.hasOwn(map, key)) throw new Mistake(line.number, `${key} is there twice`);
      this.at += 1;
      // A key of JavaScript's own must not become one of the object.
      Object.defineProperty(map, key, { value: rest === "" || rest.startsWith("#") ? this.below(indent, true) : this.inline(rest, line, indent), enumerable: true, writable: true, configurable: true });
    }
    const next = this.peek();
    if (next && next.indent > indent) throw new Mistake(next.number, "this is indented too far");
    return map;
  }

  /** What stands under a key or a dash; a list may stand right below its key. */
  private below(indent: number, ofKey = false): Json {
    const next = this.peek();
    if (!next || next.indent < indent || (next.indent === indent && !(ofKey && isItem(next.text)))) return null;
    return this.node(next.indent);
  }

  /** A value that begins on the line of its key or dash. */
  private inline(text: string, line: Line, indent: number): Json {
    if (/^[|>]/.test(text)) return this.block(text, line, indent);
    if (/^[&*!%@`]/.test(text)) throw new Mistake(line.number, `${text[0]} is not understood here; put the word into quotes`);
    let whole = text;
    // Flow collections and quoted words may go on below.
    while (!closed(whole)) {
      const next = this.peek();
      if (!next) throw new Mistake(line.number, "this is not closed");
      this.at += 1;
      whole += ` ${next.text}`;
    }
    const flow = new Flow(whole, line.number);
    const value = flow.value("");
    flow.end();
    const next = this.peek();
    if (next && next.indent > indent && /^[A-Za-z0-9]/.test(text)) throw new Mistake(next.number, "words that go on below are not understood; use | or quotes");
    return value;
  }

  private block(text: string, line: Line, indent: number): Json {
    const head = /^([|>])([-+]?)\s*(#.*)?$/.exec(text);
    if (!head) throw new Mistake(line.number, "this head of a text is not understood");
    const content: string[] = [];
    let deep = -1;
    let number = line.number;
    for (; number < this.raw.length; number += 1) {
      const one = this.raw[number]!;
      const blanks = one.length - one.trimStart().length;
      if (one.trim() !== "") {
        if (deep < 0) deep = blanks;
        if (blanks < deep || deep <= indent) break;
      }
      content.push(deep < 0 ? "" : one.slice(deep));
    }
    while (this.peek() && this.peek()!.number <= number) this.at += 1;
    const kept = content.length;
    while (content.length > 0 && content.at(-1) === "") content.pop();
    const trailing = "\n".repeat(kept - content.length);
    const body = head[1] === "|" ? content.join("\n") : content.join("\n").replace(/([^\n])\n(?=[^\n ])/g, "$1 ").replace(/\n\n/g, "\n");
    if (head[2] === "-") return body;
    return head[2] === "+" ? `${body}\n${trailing}` : body ? `${body}\n` : "";
  }
}

const isItem = (text: string) => text === "-" || text.startsWith("- ");

/** The key that a line begins with, and what follows it. */
function keyOf(line: Line): { key: string; rest: string } | null {
  const quoted = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*:(?:\s+|$)(.*)$/.exec(line.text);
  if (quoted) return { key: unquote(quoted[1]!, line.number), rest: quoted[2]! };
  const plain = /^([^\s"'[{|>&*!%@`#,?-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+(.*)|)$/.exec(line.text);
  if (!plain) return null;
  if (plain[1]!.includes(": ")) return null;
  return { key: plain[1]!, rest: plain[2] ?? "" };
}

function unquote(text: string, line: number): string {
  if (text.startsWith("'")) return text.slice(1, -1).replaceAll("''", "'");
  try {
    return JSON.parse(text.replace(/\\(?:x([0-9a-fA-F]{2})|(.))/g, (whole, byte: string | undefined) => (byte ? `\\u00${byte}` : whole))) as string;
  } catch {
    throw new Mistake(line, `${text.slice(0, 40)} has signs that are not understood in quotes`);
  }
}

/** Whether brackets and quotes of a text are closed. */
function closed(text: string): boolean {
  if (!/^[[{"']/.test(text)) return true;
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (sign === '"' || sign === "'") {
      const end = endOfQuotes(text, at);
      if (end < 0) return false;
      at = end;
    } else if (sign === "[" || sign === "{") depth += 1;
    else if (sign === "]" || sign === "}") depth -= 1;
    if (depth === 0) return true;
  }
  return depth === 0;
}

function endOfQuotes(text: string, at: number): number {
  const sign = text[at]!;
  for (let end = at + 1; end < text.length; end += 1) {
    if (sign === '"' && text[end] === "\\") end += 1;
    else if (text[end] === sign) {
      if (sign === "'" && text[end + 1] === "'") end += 1;
      else return end;
    }
  }
  return -1;
}

/** Values within one line. */
class Flow {
  private at = 0;
  constructor(private readonly text: string, private readonly line: number) {}

  private blanks(): void {
    while (/\s/.test(this.text[this.at] ?? "")) this.at += 1;
  }

  /** A value that ends at one of these signs, or with the text. */
  value(ends: string): Json {
    this.blanks();
    const sign = this.text[this.at];
    if (sign === "[") return this.items();
    if (sign === "{") return this.entries();
    if (sign === '"' || sign === "'") return this.quoted();
    let end = this.at;
    while (end < this.text.length && !ends.includes(this.text[end]!) && !(this.text[end] === "#" && /\s/.test(this.text[end - 1] ?? " "))) end += 1;
    const word = this.text.slice(this.at, end).trim();
    this.at = end;
    if (ends === "" && /: |:$/.test(word)) throw new Mistake(this.line, "a colon stands here; put the words into quotes");
    return scalar(word);
  }

  end(): void {
    this.blanks();
    if (this.at < this.text.length && this.text[this.at] !== "#") throw new Mistake(this.line, `${this.text.slice(this.at, this.at + 40)} is too much here`);
  }

  private quoted(): string {
    const end = endOfQuotes(this.text, this.at);
    const text = unquote(this.text.slice(this.at, end + 1), this.line);
    this.at = end + 1;
    return text;
  }

  private items(): Json[] {
    const items: Json[] = [];
    this.at += 1;
    for (;;) {
      this.blanks();
      if (this.text[this.at] === "]") break;
      items.push(this.value(",]"));
      this.blanks();
      if (this.text[this.at] === ",") this.at += 1;
      else if (this.text[this.at] !== "]") throw new Mistake(this.line, "a comma or ] is missing");
    }
    this.at += 1;
    return items;
  }

  private entries(): Json {
    const map: { [key: string]: Json } = {};
    this.at += 1;
    for (;;) {
      this.blanks();
      if (this.text[this.at] === "}") break;
      const key = this.text[this.at] === '"' || this.text[this.at] === "'" ? this.quoted() : this.key();
      this.blanks();
      if (this.text[this.at] !== ":") throw new Mistake(this.line, "a colon is missing");
      this.at += 1;
      if (Object.hasOwn(map, key)) throw new Mistake(this.line, `${key} is there twice`);
      Object.defineProperty(map, key, { value: this.value(",}"), enumerable: true, writable: true, configurable: true });
      this.blanks();
      if (this.text[this.at] === ",") this.at += 1;
      else if (this.text[this.at] !== "}") throw new Mistake(this.line, "a comma or } is missing");
    }
    this.at += 1;
    return map;
  }

  private key(): string {
    const found = /^[^\s:,[\]{}#"'][^:,[\]{}#"']*/.exec(this.text.slice(this.at));
    if (!found) throw new Mistake(this.line, "a key is missing");
    this.at += found[0].length;
    return found[0].trim();
  }
}

function scalar(word: string): Json {
  if (word === "" || word === "~" || /^(null|Null|NULL)$/.test(word)) return null;
  if (/^(true|True|TRUE)$/.test(word)) return true;
  if (/^(false|False|FALSE)$/.test(word)) return false;
  if (NUMBER.test(word)) return Number(word);
  return word;
}
