import { useState } from "preact/hooks";
import { invoke, Refusal, type Said } from "../api";
import type { Resource } from "../objects";
import { Badge, Button, Card, Field } from "../ui/parts";

/** Talks to a Task through its gateway, as any client would. */
export function Invoke(props: { task: Resource }) {
  const { name, namespace = "" } = props.task.metadata;
  const bySession = props.task.spec?.routing?.routePolicy === "BySession";
  const [session, setSession] = useState("console");
  const [path, setPath] = useState("/");
  const [method, setMethod] = useState("POST");
  const [body, setBody] = useState("Hello");
  const [headers, setHeaders] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [said, setSaid] = useState<Said | null>(null);
  const submit = async () => {
    setBusy(true);
    setProblem("");
    setSaid(null);
    try {
      const lines = headers.split("\n").map((line) => line.trim()).filter(Boolean);
      const withBody = method !== "GET" && method !== "DELETE";
      setSaid(await invoke(namespace, name, { path, method, headers: lines, session: bySession && session ? session : null, body: withBody ? body : null }));
    } catch (error) {
      setProblem(error instanceof Refusal ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <div class="columns">
      <Card title="Request">
        <form class="form" onSubmit={(event) => { event.preventDefault(); void submit(); }}>
          {bySession && (
            <Field label="Session" hint="Each session has an instance of its own; a new one starts an instance.">
              <input value={session} onInput={(event) => setSession(event.currentTarget.value)} />
            </Field>
          )}
          <div class="pair">
            <Field label="Method">
              <select value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
                {["POST", "GET", "PUT", "DELETE"].map((one) => <option>{one}</option>)}
              </select>
            </Field>
            <Field label="Path"><input value={path} onInput={(event) => setPath(event.currentTarget.value)} /></Field>
          </div>
          {method !== "GET" && method !== "DELETE" && (
            <Field label="Body"><textarea rows={5} value={body} onInput={(event) => setBody(event.currentTarget.value)} /></Field>
          )}
          <Field label="Headers" hint="One on each line, as name: value.">
            <textarea rows={2} value={headers} onInput={(event) => setHeaders(event.currentTarget.value)} />
          </Field>
          <Button type="submit" kind="main" disabled={busy}>{busy ? "Waiting for the answer…" : "Send"}</Button>
        </form>
      </Card>
      <Card title="Answer">
        <div aria-live="polite">
          {problem && <div class="notice bad" role="alert"><p>{problem}</p></div>}
          {said && (
            <>
              <p><Badge tone={said.status < 400 ? "good" : "bad"}>{said.status} {said.reason}</Badge> <span class="dim">{said.milliseconds} ms</span></p>
              <pre class="answer" tabIndex={0} aria-label="Body of the answer">{said.body}</pre>
              {!said.whole && <p class="dim">Only the first MiB is shown.</p>}
              <details><summary>Headers</summary><pre>{said.headers.map(([header, value]) => `${header}: ${value}`).join("\n")}</pre></details>
            </>
          )}
          {!problem && !said && <div class="empty">{busy ? "Waiting…" : "Nothing sent yet."}</div>}
        </div>
      </Card>
    </div>
  );
}
