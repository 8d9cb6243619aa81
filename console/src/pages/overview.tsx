import type { ComponentChildren } from "preact";
import { APP, EVENT, FRONTEND, GATEWAY, POD, POOL, SANDBOX, TASK } from "../kinds";
import { happening, phase, podState, session, LABEL, type Resource } from "../objects";
import { warnings, wrong } from "../problems";
import { Link } from "../router";
import { useKind, useLeases } from "../scope";
import { useNow } from "../store";
import { Age, Badge, Card, Title, Trouble } from "../ui/parts";
import { EventList } from "./events";
import { SessionTable } from "./sessions";

function Tile(props: { to: string; title: string; value: ComponentChildren; note: ComponentChildren }) {
  return (
    <Link to={props.to} class="tile">
      <span class="name">{props.title}</span>
      <span class="value">{props.value}</span>
      <span class="dim">{props.note}</span>
    </Link>
  );
}

export function Overview() {
  const [tasks, pods, leases, gateways, pools, sandboxes, apps, frontends, events] =
    [useKind(TASK), useKind(POD), useLeases(), useKind(GATEWAY), useKind(POOL), useKind(SANDBOX), useKind(APP), useKind(FRONTEND), useKind(EVENT)];
  const now = useNow();
  const problems = ([["Task", tasks], ["TaskGateway", gateways], ["SandboxPool", pools], ["App", apps], ["Sandbox", sandboxes], ["FrontendIntegration", frontends], ["Pod", pods]] as const)
    .flatMap(([kind, all]) => all.all().flatMap((object) => wrong(object, kind) ?? []));
  const sessions = leases.all().flatMap((lease) => session(lease) ?? []);
  const instances = pods.all().filter((pod) => pod.metadata.labels?.[LABEL.taskUid]);
  const count = (all: Resource[], good: (object: Resource) => boolean) => all.filter(good).length;
  const serving = count(tasks.all(), (task) => phase(task).text === "Serving");
  const running = count(instances, (pod) => podState(pod).tone === "good");
  const bound = sessions.filter((one) => one.state === "bound").length;
  const warned = warnings(events.all(), now).length;
  const latest = events.all().map(happening).sort((a, b) => Date.parse(b.at) - Date.parse(a.at)).slice(0, 8);
  return (
    <>
      <Title name="Overview">Overview</Title>
      <Trouble of={[tasks, pods, leases, events]} />
      <div class="tiles">
        <Tile to="/ui/tasks" title="Tasks" value={tasks.items.size} note={`${serving} serving`} />
        <Tile to="/ui/sessions" title="Sessions" value={sessions.length} note={`${bound} bound to an instance`} />
        <Tile to="/ui/pods" title="Instances" value={instances.length} note={`${running} running`} />
        <Tile to="/ui/sandboxes" title="Sandboxes" value={sandboxes.items.size} note={`in ${pools.items.size} ${pools.items.size === 1 ? "pool" : "pools"}`} />
        <Tile to="/ui/apps" title="Apps" value={apps.items.size} note={`${count(apps.all(), (app) => phase(app).tone === "good")} running`} />
        <Tile to="/ui/events" title="Warnings" value={warned} note="in the last 15 minutes" />
      </div>
      <Card title="What is wrong" more={<span class="dim">{problems.length === 0 ? "nothing" : `${problems.length}`}</span>}>
        {problems.length === 0
          ? <div class="empty good">{tasks.known ? "Everything is as it should be." : "Reading…"}</div>
          : <ul class="problems">
              {problems.map((problem) => (
                <li key={problem.id}>
                  <div class="line"><Badge tone="bad">{problem.what}</Badge> {problem.page ? <Link to={problem.page}>{problem.where}</Link> : problem.where}<span class="space" /><span class="dim"><Age at={problem.since} /></span></div>
                  <p>{problem.why}</p>
                </li>
              ))}
            </ul>}
      </Card>
      <Card title="Live sessions" more={<Link to="/ui/sessions">All</Link>}>
        <SessionTable sessions={sessions.sort((a, b) => b.active.localeCompare(a.active)).slice(0, 10)} withTask />
      </Card>
      <Card title="Latest events" more={<Link to="/ui/events">All</Link>}>
        <EventList events={latest} withObject />
      </Card>
    </>
  );
}
