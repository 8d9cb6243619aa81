import { useState } from "preact/hooks";
import { send, Refusal } from "../api";
import { LEASE, pathOf } from "../kinds";
import { session, toneOf, type Session } from "../objects";
import { Link } from "../router";
import { useLeases } from "../scope";
import { Age, Badge, Button, Card, Confirm, Table, Title, Trouble } from "../ui/parts";

export function SessionTable(props: { sessions: Session[]; withTask?: boolean }) {
  const [ending, setEnding] = useState<Session | null>(null);
  const [problem, setProblem] = useState("");
  const end = async () => {
    const one = ending;
    setEnding(null);
    if (!one) return;
    try {
      await send("DELETE", pathOf(LEASE, one.namespace, one.lease));
      setProblem("");
    } catch (error) {
      setProblem(error instanceof Refusal ? error.message : String(error));
    }
  };
  return (
    <>
      {problem && <div class="notice bad" role="alert"><p>{problem}</p></div>}
      <Table
        label="Sessions"
        rows={props.sessions}
        id={(one) => `${one.namespace}/${one.lease}`}
        empty="No session is open. The first request of a session opens it."
        columns={[
          { title: "Session", cell: (one) => <span class="name">{one.key}</span>, key: (one) => one.key },
          ...(props.withTask
            ? [{ title: "Task", cell: (one: Session) => <Link to={`/ui/tasks/${one.namespace}/${one.task}`}>{one.namespace}/{one.task}</Link>, key: (one: Session) => `${one.namespace}/${one.task}` }]
            : []),
          { title: "State", cell: (one) => <Badge tone={toneOf(one.state)}>{one.state}</Badge>, key: (one) => one.state },
          {
            title: "Instance",
            cell: (one) => one.instance ? <Link to={`/ui/${one.onPool ? "sandboxes" : "pods"}/${one.namespace}/${one.instance}`}>{one.instance}</Link> : <span class="dim">waiting</span>,
            key: (one) => one.instance,
          },
          { title: "Last active", cell: (one) => <Age at={one.active} />, key: (one) => -Date.parse(one.active) },
          { title: "Age", cell: (one) => <Age at={one.created} />, key: (one) => -Date.parse(one.created) },
          { title: "", cell: (one) => <Button onClick={() => setEnding(one)} label={`End session ${one.key}`} disabled={one.state === "ending"}>End</Button> },
        ]}
      />
      <Confirm open={ending !== null} title={`End session ${ending?.key ?? ""}?`} action="End session" onYes={() => void end()} onNo={() => setEnding(null)}>
        <p>Its instance is given back. Requests that are under way are cut off; the next request of the session starts afresh.</p>
      </Confirm>
    </>
  );
}

export function Sessions() {
  const leases = useLeases();
  const sessions = leases.all().flatMap((lease) => session(lease) ?? []);
  return (
    <>
      <Title name="Sessions">Sessions</Title>
      <Trouble of={[leases]} />
      <Card><SessionTable sessions={sessions} withTask /></Card>
    </>
  );
}
