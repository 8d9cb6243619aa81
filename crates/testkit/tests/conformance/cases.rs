//! The list of all cases and what a case is.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};

use agentcube_testkit::Tape;

pub(crate) type Result = anyhow::Result<()>;
type Running<'a> = Pin<Box<dyn Future<Output = Result> + Send + 'a>>;

/// A named sequence of requests.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub area: &'static str,
    pub name: &'static str,
    pub run: for<'a> fn(&'a mut Tape) -> Running<'a>,
}

impl Case {
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.area, self.name)
    }

    /// A namespace that no other case uses: always of one length, so that columns line up alike.
    pub(crate) fn namespace(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("c{:05x}{:04x}", std::process::id() & 0xf_ffff, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Lists async functions as the cases of an area.
macro_rules! cases {
    ($area:literal: $($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::cases::Case> {
            vec![$($crate::cases::Case { area: $area, name: stringify!($name), run: |tape| Box::pin($name(tape)) }),+]
        }
    };
}
pub(crate) use cases;

pub(crate) fn all() -> Vec<Case> {
    [
        crate::apply::cases(),
        crate::builtin::cases(),
        crate::crd::cases(),
        crate::create::cases(),
        crate::delete::cases(),
        crate::lifecycle::cases(),
        crate::malformed::cases(),
        crate::patch::cases(),
        crate::read::cases(),
        crate::representation::cases(),
        crate::subresource::cases(),
        crate::update::cases(),
        crate::validation::cases(),
        crate::watch::cases(),
    ]
    .concat()
}
