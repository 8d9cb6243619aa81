//! The default filter of system calls in the form of OCI runtimes: the same list as the built-in runtime's.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::seccomp::{Argument, refused_arguments, refused_names};
use crate::spec::Capability;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// The kernel looks at 32 bits of these arguments; a filter sees 64.
const LOW: u64 = 0xffff_ffff;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seccomp {
    default_action: &'static str,
    architectures: [&'static str; 1],
    syscalls: Vec<Rule>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<&'static str>,
    action: &'static str,
    errno_ret: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<Test>,
}

/// Holds when the argument, as far as `value` masks it, is `valueTwo`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Test {
    index: u32,
    value: u64,
    value_two: u64,
    op: &'static str,
}

impl Seccomp {
    pub(super) fn new(capabilities: &BTreeSet<Capability>) -> Self {
        let mut syscalls = vec![
            Rule::new(refused_names(capabilities), libc::EPERM, Vec::new()),
            Rule::new(vec!["clone3"], libc::ENOSYS, Vec::new()),
        ];
        for refused in refused_arguments(capabilities) {
            let tests: Vec<(u64, u64)> = match refused.argument {
                Argument::Bits(bits) => {
                    let each = (0..32).map(|bit| 1 << bit).filter(|bit| u64::from(bits) & bit != 0);
                    each.map(|bit| (bit, bit)).collect()
                }
                Argument::Values(values) => values.iter().map(|&value| (LOW, u64::from(value))).collect(),
            };
            // One rule each: the tests of a rule must hold together.
            syscalls.extend(tests.into_iter().map(|(value, value_two)| {
                let test = Test { index: refused.index, value, value_two, op: "SCMP_CMP_MASKED_EQ" };
                Rule::new(vec![refused.name], libc::EPERM, vec![test])
            }));
        }
        Self { default_action: "SCMP_ACT_ALLOW", architectures: [ARCHITECTURE], syscalls }
    }
}

impl Rule {
    fn new(names: Vec<&'static str>, errno_ret: i32, args: Vec<Test>) -> Self {
        Self { names, action: "SCMP_ACT_ERRNO", errno_ret, args }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::{SYS_ADMIN, default_set};

    #[test]
    fn refuses_by_name_and_by_argument() {
        let rules = |capabilities: &BTreeSet<_>| serde_json::to_value(Seccomp::new(capabilities)).unwrap();
        let default = rules(&default_set());
        let text = default.to_string();
        for name in ["\"mount\"", "\"bpf\"", "\"io_uring_setup\"", "\"ptrace\""] {
            assert!(text.contains(name), "{name}");
        }
        let of = |rules: &serde_json::Value, name: &str| {
            let all = rules["syscalls"].as_array().unwrap().clone();
            all.into_iter().filter(|rule| rule["names"] == serde_json::json!([name])).collect::<Vec<_>>()
        };
        assert_eq!(of(&default, "clone").len(), 7);
        assert_eq!(of(&default, "unshare").len(), 8);
        assert_eq!(
            of(&default, "socket")[0]["args"],
            serde_json::json!([{"index": 0, "value": LOW, "valueTwo": libc::AF_VSOCK, "op": "SCMP_CMP_MASKED_EQ"}])
        );
        let admin = rules(&BTreeSet::from([SYS_ADMIN]));
        assert!(of(&admin, "clone").is_empty() && !admin.to_string().contains("\"mount\""));
    }
}
