//! The sessions that a router knows, as a page of JSON for operators: `/debug/sessions`.

use agentcube_instance::reserve::Reserver;
use agentcube_instance::reserve::known::{Known, Place, Query, State};
use serde_json::{Value, json};

use super::Hiding;
use crate::extract;

/// How many are shown when nobody says how many, and at most.
const USUAL: usize = 100;
const MOST: usize = 1000;

/// What is asked for by `namespace`, `task`, `limit` and `continue`; or what is wrong with that.
pub fn page(reserver: &Reserver, hiding: &Hiding, query: Option<&str>) -> Result<Value, String> {
    let page = reserver.known(&read(query.unwrap_or_default())?);
    let sessions: Vec<Value> = page.sessions.iter().map(|known| shown(known, hiding)).collect();
    let mut answer = json!({ "sessions": sessions });
    if let Some(next) = page.next {
        answer["continue"] = json!(next.to_string());
    }
    Ok(answer)
}

fn read(query: &str) -> Result<Query, String> {
    let names = ["namespace", "task", "limit", "continue"];
    let given = query.split('&').filter(|pair| !pair.is_empty());
    if let Some(other) =
        given.map(|pair| pair.split('=').next().unwrap_or_default()).find(|name| !names.contains(name))
    {
        let other: String = other.chars().take(64).collect();
        return Err(format!("there is no parameter {other:?}; those that there are: {}", names.join(", ")));
    }
    let parameter = |name: &str| {
        let found = extract::parameter(query, name);
        let text = found.ok_or_else(|| format!("{name} is given twice, or its encoding is broken"))?;
        Ok::<_, String>(text.filter(|text| !text.is_empty()).map(|text| text.into_owned()))
    };
    let limit = match parameter("limit")? {
        None => USUAL,
        Some(text) => match text.parse() {
            Ok(limit @ 1..=MOST) => limit,
            _ => return Err(format!("limit has to be a number from 1 to {MOST}")),
        },
    };
    let after = parameter("continue")?
        .map(|text| Place::parse(&text).ok_or("continue has to be what the page before has given"));
    Ok(Query {
        namespace: parameter("namespace")?,
        task: parameter("task")?,
        after: after.transpose()?,
        limit,
    })
}

fn shown(known: &Known, hiding: &Hiding) -> Value {
    let state = match known.state {
        State::Waiting => "waiting",
        State::Bound => "bound",
        State::Paused => "paused",
        State::Releasing => "releasing",
        State::Ending => "ending",
    };
    let idle = (known.in_flight == 0).then(|| format!("{:.3}", known.last_active));
    json!({
        "namespace": &*known.task.namespace,
        "task": &*known.task.name,
        "session": hiding.session(&known.task.uid, &known.key),
        "state": state,
        "instance": known.instance.as_ref().map(|instance| &*instance.name),
        "inFlight": known.in_flight,
        "idleSince": idle,
        "lastReserve": known.path.map(|path| path.as_str()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_asked_for() {
        let query = read("namespace=prod&task=a%2Db&limit=7").unwrap();
        assert_eq!((query.namespace.as_deref(), query.task.as_deref()), (Some("prod"), Some("a-b")));
        assert_eq!((query.limit, query.after), (7, None));
        assert_eq!(read("").unwrap().limit, USUAL);
        let place = format!("prod/session-{}", "0a".repeat(20));
        assert_eq!(read(&format!("continue={place}")).unwrap().after.unwrap().to_string(), place);
        for bad in
            ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "continue=x", "other=1", "task=%zz"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
