// A new object, or changes of one: by a form made from the schema, or as YAML. Without a schema there is only YAML. The API
// server judges what is saved, and what it finds wrong is said at the field.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageOf, placeOf, type Context } from "./crd-table";
import { tidy } from "./detail";
import { Fields, type Schema, type Wrong } from "./form";
import type { Refused } from "./host";
import { read, write } from "./yaml";
import type { Thing } from "./values";

/** Parts of every object that a form has fields of its own for, or that are not the user's. */
const COMMON = new Set(["apiVersion", "kind", "metadata", "status"]);

/** The schema of what is the user's. */
export function ownPart(schema: Schema | null): Schema | null {
  if (!schema?.properties) return null;
  const properties = Object.fromEntries(Object.entries(schema.properties).filter(([name]) => !COMMON.has(name)));
  return Object.keys(properties).length > 0 ? { ...schema, properties, required: (schema.required ?? []).filter((name) => !COMMON.has(name)) } : null;
}

/** The user's part of an object. What is below `spec`, which nearly all of them have, needs no frame of its own. */
function Own(props: { schema: Schema; draft: Thing; wrong: Wrong[]; onChange: (draft: Thing) => void }) {
  const { draft, schema } = props;
  const { spec, ...others } = schema.properties ?? {};
  const common = { depth: 0, wrong: props.wrong };
  if (!spec?.properties) return <Fields {...common} schema={schema} path="" value={draft} onChange={(next) => props.onChange(next as Thing)} />;
  return (
    <>
      <Fields {...common} schema={spec} path="spec" value={draft.spec} onChange={(next) => props.onChange({ ...draft, spec: next })} />
      <Fields {...common} schema={{ ...schema, properties: others }} path="" value={draft} onChange={(next) => props.onChange(next as Thing)} />
    </>
  );
}

export function Edit(context: Context & { name?: string; namespace?: string | undefined }) {
  const { host, name, props: { resource } } = context;
  const namespaced = resource.scope === "Namespaced";
  const [schema, setSchema] = useState<Schema | null | undefined>(undefined);
  const [namespaces, setNamespaces] = useState<string[]>([]);
  const [draft, setDraft] = useState<Thing | null>(null);
  const [asYaml, setAsYaml] = useState(false);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [wrong, setWrong] = useState<Wrong[]>([]);
  const [saving, setSaving] = useState(false);
  const form = useRef<HTMLDivElement>(null);
  const summary = useRef<HTMLDivElement>(null);
  const apiVersion = resource.group ? `${resource.group}/${resource.version}` : resource.version;
  useEffect(() => {
    host.schema().then((found) => setSchema(ownPart(found)), () => setSchema(null));
    const empty: Thing = { apiVersion, kind: resource.kind, metadata: { name: "" }, spec: {} };
    if (name) host.get(name, context.namespace).then(setDraft, (error) => setProblem(messageOf(error)));
    else if (namespaced) {
      host.namespaces().then((found) => {
        setNamespaces(found);
        setDraft({ ...empty, metadata: { name: "", namespace: found.includes("default") ? "default" : found[0] ?? "default" } });
      }, () => setDraft({ ...empty, metadata: { name: "", namespace: "default" } }));
    } else setDraft(empty);
  }, []);
  useEffect(() => {
    if (problem) summary.current?.focus();
  }, [problem]);
  const yamlOnly = schema === null;
  const yaml = asYaml || yamlOnly;
  // Before it is painted: what is typed into an empty field would be written over.
  useLayoutEffect(() => {
    if (yaml && draft) setText(write(tidy(draft)));
  }, [yaml, draft === null]);
  const back = () => void host.navigate(name && draft ? placeOf("view", draft) : "");
  const swap = (to: boolean) => {
    if (!to) {
      try {
        setDraft(read(text) as unknown as Thing);
      } catch (error) {
        return setProblem(messageOf(error));
      }
    }
    setProblem("");
    setAsYaml(to);
  };
  const save = async () => {
    setProblem("");
    setWrong([]);
    setSaving(true);
    try {
      const flaw = form.current?.querySelector<HTMLElement>("[data-mistake]");
      if (!yaml && flaw) {
        flaw.focus();
        throw new Error("A field holds YAML that cannot be read.");
      }
      const object = yaml ? (read(text) as unknown as Thing) : draft;
      if (!object?.metadata?.name) throw new Error("It has no name.");
      const stored = name ? await host.update(object) : await host.create(object);
      await host.notify(`${resource.kind} ${stored.metadata.name} is saved.`);
      await host.navigate(placeOf("view", stored));
    } catch (error) {
      const refused = error as Refused;
      setWrong((refused.causes ?? []).flatMap((one) => (one.field ? [{ field: one.field, message: one.message ?? "" }] : [])));
      setProblem(refused.code === 409 && name ? `${refused.message} Somebody has changed it meanwhile: open it again.` : messageOf(error));
    } finally {
      setSaving(false);
    }
  };
  const title = name ? `Edit ${resource.kind} ${name}` : `New ${resource.kind}`;
  if (schema === undefined || !draft) {
    return <section class="card"><div class="bar"><h2>{title}</h2></div><p class={problem ? "bad message" : "empty"} role={problem ? "alert" : undefined}>{problem || "Reading…"}</p></section>;
  }
  const change = (change: Partial<Thing["metadata"]>) => setDraft({ ...draft, metadata: { ...draft.metadata, ...change } });
  return (
    <section class="card">
      <div class="bar">
        <h2>{title}</h2>
        <span class="space" />
        {!yamlOnly && <button type="button" class="button" aria-pressed={asYaml} onClick={() => swap(!asYaml)}>{asYaml ? "Form" : "YAML"}</button>}
        <button type="button" class="button" onClick={back}>Cancel</button>
        <button type="button" class="button main" disabled={saving} onClick={() => void save()}>{saving ? "Saving…" : "Save"}</button>
      </div>
      {problem && <div class="bad message" role="alert" tabIndex={-1} ref={summary}>{problem}</div>}
      {yaml
        ? <textarea class="code whole" aria-label="YAML" spellcheck={false} wrap="off" rows={28} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        : (
          <div class="form" ref={form}>
            {!name && (
              <>
                <div class="field"><label for="name">Name<span class="needed" title="required"> *</span></label><input id="name" aria-required="true" value={draft.metadata.name} onInput={(event) => change({ name: event.currentTarget.value })} /></div>
                {namespaced && (
                  <div class="field">
                    <label for="namespace">Namespace</label>
                    <select id="namespace" value={draft.metadata.namespace} onChange={(event) => change({ namespace: event.currentTarget.value })}>
                      {(namespaces.length > 0 ? namespaces : ["default"]).map((one) => <option value={one}>{one}</option>)}
                    </select>
                  </div>
                )}
              </>
            )}
            <Own schema={schema ?? {}} draft={draft} wrong={wrong} onChange={setDraft} />
          </div>
        )}
    </section>
  );
}
