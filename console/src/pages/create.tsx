// Objects written or pasted as YAML, and applied.

import { useState } from "preact/hooks";
import { Refusal, send } from "../api";
import { pathOf, SHOWN, pageOf } from "../kinds";
import type { Resource } from "../objects";
import { go, Link, usePlace } from "../router";
import { useNamespace } from "../scope";
import { library, mistakes as mistakesOf, read, type Mistake } from "../yaml-object";
import { Button, Card, Title } from "../ui/parts";
import { Code } from "../ui/editor";

const TEMPLATE = `apiVersion: agentcube.io/v1alpha1
kind: Task
metadata:
  name: my-agent
spec:
  deployment:
    type: pod
    podTemplate:
      spec:
        containers:
        - name: agent
          image: host
          command: ["/.agentcube/agentcube", "sample-agent", "--port", "8080"]
          ports:
          - name: http
            containerPort: 8080
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 1
  scaling:
    scalingMode: OnDemand
    minInstances: 0
    maxInstances: 10
    instanceLifecycle:
      reusePolicy: Never
      idleTimeout: 5m
  routing:
    routePolicy: BySession
    sessionIdentifier:
      extractors:
      - type: httpHeader
        name: X-Session-ID
`;

const FRONTEND_TEMPLATE = `apiVersion: frontend-forge.io/v1alpha1
kind: FrontendIntegration
metadata:
  name: all-tasks
spec:
  displayName: All Tasks
  integration:
    type: crd
    crd:
      names: {kind: Task, plural: tasks}
      group: agentcube.io
      version: v1alpha1
      scope: Namespaced
  routing:
    path: all-tasks
  columns:
  - key: name
    title: Name
    enableSorting: true
    render: {type: text, path: metadata.name}
  - key: phase
    title: Phase
    enableSorting: true
    render: {type: text, path: status.phase}
  - key: created
    title: Created
    enableSorting: true
    render: {type: time, path: metadata.creationTimestamp, format: local-datetime}
  menu:
    name: All Tasks
    placements: [global]
`;

export function Create() {
  const shown = useNamespace();
  const { query } = usePlace();
  const frontend = query.get("kind") === "frontend";
  const [text, setText] = useState(frontend ? FRONTEND_TEMPLATE : TEMPLATE);
  const [mistakes, setMistakes] = useState<Mistake[]>([]);
  const [state, setState] = useState("");
  const apply = async (dry: boolean) => {
    setState(dry ? "Checking…" : "Creating…");
    const yaml = await library();
    const fail = (found: Mistake[]) => {
      setState("");
      setMistakes(found);
    };
    const outcome = read(yaml, text);
    if (!outcome.object) return fail(outcome.mistakes);
    const { kind: name, apiVersion, metadata } = outcome.object;
    const kind = SHOWN.find((one) => one.kind === name && apiVersion === (one.group ? `${one.group}/${one.version}` : one.version));
    if (!kind) return fail([{ line: 1, field: "kind", message: `${apiVersion ?? ""} ${name ?? ""} has no page here; these have: ${SHOWN.map((one) => one.kind).join(", ")}` }]);
    const namespace = metadata.namespace ?? (shown || "default");
    try {
      const path = `${pathOf(kind, namespace)}?fieldValidation=Strict&fieldManager=agentcube-console${dry ? "&dryRun=All" : ""}`;
      const made = await send<Resource>("POST", path, outcome.object);
      setMistakes([]);
      setState("Valid.");
      if (!dry) go(pageOf(made.metadata.name, namespace, kind.kind) ?? "/ui/");
    } catch (error) {
      fail(mistakesOf(yaml, text, error instanceof Refusal ? error : new Refusal(0, String(error))));
    }
  };
  return (
    <>
      <Title name="New" above={frontend ? <Link to="/ui/frontends">Frontends</Link> : <Link to="/ui/tasks">Tasks</Link>}>New object</Title>
      <Card>
        <div class="editor">
          <div class="bar">
            <span class="dim" role="status">{state || `In namespace ${shown || "default"}, unless it names one`}</span>
            <div class="actions">
              <Button onClick={() => void apply(true)}>Check</Button>
              <Button kind="main" onClick={() => void apply(false)}>Create</Button>
            </div>
          </div>
          <Code text={text} mistakes={mistakes} onText={setText} />
        </div>
      </Card>
    </>
  );
}
