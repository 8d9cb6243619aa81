import { useState } from "preact/hooks";
import { EVENT, pageOf } from "../kinds";
import { happening, type Happening } from "../objects";
import { Link } from "../router";
import { useKind, useKindIn } from "../scope";
import { Age, Badge, Card, Table, Title, Trouble } from "../ui/parts";

export function EventList(props: { events: Happening[]; withObject?: boolean }) {
  return (
    <Table
      label="Events"
      rows={props.events}
      id={(event) => event.uid}
      empty="No events. They are kept for an hour."
      columns={[
        { title: "Last seen", cell: (event) => <Age at={event.at} />, key: (event) => -Date.parse(event.at) },
        { title: "Type", cell: (event) => <Badge tone={event.type === "Warning" ? "bad" : "quiet"}>{event.type}</Badge>, key: (event) => event.type },
        { title: "Reason", cell: (event) => event.reason, key: (event) => event.reason },
        ...(props.withObject
          ? [{
              title: "Object",
              cell: (event: Happening) => {
                const page = pageOf(event.name, event.namespace, event.kind);
                const text = `${event.kind} ${event.namespace ? `${event.namespace}/` : ""}${event.name}`;
                return page ? <Link to={page}>{text}</Link> : text;
              },
              key: (event: Happening) => `${event.kind} ${event.namespace}/${event.name}`,
            }]
          : []),
        { title: "Message", cell: (event) => <span class="message">{event.message}{event.count > 1 && <span class="dim"> ×{event.count}</span>}</span>, key: (event) => event.message },
      ]}
    />
  );
}

const latestFirst = (a: Happening, b: Happening) => Date.parse(b.at) - Date.parse(a.at);

export function Events() {
  const events = useKind(EVENT);
  const [only, setOnly] = useState("");
  const shown = events.all().map(happening)
    .filter((event) => !only || event.type === only)
    .sort(latestFirst);
  return (
    <>
      <Title name="Events">Events</Title>
      <Trouble of={[events]} />
      <div class="filters">
        <select aria-label="Type of events" value={only} onChange={(event) => setOnly(event.currentTarget.value)}>
          <option value="">All types</option>
          <option value="Warning">Warnings</option>
          <option value="Normal">Normal</option>
        </select>
      </div>
      <Card><EventList events={shown} withObject /></Card>
    </>
  );
}

/** Events about one object. */
export function EventsOf(props: { namespace: string; kind: string; name: string }) {
  const events = useKindIn(EVENT, props.namespace);
  const about = events.all().map(happening).filter((event) => event.kind === props.kind && event.name === props.name);
  return <Card><Trouble of={[events]} /><EventList events={about.sort(latestFirst)} /></Card>;
}
