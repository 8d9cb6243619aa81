import { useState } from "preact/hooks";
import { Refusal, send } from "../api";
import { APP, COMPONENT, GROUP, pathOf } from "../kinds";
import { LABEL, phase, toneOf, type Resource } from "../objects";
import { Link } from "../router";
import { useKindIn } from "../scope";
import { Age, Badge, Button, Card, Title } from "../ui/parts";
import { ObjectPage, type ObjectPlace } from "./object";
import { ListCard } from "./others";

interface Change {
  taskId: string;
  type: string;
  description?: string;
  targetComponent?: string;
  status: string;
  retryCount?: number;
  maxRetries?: number;
  startedAt?: string;
  completedAt?: string;
  error?: string;
  lastError?: string;
  cancelRequested?: boolean;
}

const changes = (app: Resource): Change[] => app.status?.tasks ?? [];
const over = (change: Change) => /^(done|failed|skipped|cancelled)$/.test(change.status);

function progress(app: Resource) {
  const all = changes(app);
  return `${all.filter((change) => change.status === "done").length} / ${all.length}`;
}

export function Apps() {
  return (
    <>
      <Title name="Apps">Apps</Title>
      <ListCard kind={APP} empty="No App. See examples/middleware." own={[
        { title: "Engine", cell: (app) => `${app.spec?.runtime?.name ?? ""} ${app.spec?.runtime?.version ?? ""}` },
        { title: "Components", number: true, cell: (app) => `${(app.status?.components ?? []).filter((one: { ready?: boolean }) => one.ready).length} / ${(app.spec?.components ?? []).length}` },
        { title: "Changes done", number: true, cell: progress },
      ]} />
    </>
  );
}

/** An App's Components, their Groups, and the Pods of those with their roles. */
function Tree(props: { app: Resource; components: Resource[]; groups: Resource[] }) {
  const ofApp = (one: Resource) => one.metadata.labels?.[LABEL.app] === props.app.metadata.name;
  const components = props.components.filter(ofApp);
  if (components.length === 0) return <div class="empty">Nothing is installed yet.</div>;
  const row = (kind: string, one: Resource) => (
    <><span class="dim">{kind}</span> <Link to={`/ui/${kind === "Component" ? "components" : "groups"}/${one.metadata.namespace}/${one.metadata.name}`}>{one.metadata.name}</Link> <Badge tone={phase(one).tone}>{phase(one).text}</Badge></>
  );
  return (
    <ul class="tree">
      {components.map((component) => (
        <li key={component.metadata.uid}>
          {row("Component", component)}
          <ul>
            {props.groups.filter((group) => group.metadata.ownerReferences?.some((owner) => owner.uid === component.metadata.uid)).map((group) => (
              <li key={group.metadata.uid}>
                {row("Group", group)} <span class="dim">{group.status?.readyReplicas ?? 0} of {group.spec?.replicas ?? group.status?.replicas ?? 0} ready{group.status?.currentVersion ? `, ${group.status.currentVersion}` : ""}</span>
                <ul>
                  {(group.status?.pods ?? []).map((pod: { name: string; ready?: boolean; role?: string; leader?: boolean }) => (
                    <li key={pod.name}>
                      <span class="dim">Pod</span> <Link to={`/ui/pods/${group.metadata.namespace}/${pod.name}`}>{pod.name}</Link>{" "}
                      <Badge tone={pod.ready ? "good" : "busy"}>{pod.ready ? "ready" : "not ready"}</Badge>
                      {pod.role && <span class={`role ${pod.leader ? "leader" : ""}`}>{pod.role}</span>}
                    </li>
                  ))}
                </ul>
              </li>
            ))}
          </ul>
        </li>
      ))}
    </ul>
  );
}

/** The queue of changes; what failed can be retried, and what runs or waits can be cancelled. */
function Queue(props: { app: Resource }) {
  const [problem, setProblem] = useState("");
  const [asked, setAsked] = useState("");
  const { name, namespace } = props.app.metadata;
  const control = async (annotation: string, content: unknown, what: string) => {
    setProblem("");
    try {
      const patch = { metadata: { annotations: { [annotation]: JSON.stringify(content) } } };
      await send("PATCH", pathOf(APP, namespace, name), patch, "application/merge-patch+json");
      setAsked(what);
    } catch (error) {
      setProblem(error instanceof Refusal ? error.message : String(error));
    }
  };
  const all = changes(props.app);
  const done = all.filter((change) => change.status === "done").length;
  if (all.length === 0) return <div class="empty">No change was asked for yet.</div>;
  return (
    <>
      {problem && <div class="notice bad" role="alert"><p>{problem}</p></div>}
      <p class="dim" role="status">{asked || `${done} of ${all.length} done`}</p>
      <progress max={all.length} value={done} aria-label="Changes that are done" />
      <ol class="queue">
        {all.map((change) => (
          <li key={change.taskId}>
            <div>
              <Badge tone={toneOf(change.status)}>{change.status.replaceAll("_", " ")}</Badge>{" "}
              <span class="name">{change.description || change.type.replaceAll("_", " ")}</span>{" "}
              <span class="dim">{change.targetComponent} · {change.taskId}</span>
            </div>
            {(change.error || change.lastError) && <p class="why">{change.error || change.lastError}</p>}
            <div class="dim">
              {change.completedAt ? <>ended <Age at={change.completedAt} /> ago</> : change.startedAt ? <>since <Age at={change.startedAt} /></> : "waits"}
              {(change.retryCount ?? 0) > 0 && `, attempt ${(change.retryCount ?? 0) + 1} of ${(change.maxRetries ?? 0) + 1}`}
            </div>
            <div class="actions">
              {/^(failed|skipped|cancelled)$/.test(change.status) && (
                <Button label={`Retry ${change.taskId}`} onClick={() => void control("middleware.io/retry-control", { retryTaskIds: [change.taskId], resetDependencies: false }, `Asked to retry ${change.taskId}`)}>Retry</Button>
              )}
              {!over(change) && (
                <Button label={`Cancel ${change.taskId}`} disabled={change.cancelRequested ?? false} onClick={() => void control("middleware.io/cancel-control", { cancelTaskIds: [change.taskId] }, `Asked to cancel ${change.taskId}`)}>
                  {change.cancelRequested ? "Cancelling…" : "Cancel"}
                </Button>
              )}
            </div>
          </li>
        ))}
      </ol>
    </>
  );
}

export function App(props: { place: ObjectPlace }) {
  const [components, groups] = [useKindIn(COMPONENT, props.place.namespace), useKindIn(GROUP, props.place.namespace)];
  return (
    <ObjectPage
      kind={APP} list={{ title: "Apps", to: "/ui/apps" }} place={props.place}
      facts={(app) => [
        ["Plugin", `${app.spec?.plugin?.name ?? "–"} ${app.spec?.plugin?.version ?? ""}`],
        ["Engine", `${app.spec?.runtime?.name ?? "–"} ${app.spec?.runtime?.version ?? ""}`],
        ["Changes done", progress(app)],
      ]}
      more={(app) => (
        <div class="wide">
          <Card title="Parts"><Tree app={app} components={components.all()} groups={groups.all()} /></Card>
        </div>
      )}
      tabs={(app) => [
        { id: "changes", title: <>Changes <span class="count">{changes(app).filter((change) => !over(change)).length}</span></>, content: () => <Card title="Changes"><Queue app={app} /></Card> },
      ]}
    />
  );
}
