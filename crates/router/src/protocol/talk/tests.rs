//! Exchanges with somebody in the place of whoever gives instances, who remembers names.

use std::collections::HashMap;
use std::sync::Arc;

use agentcube_api::agentcube::task::InstanceStatistics;
use agentcube_instance::provider::Request;
use agentcube_instance::token::Token;
use agentcube_instance::{Endpoint, SpecId, TaskId};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::decide::{self, Asked, At};
use crate::owner::{self, Subject};
use crate::route::Route;

/// Remembers names, of the session that was reserved last.
#[derive(Default)]
struct Names {
    known: Mutex<HashMap<Alias, SessionKey>>,
    last: Mutex<Option<SessionKey>>,
}

impl InstanceProvider for Names {
    fn reserve_instance(&self, request: Request) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        *self.last.lock() = request.key;
        Box::pin(std::future::ready(Ok(Reserved {
            instance: InstanceId::pod("tools-0", "p1"),
            endpoint: Endpoint { host: [10, 0, 0, 1].into(), port: 8080 },
            token: Token::random(),
            path: Path::Reused,
            in_use: InUse::detached(),
        })))
    }

    fn instance_statistics(&self, _: &TaskId, _: &SpecId) -> InstanceStatistics {
        InstanceStatistics::default()
    }

    fn resolve<'a>(
        &'a self,
        _: &'a TaskId,
        alias: &'a Alias,
        _: Option<&'a SessionKey>,
    ) -> BoxFuture<'a, Result<Option<Named>, ReserveError>> {
        let key = self.known.lock().get(alias).cloned();
        Box::pin(std::future::ready(Ok(key.map(|key| Named { key, lease: "l1".into(), binding: None }))))
    }

    fn name_session<'a>(&'a self, _: &'a InUse, names: Vec<Alias>) -> BoxFuture<'a, Result<(), NameError>> {
        let (mut known, last) = (self.known.lock(), self.last.lock());
        let key = last.clone().unwrap();
        let taken = names.iter().any(|name| known.get(name).is_some_and(|other| *other != key));
        if !taken {
            known.extend(names.into_iter().map(|name| (name, key.clone())));
        }
        let outcome = if taken { Err(NameError::Taken("alias-1".into())) } else { Ok(()) };
        Box::pin(std::future::ready(outcome))
    }
}

fn route(routing: Value) -> Arc<Route> {
    let mut task = json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
        "metadata": { "name": "tools", "namespace": "prod", "uid": "t1" },
        "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
    });
    task["spec"]["routing"]["routePolicy"] = json!("BySession");
    Arc::new(Route::read(&serde_json::from_value(task).unwrap()).unwrap())
}

fn of(name: &str) -> Subject {
    Subject { issuer: "issuer".into(), name: name.into() }
}

/// What somebody asks for, with these headers.
fn plan(route: &Arc<Route>, subject: Option<&str>, headers: &[(&'static str, &str)]) -> Plan {
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let at = At::Port(80);
    let asked =
        Asked { at, method: &Method::POST, host: Some("a"), path: "/", query: None, headers: &headers };
    let mut plan = decide::plan_on(route.clone(), &asked).unwrap();
    plan.own(subject.map(of).as_ref()).unwrap();
    plan
}

fn settled(names: &Names, plan: &mut Plan) -> Result<Talk, Refusal> {
    settle(names, plan, &Found::default()).now_or_never().unwrap()
}

fn reserved(names: &Names, plan: &mut Plan, talk: &mut Talk) -> Result<(), u16> {
    let outcome = reserve(names, plan, talk).now_or_never().unwrap();
    outcome.map(drop).map_err(|refusal| refusal.status.as_u16())
}

fn asks(names: &Names, mut plan: Plan) -> Result<(), u16> {
    let mut talk = settled(names, &mut plan).map_err(|refusal| refusal.status.as_u16())?;
    reserved(names, &mut plan, &mut talk)
}

#[test]
fn the_key_of_a_subject_can_be_written_by_nobody_else() {
    let route = route(json!({ "protocol": "A2A" }));
    let of_nobody = plan(&route, None, &[]);
    assert_eq!(key(&of_nobody, "context", "c1").unwrap().as_str(), "context:c1");
    let adas = key(&plan(&route, Some("ada"), &[]), "context", "c1").unwrap();
    assert!(owner::session(None, adas.clone()).is_err());
    assert_ne!(owner::session(Some(&of("bob")), adas.clone()).unwrap(), adas);
    assert_ne!(key(&plan(&route, Some("bob"), &[]), "context", "c1").unwrap(), adas);
}

#[test]
fn the_name_of_a_session_is_one_subjects_alone_where_the_task_says_so() {
    let places = json!({ "extractors": [{ "type": "httpHeader", "name": "x-session" }] });
    for (policy, other) in [("Separate", Ok(())), ("Forbid", Err(403))] {
        let by_header = json!({ "otherSubjects": policy, "sessionIdentifier": places });
        let by_param =
            json!({ "otherSubjects": policy, "protocol": "MCP", "mcp": { "sessionParam": "room" } });
        let modern = ("mcp-protocol-version", "2026-07-28");
        for (routing, name) in [(by_header, "x-session"), (by_param, "mcp-param-room")] {
            let (names, route) = (Names::default(), route(routing));
            let ask = |who, key| asks(&names, plan(&route, who, &[(name, key), modern]));
            assert_eq!((ask(Some("ada"), "s1"), ask(Some("bob"), "s1")), (Ok(()), other), "{name}");
            assert_eq!((ask(Some("ada"), "s1"), ask(Some("bob"), "s2")), (Ok(()), Ok(())), "{name}");
            // Nobody's are apart.
            assert_eq!(ask(None, "s1"), Ok(()), "{name}");
        }
        // Of two who come at once one is told so when it is about to be passed on.
        let (names, route) =
            (Names::default(), route(json!({ "otherSubjects": policy, "sessionIdentifier": places })));
        let mut bobs = plan(&route, Some("bob"), &[("x-session", "s1")]);
        let mut talk = settled(&names, &mut bobs).unwrap();
        assert_eq!(asks(&names, plan(&route, Some("ada"), &[("x-session", "s1")])), Ok(()));
        assert_eq!(reserved(&names, &mut bobs, &mut talk), other);
    }
}

#[test]
fn an_answer_without_ids_goes_on_where_its_session_is_known() {
    let ids = || Learns::Ids { reply: Reply::Rest, context: None };
    for (learns, named, passes) in [(ids(), false, false), (ids(), true, true), (Learns::Task, false, true)] {
        let talk = Talk { learns, named, ..Talk::default() };
        assert_eq!(talk.unread("tools-0").is_ok(), passes, "{talk:?}");
    }
}

#[test]
fn a_session_with_names_enough_goes_on_without_more() {
    let instance = InstanceId::pod("tools-0", "p1");
    for (named, outcome, passes) in [
        (true, NameError::TooMany, true),
        (false, NameError::TooMany, false),
        (true, NameError::SessionGone, false),
    ] {
        let mut talk = Talk { named, ..Talk::default() };
        assert_eq!(talk.named(Err(outcome.clone()), &instance).is_ok(), passes, "{named} {outcome:?}");
    }
}
