//! What this machine can do for us, and what it lacks.

pub(crate) const NO_USER_NAMESPACES: &str = "this machine does not let ordinary users make user namespaces: run as \
    root, or allow it with `sysctl kernel.unprivileged_userns_clone=1` (Debian), \
    `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or `sysctl user.max_user_namespaces=10000`";
