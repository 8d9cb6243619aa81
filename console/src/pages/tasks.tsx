import { POD, SANDBOX, TASK } from "../kinds";
import { LABEL, phase, podState, session, type Resource } from "../objects";
import { Link } from "../router";
import { useKind, useKindIn, useLeases } from "../scope";
import { Age, Badge, Card, Table, Title, Trouble } from "../ui/parts";
import { Reservations, Starts } from "./figures";
import { Invoke } from "./invoke";
import { Logs, SandboxLogs } from "./logs";
import { ObjectPage, type ObjectPlace } from "./object";
import { SessionTable } from "./sessions";

export function Tasks() {
  const [tasks, leases] = [useKind(TASK), useLeases()];
  const sessions = leases.all().flatMap((lease) => session(lease) ?? []);
  const of = (task: Resource) => sessions.filter((one) => one.taskUid === task.metadata.uid).length;
  return (
    <>
      <Title name="Tasks" actions={<Link to="/ui/new" class="button main">New Task</Link>}>Tasks</Title>
      <Trouble of={[tasks]} />
      <Card>
        <Table
          label="Tasks"
          rows={tasks.all()}
          id={(task) => task.metadata.uid}
          empty={tasks.known ? <>No Task yet. <Link to="/ui/new">Make one</Link>, or <code>agentcube apply -f examples/agents/hello.yaml</code></> : "Reading…"}
          columns={[
            { title: "Name", cell: (task) => <Link to={`/ui/tasks/${task.metadata.namespace}/${task.metadata.name}`}>{task.metadata.name}</Link>, key: (task) => task.metadata.name },
            { title: "Namespace", cell: (task) => task.metadata.namespace, key: (task) => task.metadata.namespace ?? "" },
            { title: "State", cell: (task) => { const state = phase(task); return <Badge tone={state.tone}>{state.text}</Badge>; }, key: (task) => phase(task).text },
            { title: "Instances", number: true, cell: (task) => `${task.status?.instances?.ready ?? 0} / ${task.status?.instances?.total ?? 0}`, key: (task) => task.status?.instances?.total ?? 0 },
            { title: "Sessions", number: true, cell: of, key: of },
            { title: "Address", cell: (task) => <code>{task.status?.address ?? "–"}</code> },
            { title: "Age", cell: (task) => <Age at={task.metadata.creationTimestamp} />, key: (task) => -Date.parse(task.metadata.creationTimestamp ?? "") },
          ]}
        />
      </Card>
    </>
  );
}

/** What instances of a Task are: Pods, or Sandboxes of a pool. */
function Instances(props: { task: Resource; pods: Resource[]; sandboxes: Resource[] }) {
  const rows = [
    ...props.pods.map((one) => ({ one, page: "pods", state: podState(one), where: one.status?.podIP ?? "" })),
    ...props.sandboxes.map((one) => ({ one, page: "sandboxes", state: { ...phase(one), why: "" }, where: one.status?.endpoints?.[0] ?? "" })),
  ];
  const scaling = props.task.spec?.scaling ?? {};
  return (
    <Card>
      <Table
        label="Instances"
        rows={rows}
        id={({ one }) => one.metadata.uid}
        empty={`No instance runs. ${scaling.minInstances ? "" : "The first request of a session starts one."}`}
        columns={[
          { title: "Name", cell: ({ one, page }) => <Link to={`/ui/${page}/${one.metadata.namespace}/${one.metadata.name}`}>{one.metadata.name}</Link>, key: ({ one }) => one.metadata.name },
          { title: "State", cell: ({ state }) => <span title={state.why}><Badge tone={state.tone}>{state.text}</Badge></span>, key: ({ state }) => state.text },
          { title: "Session", cell: ({ one }) => one.metadata.annotations?.[LABEL.reserveKey] || <span class="dim">idle</span>, key: ({ one }) => one.metadata.annotations?.[LABEL.reserveKey] ?? "" },
          { title: "Revision", cell: ({ one }) => one.metadata.labels?.["agentcube.io/spec-id"] ?? "–" },
          { title: "Address", cell: ({ where }) => <code>{where || "–"}</code> },
          { title: "Age", cell: ({ one }) => <Age at={one.metadata.creationTimestamp} /> },
        ]}
      />
    </Card>
  );
}

export function Task(props: { place: ObjectPlace }) {
  const { namespace } = props.place;
  const [pods, sandboxes, leases] = [useKindIn(POD, namespace), useKindIn(SANDBOX, namespace), useLeases(namespace)];
  const mine = (task: Resource) => (one: Resource) => one.metadata.labels?.[LABEL.taskUid] === task.metadata.uid;
  const sessionsOf = (task: Resource) => leases.all().flatMap((lease) => session(lease) ?? []).filter((one) => one.taskUid === task.metadata.uid);
  return (
    <ObjectPage
      kind={TASK}
      list={{ title: "Tasks", to: "/ui/tasks" }}
      place={props.place}
      facts={(task) => {
        const { deployment = {}, scaling = {}, routing = {} } = task.spec ?? {};
        const counts = task.status?.instances ?? {};
        return [
          ["Address", <code>{task.status?.address ?? "–"}</code>],
          ["Instances", `${counts.ready ?? 0} ready, ${counts.creating ?? 0} starting, ${counts.reserved ?? 0} reserved, ${counts.idle ?? 0} idle`],
          ["Sessions", sessionsOf(task).length],
          ["Kind of instance", deployment.type],
          ["Scaling", `${scaling.scalingMode ?? "–"}, ${scaling.minInstances ?? 0} to ${scaling.maxInstances ?? "–"}`],
          ["Idle timeout", scaling.instanceLifecycle?.idleTimeout],
          ["Routing", routing.routePolicy],
          ["Revision", task.status?.specID],
        ];
      }}
      tabs={(task) => {
        const [ofPods, ofSandboxes] = [pods.all().filter(mine(task)), sandboxes.all().filter(mine(task))];
        const sessions = sessionsOf(task);
        return [
          { id: "instances", title: <>Instances <span class="count">{ofPods.length + ofSandboxes.length}</span></>, content: () => <Instances task={task} pods={ofPods} sandboxes={ofSandboxes} /> },
          { id: "sessions", title: <>Sessions <span class="count">{sessions.length}</span></>, content: () => <Card><Trouble of={[leases]} /><SessionTable sessions={sessions} /></Card> },
          { id: "figures", title: "Figures", content: () => <><Reservations task={task} /><Starts pods={ofPods} /></> },
          { id: "logs", title: "Logs", content: () => ofPods.length === 0 && ofSandboxes.length > 0 ? <SandboxLogs sandboxes={ofSandboxes} /> : <Logs pods={ofPods} none="No instance runs, so there is nothing to read. Invoke starts one." /> },
          { id: "invoke", title: "Invoke", content: () => <Invoke task={task} /> },
        ];
      }}
    />
  );
}
