// The page of one object: what the table shows of it, its conditions, and all of it as YAML.

import { useState } from "preact/hooks";
import { Cell, Confirm, messageOf, placeOf, useThings, type Context } from "./crd-table";
import { write, type Json } from "./yaml";
import { at, type Thing } from "./values";

interface Condition {
  type?: string;
  status?: string;
  reason?: string;
  message?: string;
}

/** An object without what only machines read. */
export function tidy(object: Thing): Json {
  const { managedFields: _unread, ...metadata } = object.metadata;
  return { ...object, metadata } as unknown as Json;
}

export function Detail(context: Context & { name: string; namespace: string | undefined }) {
  const { host, page, name, namespace, props: { resource, columns } } = context;
  const { things, known, problem } = useThings(host, namespace ?? "");
  const [asked, setAsked] = useState(false);
  const object = [...things.values()].find((one) => one.metadata.name === name && one.metadata.namespace === namespace);
  const back = <button type="button" class="link" onClick={() => void host.navigate("")}>All {resource.plural}</button>;
  if (!object) {
    return <section class="card"><div class="bar">{back}</div><p class={problem ? "bad message" : "empty"} role={problem ? "alert" : undefined}>{problem || (known ? `There is no ${resource.kind} ${name}, or it is gone.` : "Reading…")}</p></section>;
  }
  const remove = async () => {
    setAsked(false);
    try {
      await host.remove(name, namespace);
      await host.notify(`${resource.kind} ${name} is deleted.`);
      await host.navigate("");
    } catch (error) {
      await host.notify(messageOf(error), "error");
    }
  };
  const found = at(object, "status.conditions");
  const conditions: Condition[] = Array.isArray(found) ? found : [];
  return (
    <>
      <section class="card">
        <div class="bar">
          {back} <span aria-hidden="true" class="dim">/</span> <h2>{name}</h2>{namespace && <span class="dim">in {namespace}</span>}
          <span class="space" />
          <button type="button" class="button" onClick={() => void host.navigate(placeOf("edit", object))}>Edit</button>
          <button type="button" class="button danger" onClick={() => setAsked(true)}>Delete</button>
        </div>
        <dl>
          {columns.map((column) => <div key={column.key}><dt>{column.title}</dt><dd><Cell column={column} object={object} page={page} /></dd></div>)}
        </dl>
      </section>
      {conditions.length > 0 && (
        <section class="card">
          <div class="bar"><h2>Conditions</h2></div>
          <ul class="conditions">
            {conditions.map((one) => <li key={one.type}><b class={one.status === "True" ? "good" : "busy"}>{one.type}</b> {one.status} <span class="dim">{one.reason}</span>{one.message && <p>{one.message}</p>}</li>)}
          </ul>
        </section>
      )}
      <section class="card">
        <div class="bar"><h2>YAML</h2></div>
        <pre tabIndex={0} role="region" aria-label="YAML">{write(tidy(object))}</pre>
      </section>
      <Confirm object={asked ? object : null} kind={resource.kind} onYes={() => void remove()} onNo={() => setAsked(false)} />
    </>
  );
}
