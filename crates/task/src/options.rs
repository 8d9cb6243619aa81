//! What the controllers have to be told about the place they run in. They never look for it themselves.

use std::time::Duration;

/// The class of gateways that AgentCube serves itself: no Envoy, no policies.
pub const BUILT_IN_CLASS: &str = "agentcube";

/// The settings of the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Class of the TaskGateways that name none.
    pub gateway_class: String,
    /// How gateways of all other classes than [`BUILT_IN_CLASS`] are set up; none where there is no Envoy Gateway.
    pub envoy: Option<Envoy>,
    /// How often everything is compared with what the server really has, told or not.
    pub full_pass: Duration,
    /// How many Tasks are looked at at once.
    pub concurrency: usize,
    /// The shortest time between two writes of a Task's instance counts.
    pub counts_every: Duration,
    /// How long a Task waits before it looks again for something that is missing and cannot be watched.
    pub missing_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            gateway_class: BUILT_IN_CLASS.into(),
            envoy: None,
            full_pass: Duration::from_secs(600),
            concurrency: 16,
            counts_every: Duration::from_secs(5),
            missing_every: Duration::from_secs(30),
        }
    }
}

/// Where Envoy finds us, and what its Envoy Gateway (1.9 or later) is configured for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envoy {
    /// The routers' external processor.
    pub ext_proc: ServicePort,
    /// What routes name as their back end. It is never reached unless the picked instance is not put in its place;
    /// then it answers 503. It has to have an endpoint, or Envoy Gateway answers 500 itself.
    pub placeholder: ServicePort,
    pub picking: Picking,
    pub rate_limits: RateLimits,
    /// Gateways get an EnvoyProxy of ours, by which Envoy tells the routers of the end of requests. Where their class has
    /// one of its own, which ours would take the place of, that one has to.
    pub access_log: bool,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub namespace: String,
    pub name: String,
    pub port: i32,
}

/// How the picked instance becomes the destination of a request in Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Picking {
    /// By metadata, through a cluster that an EnvoyPatchPolicy adds. Needs `extensionApis.enableEnvoyPatchPolicy` in
    /// the configuration of Envoy Gateway. Without a pick there is no destination.
    #[default]
    PatchPolicy,
    /// By metadata, through a cluster that an extension server of ours adds; nothing is written for it.
    ExtensionServer,
    /// By a header, which is stripped from what clients send, over a Service per Task. Needs nothing, and is weaker: a
    /// pick that Envoy has not heard of yet goes to another instance.
    Header,
}

/// Who counts requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateLimits {
    /// Envoy Gateway's rate limit service: limits hold over all proxies, and over all Tasks of a gateway.
    #[default]
    Service,
    /// Each proxy by itself. A limit over all Tasks of a gateway is not possible.
    PerProxy,
}

/// What implements a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    BuiltIn,
    Envoy,
}

impl Implementation {
    pub(crate) fn of(class: &str) -> Implementation {
        if class == BUILT_IN_CLASS { Implementation::BuiltIn } else { Implementation::Envoy }
    }
}
