//! The list of all cases and what a case is.

use std::future::Future;
use std::pin::Pin;

use crate::stage::Stage;

pub(crate) type Result = anyhow::Result<()>;
type Running<'a> = Pin<Box<dyn Future<Output = Result> + Send + 'a>>;

/// A named script of a user and a kubelet.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub area: &'static str,
    pub name: &'static str,
    pub run: for<'a> fn(&'a mut Stage) -> Running<'a>,
}

impl Case {
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.area, self.name)
    }
}

/// Lists async functions as the cases of an area.
macro_rules! cases {
    ($area:literal: $($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::cases::Case> {
            vec![$($crate::cases::Case { area: $area, name: stringify!($name), run: |stage| Box::pin($name(stage)) }),+]
        }
    };
}
pub(crate) use cases;

pub(crate) fn all() -> Vec<Case> {
    [crate::cases_deployment::cases(), crate::cases_replicaset::cases(), crate::cases_services::cases()]
        .concat()
}
