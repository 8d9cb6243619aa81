// A form made from the schema of a resource. What a form cannot show (free objects, deep or very large ones) is a field of
// YAML in it.

import { useId, useState } from "preact/hooks";
import { read, write, type Json } from "./yaml";

/** What is used of an OpenAPI v3 schema. */
export interface Schema {
  type?: string;
  description?: string;
  format?: string;
  default?: unknown;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  pattern?: string;
  "x-kubernetes-preserve-unknown-fields"?: boolean;
  "x-kubernetes-int-or-string"?: boolean;
}

/** Deeper, or with more fields, and nobody finds anything. */
const DEEPEST = 4;
const MOST_FIELDS = 40;

export interface Wrong {
  field: string;
  message: string;
}

interface Props {
  schema: Schema;
  name: string;
  /** As the API server names it, so that what it finds wrong is said at the field. */
  path: string;
  value: unknown;
  required: boolean;
  depth: number;
  wrong: Wrong[];
  onChange: (value: unknown) => void;
}

const isMap = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

/** Whether fields can show it. */
export function showable(schema: Schema, depth: number): boolean {
  if (schema["x-kubernetes-int-or-string"]) return true;
  switch (schema.type) {
    case "string": case "integer": case "number": case "boolean": return true;
    case "array": return schema.items !== undefined && (schema.items.type === "string" || (depth < DEEPEST && schema.items.type === "object" && showable(schema.items, depth + 1)));
    case "object": {
      if (schema["x-kubernetes-preserve-unknown-fields"] && !schema.properties) return false;
      if (!schema.properties) return isMap(schema.additionalProperties) && (schema.additionalProperties as Schema).type === "string";
      return depth < DEEPEST && Object.keys(schema.properties).length <= MOST_FIELDS;
    }
  }
  return false;
}

/** `minInstances` as people write it. */
export function titleOf(name: string): string {
  if (/^(api|cpu|dns|id|ip|ttl|tls|uid|uri|url)$/i.test(name)) return name.toUpperCase();
  const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").replace(/[_-]+/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1).replace(/\b[A-Z][a-z]/g, (word) => word.toLowerCase());
}

export function Field(props: Props) {
  const { schema } = props;
  if (!showable(schema, props.depth)) return <YamlField {...props} />;
  if (schema.type === "object" && schema.properties) return <Group {...props} />;
  if (schema.type === "array" && schema.items?.type === "object") return <Items {...props} />;
  if (schema.type === "boolean") return <Check {...props} />;
  return <Simple {...props} />;
}

function mine(props: Props): string[] {
  return props.wrong.filter((one) => one.field === props.path || one.field.startsWith(`${props.path}[`)).map((one) => one.message);
}

/** What surrounds every control: its name, what it is, what is wrong with it. */
function about(props: Props, id: string) {
  const messages = mine(props);
  return {
    described: `${id}-about`,
    invalid: messages.length > 0,
    label: <label for={id}>{titleOf(props.name)}{props.required && <span class="needed" title="required"> *</span>}</label>,
    below: (
      <div id={`${id}-about`}>
        {props.schema.description && <small>{firstSentence(props.schema.description)}</small>}
        {messages.map((message) => <small class="bad">{message}</small>)}
      </div>
    ),
  };
}

function firstSentence(text: string): string {
  const end = text.search(/[.:](\s|$)/);
  return end > 0 ? text.slice(0, end + 1).replace(/:$/, ".") : text;
}

function Simple(props: Props) {
  const id = useId();
  const { schema, value, onChange } = props;
  const { described, invalid, label, below } = about(props, id);
  const common = { id, "aria-describedby": described, "aria-invalid": invalid, "aria-required": props.required };
  const preset = schema.default === undefined ? "" : typeof schema.default === "object" ? JSON.stringify(schema.default) : String(schema.default);
  const control = () => {
    if (schema.enum) {
      return (
        <select {...common} value={String(value ?? "")} onChange={(event) => onChange(event.currentTarget.value || undefined)}>
          {(!props.required || value === undefined) && <option value="">{preset ? `as usual (${preset})` : "not set"}</option>}
          {schema.enum.map((one) => <option value={String(one)}>{String(one)}</option>)}
        </select>
      );
    }
    if (schema.type === "array" || schema.type === "object") return <Lines {...props} common={common} />;
    if (schema.type === "integer" || schema.type === "number") {
      return (
        <input {...common} type="number" step={schema.type === "integer" ? 1 : "any"} min={schema.minimum} max={schema.maximum} placeholder={preset}
          value={value === undefined ? "" : String(value)} onInput={(event) => onChange(event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))} />
      );
    }
    const take = (text: string) => onChange(text === "" ? undefined : schema["x-kubernetes-int-or-string"] && /^\d+$/.test(text) ? Number(text) : text);
    const long = typeof value === "string" && value.includes("\n");
    return long
      ? <textarea {...common} rows={5} value={String(value)} onInput={(event) => take(event.currentTarget.value)} />
      : <input {...common} type="text" placeholder={preset} value={value === undefined ? "" : String(value)} onInput={(event) => take(event.currentTarget.value)} />;
  };
  return <div class="field">{label}{control()}{below}</div>;
}

/** Words, one on each line; of maps, as `key: value`. */
function Lines(props: Props & { common: object }) {
  const { schema, value, onChange } = props;
  const map = schema.type === "object";
  const shown = map ? Object.entries(isMap(value) ? value : {}).map(([key, one]) => `${key}: ${String(one)}`) : Array.isArray(value) ? value.map(String) : [];
  const [text, setText] = useState(shown.join("\n"));
  const take = (next: string) => {
    setText(next);
    const lines = next.split("\n").map((line) => line.trim()).filter(Boolean);
    if (lines.length === 0) return onChange(undefined);
    if (!map) return onChange(lines);
    onChange(Object.fromEntries(lines.map((line) => { const colon = line.indexOf(":"); return colon < 0 ? [line, ""] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()]; })));
  };
  return <textarea {...props.common} rows={Math.min(6, Math.max(2, text.split("\n").length))} placeholder={map ? "key: value, one on each line" : "one on each line"} value={text} onInput={(event) => take(event.currentTarget.value)} />;
}

function Check(props: Props) {
  const id = useId();
  const { described, invalid, label, below } = about(props, id);
  const preset = props.schema.default === true;
  return (
    <div class="field check">
      <input id={id} type="checkbox" aria-describedby={described} aria-invalid={invalid} checked={props.value === undefined ? preset : props.value === true} onChange={(event) => props.onChange(event.currentTarget.checked)} />
      {label}{below}
    </div>
  );
}

/** The fields of an object. */
export function Fields(props: Omit<Props, "name" | "required">) {
  const { schema, value } = props;
  const known = Object.entries(schema.properties ?? {});
  const needed = new Set(schema.required ?? []);
  // What must be filled in comes first.
  const ordered = [...known].sort(([a], [b]) => Number(needed.has(b)) - Number(needed.has(a)));
  const change = (name: string, next: unknown) => {
    const map: Record<string, unknown> = { ...(isMap(value) ? value : {}) };
    if (next === undefined) delete map[name];
    else map[name] = next;
    props.onChange(map);
  };
  return (
    <>
      {ordered.map(([name, inner]) => (
        <Field key={name} schema={inner} name={name} path={props.path ? `${props.path}.${name}` : name} value={isMap(value) ? value[name] : undefined}
          required={needed.has(name)} depth={props.depth} wrong={props.wrong} onChange={(next) => change(name, next)} />
      ))}
    </>
  );
}

function Group(props: Props) {
  const { value, onChange } = props;
  const flawed = props.wrong.some((one) => one.field.startsWith(props.path));
  // Open while it has something in it, so that what is set is seen.
  const [open] = useState(props.required || (isMap(value) && Object.keys(value).length > 0));
  const take = (next: unknown) => onChange(isMap(next) && Object.keys(next).length === 0 && !props.required ? undefined : next);
  return (
    <details class="group" open={open || flawed}>
      <summary>{titleOf(props.name)}{props.required && <span class="needed"> *</span>}</summary>
      {props.schema.description && <small>{firstSentence(props.schema.description)}</small>}
      {mine(props).map((message) => <small class="bad">{message}</small>)}
      <Fields {...props} depth={props.depth + 1} onChange={take} />
    </details>
  );
}

function Items(props: Props) {
  const list: unknown[] = Array.isArray(props.value) ? props.value : [];
  const inner = props.schema.items ?? {};
  const change = (next: unknown[]) => props.onChange(next.length === 0 ? undefined : next);
  const title = titleOf(props.name);
  return (
    <fieldset class="items">
      <legend>{title}{props.required && <span class="needed"> *</span>}</legend>
      {props.schema.description && <small>{firstSentence(props.schema.description)}</small>}
      {list.map((item, n) => (
        <div class="item" role="group" aria-label={`${title} ${n + 1}`} key={n}>
          <Fields schema={inner} path={`${props.path}[${n}]`} value={item} depth={props.depth + 1} wrong={props.wrong} onChange={(next) => change(list.map((one, at) => (at === n ? next : one)))} />
          <button type="button" class="button" aria-label={`Remove ${title} ${n + 1}`} onClick={() => change(list.filter((_, at) => at !== n))}>Remove</button>
        </div>
      ))}
      <button type="button" class="button" onClick={() => change([...list, {}])}>Add</button>
    </fieldset>
  );
}

/** A value that only YAML shows. What cannot be read is said, and is not taken. */
export function YamlField(props: Props) {
  const id = useId();
  const [text, setText] = useState(() => (props.value === undefined ? "" : write(props.value as Json)));
  const [mistake, setMistake] = useState("");
  const { described, invalid, label, below } = about(props, id);
  const take = (next: string) => {
    setText(next);
    try {
      const value = read(next);
      setMistake("");
      props.onChange(value === null ? undefined : value);
    } catch (error) {
      setMistake(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <div class="field">
      {label}
      <textarea id={id} class="code" spellcheck={false} aria-describedby={described} aria-invalid={invalid || mistake !== ""} data-mistake={mistake ? "" : undefined} rows={Math.min(16, Math.max(3, text.split("\n").length))} value={text} onInput={(event) => take(event.currentTarget.value)} />
      {mistake && <small class="bad" role="alert">{mistake}</small>}
      {below}
    </div>
  );
}
