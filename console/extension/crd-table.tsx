// A table of custom resources with a page for each, and forms to make and change them. Where it is, the path says: nothing
// is the table, `new` a form, `view/…` and `edit/…` an object.

import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import type { Host, Page, Refused } from "./host";
import { Detail } from "./detail";
import { Edit } from "./edit";
import { at, filled, safeLink, said, sortKey, timeOf, type Column, type Thing } from "./values";

export interface TableProps {
  resource: { group: string; version: string; plural: string; kind: string; scope: "Namespaced" | "Cluster" };
  columns: Column[];
}

export interface Context {
  host: Host;
  page: Page;
  props: TableProps;
}

/** More rows than anybody reads. */
const MOST_ROWS = 500;

export const messageOf = (error: unknown): string => (error as Refused | null)?.message ?? String(error);

/** The way to an object, below the page's own. */
export const placeOf = (what: "view" | "edit", object: Thing): string =>
  [what, ...(object.metadata.namespace ? [object.metadata.namespace] : []), object.metadata.name].join("/");

/** All objects, live. */
export function useThings(host: Host, namespace: string): { things: Map<string, Thing>; known: boolean; problem: string } {
  const things = useRef(new Map<string, Thing>());
  const [state, setState] = useState({ known: false, problem: "" });
  const [, show] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    things.current = new Map();
    setState({ known: false, problem: "" });
    const idOf = (one: Thing) => one.metadata.uid ?? `${one.metadata.namespace}/${one.metadata.name}`;
    const stop = host.watch(namespace ? { namespace } : {}, (event) => {
      if (event.type === "ERROR") return setState({ known: true, problem: event.message });
      if (event.type === "RESET") {
        things.current = new Map(event.items.map((one) => [idOf(one), one]));
        setState({ known: true, problem: "" });
      } else if (event.type === "DELETED") things.current.delete(idOf(event.object));
      else things.current.set(idOf(event.object), event.object);
      show(0);
    });
    return stop;
  }, [namespace]);
  return { things: things.current, ...state };
}

export function CrdTable(context: Context) {
  const [what = "", ...rest] = context.page.path.split("/").filter(Boolean);
  const namespaced = context.props.resource.scope === "Namespaced";
  const [namespace, name] = namespaced ? [rest[0], rest[1]] : [undefined, rest[0]];
  if (what === "new") return <Edit {...context} />;
  if (what === "edit" && name) return <Edit {...context} name={name} namespace={namespace} />;
  if (what === "view" && name) return <Detail {...context} name={name} namespace={namespace} />;
  return <Table {...context} />;
}

export function Cell(props: { column: Column; object: Thing; page: Page }) {
  const { render } = props.column;
  const value = at(props.object, render.path);
  const text = render.pattern ? filled(render.pattern, value, props.object) : said(value);
  if (value === undefined || value === null || text === "") return <span class="dim">–</span>;
  if (render.type === "time") return <time dateTime={said(value)}>{timeOf(value, render.format, props.page.locale)}</time>;
  if (render.type === "link") {
    const link = safeLink(filled(render.link ?? "{value}", value, props.object, render.link ? encodeURIComponent : undefined));
    return link ? <a href={link} target="_blank" rel="noreferrer">{text}</a> : <>{text}</>;
  }
  return <>{text}</>;
}

function Table(context: Context) {
  const { host, page, props: { resource, columns } } = context;
  const [namespace, setNamespace] = useState("");
  const [namespaces, setNamespaces] = useState<string[]>([]);
  const [words, setWords] = useState("");
  const [order, setOrder] = useState<{ column: Column; down: boolean } | null>(null);
  const [asked, setAsked] = useState<Thing | null>(null);
  const { things, known, problem } = useThings(host, namespace);
  const namespaced = resource.scope === "Namespaced";
  useEffect(() => {
    if (namespaced) host.namespaces().then(setNamespaces, () => undefined);
  }, []);
  const all = [...things.values()].sort((a, b) => said([a.metadata.namespace, a.metadata.name]).localeCompare(said([b.metadata.namespace, b.metadata.name])));
  const wanted = words ? all.filter((one) => [one.metadata.name, ...columns.map((column) => said(at(one, column.render.path)))].join(" ").toLowerCase().includes(words.toLowerCase())) : all;
  const rows = order ? [...wanted].sort((a, b) => {
    const [x, y] = [sortKey(order.column, a), sortKey(order.column, b)];
    const difference = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return order.down ? -difference : difference;
  }) : wanted;
  const remove = async (object: Thing) => {
    setAsked(null);
    try {
      await host.remove(object.metadata.name, object.metadata.namespace);
      await host.notify(`${resource.kind} ${object.metadata.name} is deleted.`);
    } catch (error) {
      await host.notify(messageOf(error), "error");
    }
  };
  // Without a column for the name there would be no way to an object.
  const named = columns.find((column) => column.render.path.replace(/^\./, "") === "metadata.name");
  const open = (object: Thing) => <button type="button" class="link" onClick={() => void host.navigate(placeOf("view", object))}>{object.metadata.name}</button>;
  return (
    <section class="card">
      <div class="bar">
        <input type="search" placeholder="Filter" aria-label={`Filter ${resource.plural}`} value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        {namespaced && (
          <select aria-label="Namespace" value={namespace} onChange={(event) => setNamespace(event.currentTarget.value)}>
            <option value="">All namespaces</option>
            {namespaces.map((one) => <option value={one}>{one}</option>)}
          </select>
        )}
        <span class="dim" role="status">{known ? `${rows.length}${rows.length === all.length ? "" : ` of ${all.length}`}` : "Reading…"}{rows.length > MOST_ROWS && `; the first ${MOST_ROWS} are shown`}</span>
        <span class="space" />
        <button type="button" class="button main" onClick={() => void host.navigate("new")}>New {resource.kind}</button>
      </div>
      {problem && <p class="bad message" role="alert">{problem}</p>}
      {known && !problem && rows.length === 0 && <p class="empty">{all.length === 0 ? `No ${resource.kind} yet.` : "None of them fits."}</p>}
      {rows.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label={resource.kind}>
          <table>
            <thead>
              <tr>
                {!named && <th scope="col">Name</th>}
                {columns.map((column) => {
                  const sorted = order?.column === column ? (order.down ? "descending" : "ascending") : undefined;
                  return (
                    <th scope="col" aria-sort={sorted} key={column.key}>
                      {column.enableSorting
                        ? <button type="button" class="sort" onClick={() => setOrder({ column, down: sorted === "ascending" })}>{column.title}<span aria-hidden="true">{sorted === "ascending" ? " ↑" : sorted ? " ↓" : ""}</span></button>
                        : column.title}
                    </th>
                  );
                })}
                <th scope="col"><span class="unseen">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, MOST_ROWS).map((object) => (
                <tr key={object.metadata.uid ?? object.metadata.name}>
                  {!named && <td>{open(object)}</td>}
                  {columns.map((column) => <td key={column.key}>{column === named ? open(object) : <Cell column={column} object={object} page={page} />}</td>)}
                  <td class="actions">
                    <button type="button" class="button" aria-label={`Edit ${object.metadata.name}`} onClick={() => void host.navigate(placeOf("edit", object))}>Edit</button>
                    <button type="button" class="button danger" aria-label={`Delete ${object.metadata.name}`} onClick={() => setAsked(object)}>Delete</button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Confirm object={asked} kind={resource.kind} onYes={(object) => void remove(object)} onNo={() => setAsked(null)} />
    </section>
  );
}

/** A question before something is deleted. */
export function Confirm(props: { object: Thing | null; kind: string; onYes: (object: Thing) => void; onNo: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const { object } = props;
  useEffect(() => {
    if (object && !dialog.current?.open) dialog.current?.showModal();
    if (!object && dialog.current?.open) dialog.current.close();
  }, [object]);
  const title = `Delete ${props.kind} ${object?.metadata.name ?? ""}?`;
  return (
    <dialog ref={dialog} aria-label={title} onClose={props.onNo}>
      <h2>{title}</h2>
      <p class="dim">Everything that was made for it goes with it. This cannot be undone.</p>
      <div class="bar end">
        <button type="button" class="button" onClick={props.onNo}>Cancel</button>
        <button type="button" class="button danger" onClick={() => object && props.onYes(object)}>Delete</button>
      </div>
    </dialog>
  );
}
