//! Generated from `proto/` by `cargo xtask gen`, in modules as packages nest.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, rust_2018_idioms)]

pub mod containerd {
    pub mod types {
        include!("containerd.types.rs");
    }

    pub mod v1 {
        pub mod types {
            include!("containerd.v1.types.rs");
        }
    }

    pub mod services {
        pub mod containers {
            pub mod v1 {
                include!("containerd.services.containers.v1.rs");
            }
        }

        pub mod tasks {
            pub mod v1 {
                include!("containerd.services.tasks.v1.rs");
            }
        }

        pub mod snapshots {
            pub mod v1 {
                include!("containerd.services.snapshots.v1.rs");
            }
        }

        pub mod images {
            pub mod v1 {
                include!("containerd.services.images.v1.rs");
            }
        }

        pub mod content {
            pub mod v1 {
                include!("containerd.services.content.v1.rs");
            }
        }

        pub mod diff {
            pub mod v1 {
                include!("containerd.services.diff.v1.rs");
            }
        }

        pub mod leases {
            pub mod v1 {
                include!("containerd.services.leases.v1.rs");
            }
        }

        pub mod introspection {
            pub mod v1 {
                include!("containerd.services.introspection.v1.rs");
            }
        }

        pub mod namespaces {
            pub mod v1 {
                include!("containerd.services.namespaces.v1.rs");
            }
        }
    }
}

pub mod io {
    pub mod containerd {
        pub mod cgroups {
            pub mod v1 {
                include!("io.containerd.cgroups.v1.rs");
            }

            pub mod v2 {
                include!("io.containerd.cgroups.v2.rs");
            }
        }
    }
}
