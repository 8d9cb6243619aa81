//! Agents in memory: they know the world, and may be told to fail.

use std::sync::Arc;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection,
};
use agentcube_api::middleware::parts::Scenario;
use agentcube_middleware::agents::{Agents, Answer, Place};
use agentcube_middleware::group::observe::Role;
use agentcube_middleware::order::Order;

use super::fuse::Fuse;
use super::workloads::World;

pub(crate) struct Fakes {
    pub(crate) world: Arc<World>,
    pub(crate) fuse: Fuse,
}

impl Agents for Fakes {
    fn group_order<'a>(
        &'a self,
        _: &'a Place,
        _: &'a str,
        _: Scenario,
        groups: &'a [String],
    ) -> Answer<'a, Order> {
        Box::pin(async { Ok(Order { names: groups.to_vec(), concurrent: false }) })
    }

    fn pod_order<'a>(
        &'a self,
        _: &'a Place,
        _: &'a str,
        _: Scenario,
        pods: &'a [String],
    ) -> Answer<'a, Order> {
        let names = pods.iter().rev().cloned().collect();
        Box::pin(async { Ok(Order { names, concurrent: false }) })
    }

    fn role<'a>(&'a self, place: &'a Place, _: &'a RoleDetection) -> Answer<'a, Role> {
        let leader = self.world.leader() == Some(place.pod.clone());
        let silent = self.world.is_stopped(&place.uid);
        Box::pin(async move {
            if silent {
                return Err("it does not run".into());
            }
            let name = if leader { "master" } else { "slave" }.into();
            Ok(Role { name, leader, ..Role::default() })
        })
    }

    fn failover<'a>(
        &'a self,
        place: &'a Place,
        _: Option<&'a ActiveHighAvailability>,
        _: Option<&'a str>,
    ) -> Answer<'a, ()> {
        Box::pin(self.fuse.effect(async {
            self.world.lead(&place.pod);
            Ok(())
        }))
    }

    fn tell<'a>(&'a self, _: &'a Place, _: &'a str, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn reload<'a>(&'a self, place: &'a Place, _: &'a [(String, String)]) -> Answer<'a, bool> {
        Box::pin(self.fuse.effect(async {
            self.world.note("reload");
            match self.world.is_stopped(&place.uid) {
                true => Err("it does not run".into()),
                false => Ok(self.world.has_to_restart(&place.uid)),
            }
        }))
    }

    fn check<'a>(&'a self, _: &'a Place, _: &'a PreUpgradeCheck) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn verify<'a>(&'a self, _: &'a Place, _: &'a PostUpgradeVerify) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn stop<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(self.fuse.effect(async {
            self.world.note("stop");
            self.world.stop(&place.uid);
            Ok(())
        }))
    }
}
