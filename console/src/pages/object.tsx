// What pages of single objects share: title, conditions, events, YAML, deletion.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Refusal, send } from "../api";
import { pathOf, type Kind } from "../kinds";
import { phase, type Resource, type Tone } from "../objects";
import { go, Link } from "../router";
import { useKindIn } from "../scope";
import { Age, Badge, Button, Card, Conditions, Confirm, Facts, Tabs, Title, Trouble, type Tab } from "../ui/parts";
import { Editor } from "../ui/editor";
import { EventsOf } from "./events";

export interface ObjectPlace {
  namespace: string;
  name: string;
  tab: string;
}

export function ObjectPage(props: {
  kind: Kind;
  list: { title: string; to: string };
  place: ObjectPlace;
  state?: (object: Resource) => { text: string; tone: Tone };
  facts: (object: Resource) => [string, ComponentChildren][];
  more?: (object: Resource) => ComponentChildren;
  tabs?: (object: Resource) => Tab[];
}) {
  const { kind, place } = props;
  const all = useKindIn(kind, place.namespace);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState("");
  const object = all.all().find((one) => one.metadata.name === place.name);
  const above = <><Link to={props.list.to}>{props.list.title}</Link> <span aria-hidden="true">/</span> {place.namespace}</>;
  if (!object) {
    return (
      <>
        <Title name={place.name} above={above}>{place.name}</Title>
        <Trouble of={[all]} />
        <Card><div class="empty">{all.known ? `There is no ${kind.kind} of this name, or it is gone.` : "Reading…"}</div></Card>
      </>
    );
  }
  const state = (props.state ?? phase)(object);
  const path = pathOf(kind, place.namespace, place.name);
  const remove = async () => {
    setAsking(false);
    try {
      await send("DELETE", path);
      go(props.list.to);
    } catch (error) {
      setProblem(error instanceof Refusal ? error.message : String(error));
    }
  };
  const overview = () => (
    <div class="columns">
      <Card title="About"><Facts rows={[...props.facts(object), ["Created", <Age at={object.metadata.creationTimestamp} />]]} /></Card>
      <Card title="Conditions"><Conditions of={object} /></Card>
      {props.more?.(object)}
    </div>
  );
  const tabs: Tab[] = [
    { id: "about", title: "Overview", content: overview },
    ...(props.tabs?.(object) ?? []),
    { id: "events", title: "Events", content: () => <EventsOf namespace={place.namespace} kind={kind.kind} name={place.name} /> },
    { id: "yaml", title: "YAML", content: () => <Card><Editor key={object.metadata.uid} object={{ apiVersion: kind.group ? `${kind.group}/${kind.version}` : kind.version, kind: kind.kind, ...object }} path={path} onSaved={(stored) => all.put(stored)} /></Card> },
  ];
  return (
    <>
      <Title name={place.name} above={above} beside={<Badge tone={state.tone}>{state.text}</Badge>} actions={<Button kind="danger" onClick={() => setAsking(true)}>Delete</Button>}>
        {place.name}
      </Title>
      {problem && <div class="notice bad" role="alert"><p>{problem}</p></div>}
      <Tabs label={`Parts of ${place.name}`} base={`/ui/${kind.id}/${place.namespace}/${place.name}`} chosen={place.tab} tabs={tabs} />
      <Confirm open={asking} title={`Delete ${kind.kind} ${place.name}?`} action="Delete" onYes={() => void remove()} onNo={() => setAsking(false)}>
        <p>Everything that was made for it goes with it. This cannot be undone.</p>
      </Confirm>
    </>
  );
}
