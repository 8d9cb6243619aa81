// Gateways, sandboxes and their pools, Pods: a list and a page each.

import type { ComponentChildren } from "preact";
import { BUNDLE, GATEWAY, GROUP, COMPONENT, POD, POOL, SANDBOX, TASK, type Kind } from "../kinds";
import { LABEL, phase, podState, startOf, type Resource, type Tone } from "../objects";
import { Link } from "../router";
import { useKind, useKindIn } from "../scope";
import { Age, Badge, Card, Table, Title, Trouble, type Column } from "../ui/parts";
import { Logs, SandboxLog } from "./logs";
import { Terminal } from "./terminal";
import { ObjectPage, type ObjectPlace } from "./object";

type State = (object: Resource) => { text: string; tone: Tone };

export function link(kind: Kind, object: Resource): ComponentChildren {
  return <Link to={`/ui/${kind.id}/${object.metadata.namespace}/${object.metadata.name}`}>{object.metadata.name}</Link>;
}

/** Columns that every list begins with, its own, and the age. */
export function columns(kind: Kind, own: Column<Resource>[], state: State = phase): Column<Resource>[] {
  return [
    { title: "Name", cell: (one) => link(kind, one), key: (one) => one.metadata.name },
    { title: "Namespace", cell: (one) => one.metadata.namespace, key: (one) => one.metadata.namespace ?? "" },
    { title: "State", cell: (one) => <Badge tone={state(one).tone}>{state(one).text}</Badge>, key: (one) => state(one).text },
    ...own,
    { title: "Age", cell: (one) => <Age at={one.metadata.creationTimestamp} />, key: (one) => -Date.parse(one.metadata.creationTimestamp ?? "") },
  ];
}

export function ListCard(props: { kind: Kind; title?: string; own: Column<Resource>[]; state?: State; empty: string; filter?: (one: Resource) => boolean; namespace?: string }) {
  const [all, inOne] = [useKind(props.kind), useKindIn(props.kind, props.namespace ?? "default")];
  const shown = props.namespace ? inOne : all;
  const rows = shown.all().filter(props.filter ?? (() => true));
  return (
    <Card {...(props.title ? { title: props.title } : {})}>
      <Trouble of={[shown]} />
      <Table label={props.title ?? props.kind.kind} rows={rows} id={(one) => one.metadata.uid} columns={columns(props.kind, props.own, props.state)} empty={shown.known ? props.empty : "Reading…"} />
    </Card>
  );
}

const listeners = (gateway: Resource) =>
  (gateway.spec?.listeners ?? []).map((one: Resource) => `${one.protocol} ${one.port}`).join(", ");
const address = (gateway: Resource): string => (gateway.status?.addresses ?? []).map((one: { value: string }) => one.value).join(", ");

export function Gateways() {
  return (
    <>
      <Title name="Gateways">Gateways</Title>
      <ListCard kind={GATEWAY} empty="No gateway." own={[
        { title: "Listeners", cell: listeners },
        { title: "Address", cell: (one) => <code>{address(one) || "–"}</code> },
      ]} />
    </>
  );
}

export function Gateway(props: { place: ObjectPlace }) {
  const tasks = useKindIn(TASK, props.place.namespace);
  const behind = (gateway: Resource) => tasks.all().filter((task) => {
    const refs: string[] = task.spec?.routing?.gatewayRefs ?? ["default"];
    return refs.includes(gateway.metadata.name);
  });
  return (
    <ObjectPage
      kind={GATEWAY} list={{ title: "Gateways", to: "/ui/gateways" }} place={props.place}
      facts={(gateway) => {
        const { authentication, rateLimit, cors } = gateway.spec ?? {};
        return [
          ["Address", <code>{address(gateway) || "–"}</code>],
          ["Listeners", listeners(gateway)],
          ["Authentication", authentication ? Object.keys(authentication).join(", ") : "none"],
          ["CORS", cors ? "yes" : "none"],
          ["Rate limits", rateLimit ? "yes" : "none"],
        ];
      }}
      more={(gateway) => (
        <Card title="Tasks behind it" class="wide">
          <Table label="Tasks behind it" rows={behind(gateway)} id={(one) => one.metadata.uid} empty="No Task."
            columns={columns(TASK, [{ title: "Address", cell: (one) => <code>{one.status?.address ?? "–"}</code> }])} />
        </Card>
      )}
    />
  );
}

const SANDBOX_COLUMNS: Column<Resource>[] = [
  { title: "Pool", cell: (one) => <Link to={`/ui/pools/${one.metadata.namespace}/${one.spec?.poolRef}`}>{one.spec?.poolRef}</Link>, key: (one) => one.spec?.poolRef ?? "" },
  { title: "Image", cell: (one) => one.spec?.image },
  { title: "Endpoints", cell: (one) => <code>{(one.status?.endpoints ?? []).join(", ") || "–"}</code> },
];

export function Sandboxes() {
  return (
    <>
      <Title name="Sandboxes">Sandboxes</Title>
      <ListCard kind={POOL} title="Pools" empty="No pool. Sandboxes need one." own={[
        { title: "Agents", number: true, cell: (one) => `${one.status?.agents?.ready ?? 0} / ${one.status?.agents?.wanted ?? 0}` },
        { title: "Sandboxes", number: true, cell: (one) => one.status?.sandboxes?.active ?? 0 },
        { title: "Free", number: true, cell: (one) => one.status?.sandboxes?.freeSlots ?? 0 },
        { title: "Prepared", number: true, cell: (one) => one.status?.sandboxes?.prepared ?? 0 },
        { title: "Runtime", cell: (one) => one.spec?.runtimeType },
      ]} />
      <ListCard kind={SANDBOX} title="Sandboxes" empty="No sandbox." own={SANDBOX_COLUMNS} />
    </>
  );
}

export function Pool(props: { place: ObjectPlace }) {
  return (
    <ObjectPage
      kind={POOL} list={{ title: "Sandboxes", to: "/ui/sandboxes" }} place={props.place}
      facts={(pool) => {
        const { agents = {}, sandboxes = {} } = pool.status ?? {};
        return [
          ["Runtime", pool.spec?.runtimeType],
          ["Agents", `${agents.ready ?? 0} ready of ${agents.wanted ?? 0} wanted, ${agents.draining ?? 0} draining`],
          ["Sandboxes", `${sandboxes.active ?? 0} active, ${sandboxes.pending ?? 0} waiting, ${sandboxes.paused ?? 0} paused`],
          ["Free places", sandboxes.freeSlots ?? 0],
          ["Prepared", sandboxes.prepared ?? 0],
          ["Images", (pool.spec?.images ?? []).join(", ") || "any"],
        ];
      }}
      more={(pool) => (
        <div class="wide">
          <ListCard kind={SANDBOX} title="Its sandboxes" namespace={props.place.namespace} filter={(one) => one.spec?.poolRef === pool.metadata.name} empty="No sandbox." own={SANDBOX_COLUMNS} />
        </div>
      )}
    />
  );
}

export function Sandbox(props: { place: ObjectPlace }) {
  return (
    <ObjectPage
      kind={SANDBOX} list={{ title: "Sandboxes", to: "/ui/sandboxes" }} place={props.place}
      facts={(one) => [
        ["Pool", <Link to={`/ui/pools/${one.metadata.namespace}/${one.spec?.poolRef}`}>{one.spec?.poolRef}</Link>],
        ["Image", one.spec?.image],
        ["Command", <code>{[...(one.spec?.command ?? []), ...(one.spec?.args ?? [])].join(" ") || "that of the image"}</code>],
        ["Agent", one.status?.assignedPod],
        ["Node", one.status?.nodeName],
        ["Endpoints", <code>{(one.status?.endpoints ?? []).join(", ") || "–"}</code>],
        ["Session", one.metadata.annotations?.[LABEL.reserveKey]],
      ]}
      tabs={(one) => [
        { id: "logs", title: "Logs", content: () => <SandboxLog key={one.metadata.uid} namespace={props.place.namespace} name={one.metadata.name} /> },
        { id: "terminal", title: "Terminal", content: () => <Terminal key={one.metadata.uid} target={{ kind: "sandbox", namespace: props.place.namespace, name: one.metadata.name }} /> },
      ]}
    />
  );
}

const owner = (one: Resource) => one.metadata.ownerReferences?.find((ref) => ref.controller);

export function Pods() {
  return (
    <>
      <Title name="Pods">Pods</Title>
      <ListCard kind={POD} empty="No Pod runs." state={podState} own={[
        { title: "For", cell: (one) => { const found = owner(one); return found ? `${found.kind} ${found.name}` : "–"; } },
        { title: "Session", cell: (one) => one.metadata.annotations?.[LABEL.reserveKey] || <span class="dim">–</span> },
        { title: "Restarts", number: true, cell: (one) => (one.status?.containerStatuses ?? []).reduce((sum: number, status: { restartCount?: number }) => sum + (status.restartCount ?? 0), 0) },
        { title: "Address", cell: (one) => <code>{one.status?.podIP ?? "–"}</code> },
      ]} />
    </>
  );
}

export function Pod(props: { place: ObjectPlace }) {
  return (
    <ObjectPage
      kind={POD} list={{ title: "Pods", to: "/ui/pods" }} place={props.place} state={podState}
      facts={(pod) => [
        ["Why", podState(pod).why || undefined],
        ["Node", pod.spec?.nodeName],
        ["Address", <code>{pod.status?.podIP ?? "–"}</code>],
        ["Session", pod.metadata.annotations?.[LABEL.reserveKey]],
        ["For", owner(pod) ? `${owner(pod)?.kind} ${owner(pod)?.name}` : undefined],
        ["Images", (pod.spec?.containers ?? []).map((one: { image: string }) => one.image).join(", ")],
      ]}
      more={(pod) => {
        const steps = startOf(pod);
        const whole = Math.max(1, ...steps.map((step) => step.seconds));
        return (
          <Card title="How it started" class="wide">
            {steps.length === 0
              ? <div class="empty">It has not started yet.</div>
              : <ol class="steps">
                  {steps.map((step) => (
                    <li><span>{step.step}</span><meter min={0} max={whole} value={step.seconds} aria-label={step.step} /><span class="dim">+{step.seconds.toFixed(step.seconds % 1 ? 1 : 0)} s</span></li>
                  ))}
                </ol>}
          </Card>
        );
      }}
      tabs={(pod) => [
        { id: "logs", title: "Logs", content: () => <Logs pods={[pod]} /> },
        {
          id: "terminal", title: "Terminal",
          content: () => <Terminal key={pod.metadata.uid} target={{ kind: "pod", namespace: props.place.namespace, name: pod.metadata.name }} containers={(pod.spec?.containers ?? []).map((one: { name: string }) => one.name)} />,
        },
      ]}
    />
  );
}

export function Plain(props: { kind: typeof BUNDLE | typeof COMPONENT | typeof GROUP; list: { title: string; to: string }; place: ObjectPlace }) {
  return (
    <ObjectPage
      kind={props.kind} list={props.list} place={props.place}
      facts={(one) => [
        ["Generation", one.metadata.generation],
        ["Message", one.status?.message],
        ["For", owner(one) ? `${owner(one)?.kind} ${owner(one)?.name}` : undefined],
      ]}
    />
  );
}
