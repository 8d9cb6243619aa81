//! What controllers ask of the agents in Pods. The contract is behind a trait: there is one for gRPC, and one for tests.

use std::time::Duration;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection,
};
use agentcube_api::middleware::parts::Scenario;
use futures_util::future::BoxFuture;

use crate::group::observe::Role;
use crate::order::Order;

/// A Pod with an agent in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    /// Its address, once it has one.
    pub address: Option<String>,
    /// What its agent wants to see.
    pub token: Option<Token>,
}

/// What agents of an App want to see. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn new(token: String) -> Token {
        Token(token)
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// An answer, or why there is none, in words.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, String>>;

/// The agents in Pods. Everything may be asked twice.
pub trait Agents: Send + Sync + 'static {
    /// The order of the groups of a component.
    fn group_order<'a>(
        &'a self,
        place: &'a Place,
        component: &'a str,
        scenario: Scenario,
        groups: &'a [String],
    ) -> Answer<'a, Order>;

    /// The order of the Pods of a group.
    fn pod_order<'a>(
        &'a self,
        place: &'a Place,
        group: &'a str,
        scenario: Scenario,
        pods: &'a [String],
    ) -> Answer<'a, Order>;

    fn role<'a>(&'a self, place: &'a Place, detection: &'a RoleDetection) -> Answer<'a, Role>;

    /// Makes this Pod the leader: in order, if there is the address of one that leads.
    fn failover<'a>(
        &'a self,
        place: &'a Place,
        how: Option<&'a ActiveHighAvailability>,
        leader: Option<&'a str>,
    ) -> Answer<'a, ()>;

    /// Has this Pod run a command of the plugin, which may name the leader by its address.
    fn tell<'a>(&'a self, place: &'a Place, command: &'a str, leader: &'a str) -> Answer<'a, ()>;

    /// Has the middleware take its configuration, when these files have arrived; whether it has to be restarted for that.
    fn reload<'a>(&'a self, place: &'a Place, files: &'a [(String, String)]) -> Answer<'a, bool>;

    /// The check before an upgrade.
    fn check<'a>(&'a self, place: &'a Place, check: &'a PreUpgradeCheck) -> Answer<'a, ()>;

    /// The verification after an upgrade.
    fn verify<'a>(&'a self, place: &'a Place, verify: &'a PostUpgradeVerify) -> Answer<'a, ()>;

    /// Stops the middleware in order, before its Pod is deleted.
    fn stop<'a>(&'a self, place: &'a Place) -> Answer<'a, ()>;
}

/// For where there are no agents: everything is unknown, and so everything goes one after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAgents;

fn none<'a, T: Send + 'a>() -> Answer<'a, T> {
    Box::pin(std::future::ready(Err("there is no agent".into())))
}

impl Agents for NoAgents {
    fn group_order<'a>(
        &'a self,
        _: &'a Place,
        _: &'a str,
        _: Scenario,
        _: &'a [String],
    ) -> Answer<'a, Order> {
        none()
    }

    fn pod_order<'a>(&'a self, _: &'a Place, _: &'a str, _: Scenario, _: &'a [String]) -> Answer<'a, Order> {
        none()
    }

    fn role<'a>(&'a self, _: &'a Place, _: &'a RoleDetection) -> Answer<'a, Role> {
        none()
    }

    fn failover<'a>(
        &'a self,
        _: &'a Place,
        _: Option<&'a ActiveHighAvailability>,
        _: Option<&'a str>,
    ) -> Answer<'a, ()> {
        none()
    }

    fn tell<'a>(&'a self, _: &'a Place, _: &'a str, _: &'a str) -> Answer<'a, ()> {
        none()
    }

    fn reload<'a>(&'a self, _: &'a Place, _: &'a [(String, String)]) -> Answer<'a, bool> {
        none()
    }

    fn check<'a>(&'a self, _: &'a Place, _: &'a PreUpgradeCheck) -> Answer<'a, ()> {
        none()
    }

    fn verify<'a>(&'a self, _: &'a Place, _: &'a PostUpgradeVerify) -> Answer<'a, ()> {
        none()
    }

    fn stop<'a>(&'a self, _: &'a Place) -> Answer<'a, ()> {
        none()
    }
}

/// Waits for an answer, but not for ever.
pub(crate) async fn within<T>(limit: Duration, answer: Answer<'_, T>) -> Result<T, String> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {}", agentcube_api::GoDuration::from(limit))),
    }
}
