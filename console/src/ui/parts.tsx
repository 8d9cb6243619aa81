// What pages are made of.

import { cloneElement, type ComponentChildren, type JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { age, conditions, GOOD_WHEN_FALSE, type Condition, type Resource, type Tone } from "../objects";
import { Link } from "../router";
import { useNow, type Collection } from "../store";

export function Badge(props: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${props.tone}`}><span class="dot" aria-hidden="true" />{props.children}</span>;
}

export function Age(props: { at: string | undefined }) {
  const now = useNow();
  if (!props.at) return <span class="dim">–</span>;
  return <time dateTime={props.at} title={new Date(props.at).toLocaleString()}>{age(props.at, now)}</time>;
}

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  /** Right-aligned, for numbers. */
  number?: boolean;
  /** What to sort by; no sorting without it. */
  key?: (row: T) => string | number;
}

/** More rows than anybody reads; a page with all of 100,000 sessions would stand still. */
const MOST_ROWS = 500;
/** From here on there is a field to look for some of them. */
const MANY_ROWS = 12;

export function Table<T>(props: { label: string; columns: Column<T>[]; rows: T[]; id: (row: T) => string; empty?: ComponentChildren }) {
  const [order, setOrder] = useState<{ column: number; down: boolean } | null>(null);
  const [words, setWords] = useState("");
  const by = order ? props.columns[order.column]?.key : undefined;
  const said = (row: T) => props.columns.map((column) => column.key?.(row) ?? "").join(" ").toLowerCase();
  const wanted = words ? props.rows.filter((row) => said(row).includes(words.toLowerCase())) : props.rows;
  const rows = by
    ? [...wanted].sort((a, b) => {
        const [x, y] = [by(a), by(b)];
        const difference = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return order?.down ? -difference : difference;
      })
    : wanted;
  if (props.rows.length === 0) return <div class="empty">{props.empty ?? "Nothing here."}</div>;
  return (
    <>
    {(props.rows.length > MANY_ROWS || words) && (
      <div class="filters">
        <input type="search" placeholder="Filter" aria-label={`Filter ${props.label}`} value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        <span class="dim" role="status">{rows.length === props.rows.length ? `${rows.length}` : `${rows.length} of ${props.rows.length}`}{rows.length > MOST_ROWS && `; the first ${MOST_ROWS} are shown`}</span>
      </div>
    )}
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.columns.map((column, n) => {
              const sorted = order?.column === n ? (order.down ? "descending" : "ascending") : undefined;
              return (
                <th scope="col" class={column.number ? "number" : undefined} aria-sort={sorted}>
                  {column.key
                    ? <button type="button" class="sort" onClick={() => setOrder({ column: n, down: sorted === "ascending" })}>
                        {column.title}<span aria-hidden="true">{sorted === "ascending" ? " ↑" : sorted ? " ↓" : ""}</span>
                      </button>
                    : column.title}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST_ROWS).map((row) => (
            <tr key={props.id(row)}>
              {props.columns.map((column) => <td class={column.number ? "number" : undefined}>{column.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
    </>
  );
}

export function Card(props: { title?: ComponentChildren; more?: ComponentChildren; children: ComponentChildren; class?: string }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {props.title !== undefined && <header><h2>{props.title}</h2>{props.more}</header>}
      {props.children}
    </section>
  );
}

/** Says what a collection cannot be read for, and nothing when it can. */
export function Trouble(props: { of: Collection[] }) {
  const seen = new Set<string>();
  const problems = props.of.flatMap((one) => (one.problem ? [one.problem] : [])).filter((problem) => {
    if (seen.has(problem.message)) return false;
    seen.add(problem.message);
    return true;
  });
  if (problems.length === 0) return null;
  return (
    <div class="notice bad" role="alert">
      {problems.map((problem) => <p>{problem.code === 404 ? "This kind is not installed on this cluster." : problem.message}</p>)}
    </div>
  );
}

export function Conditions(props: { of: Resource }) {
  const found = conditions(props.of);
  if (found.length === 0) return <div class="empty">No conditions yet.</div>;
  const tone = (condition: Condition): Tone =>
    GOOD_WHEN_FALSE.has(condition.type) ? (condition.status === "True" ? "busy" : "quiet")
    : condition.status === "True" ? "good" : condition.status === "False" && condition.reason !== "Progressing" ? "bad" : "busy";
  return (
    <ul class="conditions">
      {found.map((condition) => (
        <li>
          <div class="line"><Badge tone={tone(condition)}>{condition.type}</Badge> <span class="dim">{condition.reason}</span><span class="space" /><span class="dim"><Age at={condition.lastTransitionTime} /></span></div>
          {condition.message && <p>{condition.message}</p>}
        </li>
      ))}
    </ul>
  );
}

export function Facts(props: { rows: [string, ComponentChildren][] }) {
  return <dl class="facts">{props.rows.map(([name, value]) => <><dt>{name}</dt><dd>{value ?? "–"}</dd></>)}</dl>;
}

export interface Tab {
  id: string;
  title: ComponentChildren;
  content: () => ComponentChildren;
}

/** Tabs whose choice stands in the address. */
export function Tabs(props: { label: string; base: string; chosen: string; tabs: Tab[] }) {
  const chosen = props.tabs.find((tab) => tab.id === props.chosen) ?? props.tabs[0];
  return (
    <>
      <nav class="tabs" aria-label={props.label}>
        {props.tabs.map((tab) => (
          <Link to={tab === props.tabs[0] ? props.base : `${props.base}/${tab.id}`} current={tab === chosen}>{tab.title}</Link>
        ))}
      </nav>
      {chosen?.content()}
    </>
  );
}

export function Title(props: { children: ComponentChildren; above?: ComponentChildren; beside?: ComponentChildren; actions?: ComponentChildren; name: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.name} · AgentCube`;
  }, [props.name]);
  return (
    <div class="title">
      {props.above && <div class="crumbs">{props.above}</div>}
      <div class="row">
        <h1 ref={heading} tabIndex={-1}>{props.children}</h1>
        {props.beside}
        {props.actions && <div class="actions">{props.actions}</div>}
      </div>
    </div>
  );
}

export function Button(props: { onClick?: () => void; kind?: "main" | "danger"; disabled?: boolean; type?: "button" | "submit"; children: ComponentChildren; label?: string }) {
  return (
    <button type={props.type ?? "button"} class={`button ${props.kind ?? ""}`} disabled={props.disabled} aria-label={props.label} onClick={props.onClick}>
      {props.children}
    </button>
  );
}

/** A question before something that cannot be undone. */
export function Confirm(props: { open: boolean; title: string; children: ComponentChildren; action: string; onYes: () => void; onNo: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (props.open && !dialog.current?.open) dialog.current?.showModal();
    if (!props.open && dialog.current?.open) dialog.current.close();
  }, [props.open]);
  return (
    <dialog ref={dialog} aria-label={props.title} onClose={props.onNo}>
      <h2>{props.title}</h2>
      {props.children}
      <div class="actions">
        <Button onClick={props.onNo}>Cancel</Button>
        <Button kind="danger" onClick={props.onYes}>{props.action}</Button>
      </div>
    </dialog>
  );
}

/** A control with its name; what explains it is read out after the name, and is no part of it. */
export function Field(props: { label: string; hint?: ComponentChildren; children: JSX.Element }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {cloneElement(props.children, { id, "aria-describedby": props.hint ? `${id}-hint` : undefined })}
      {props.hint && <small id={`${id}-hint`}>{props.hint}</small>}
    </div>
  );
}
