//! Generated from `proto/`, in modules as packages nest.
#![allow(missing_docs, unreachable_pub, clippy::all, rust_2018_idioms)]

pub mod agent {
    pub mod v1 {
        include!("agent.v1.rs");
    }
}

pub mod fastpath {
    pub mod v1 {
        include!("fastpath.v1.rs");
    }
}

pub mod middleware {
    pub mod v1 {
        include!("middleware.v1.rs");
    }
}

pub mod sandbox {
    pub mod v1 {
        include!("sandbox.v1.rs");
    }
}
