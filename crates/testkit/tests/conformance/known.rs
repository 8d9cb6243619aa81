//! The known differences between the embedded server and the real one. They are rendered into
//! `docs/CONFORMANCE.md`; one that no longer occurs fails the suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::cases::Case;

/// A place in a transcript that may differ on the embedded server.
pub(crate) struct Known {
    pub(crate) case: &'static str,
    /// JSON pointer into the transcript; everything below it may differ.
    pub(crate) pointer: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Known] = &[
    Known {
        case: "apply/bad_body",
        pointer: "/1/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "apply/bad_body",
        pointer: "/4/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/bad_yaml",
        pointer: "/0/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/bad_yaml",
        pointer: "/2/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/bad_yaml",
        pointer: "/3/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/bad_yaml",
        pointer: "/4/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/deep_yaml",
        pointer: "/0/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/deep_patch",
        pointer: "/1/reply/message",
        reason: "the YAML reader says in other words what is wrong, and where",
    },
    Known {
        case: "malformed/yaml_anchors",
        pointer: "/0/reply",
        reason: "keys are read by YAML 1.2, in which `y` is a word; the real server reads them by 1.1, in which it is true",
    },
    Known {
        case: "malformed/deep_json",
        pointer: "/0/reply/message",
        reason: "values nested deeper than 128 are refused while they are read; the real server reads 10,000 levels and then refuses the type",
    },
    Known {
        case: "malformed/numbers",
        pointer: "/3/reply/message",
        reason: "a number too large for a double is refused while the body is read, not when it is decoded",
    },
    Known {
        case: "malformed/double_slash",
        pointer: "/3/reply/resources",
        reason: "the embedded server has the built-in kinds that this project needs, not all of them",
    },
    Known {
        case: "malformed/bad_encoding",
        pointer: "/1/reply/message",
        reason: "bytes that are not UTF-8 are shown as U+FFFD, not as escapes",
    },
    Known {
        case: "patch/json_immutable_field",
        pointer: "/1/reply",
        reason: "a patch that changes the kind is refused for that; the real server first decodes the object as the other kind, and says what fails there",
    },
    Known {
        case: "patch/name_in_patch",
        pointer: "/2/reply",
        reason: "a patch that changes the kind is refused for that; the real server first decodes the object as the other kind, and says what fails there",
    },
    Known {
        case: "representation/yaml_answer",
        pointer: "/0/answered",
        reason: "clients that ask for YAML get JSON, which is YAML too; kubectl writes its YAML itself",
    },
    Known {
        case: "representation/yaml_answer",
        pointer: "/0/reply",
        reason: "clients that ask for YAML get JSON, which is YAML too; kubectl writes its YAML itself",
    },
    Known {
        case: "builtin/pod_affinity",
        pointer: "/0/answered",
        reason: "advice about Pods that is neither an error nor a deprecation is not given in Warning headers",
    },
];

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFORMANCE.md")
}

/// The text of `docs/CONFORMANCE.md`.
fn render(cases: &[Case]) -> String {
    let mut areas: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        *areas.entry(case.area).or_default() += 1;
    }
    let mut text = String::from(include_str!("conformance.md"));
    text.push_str("\n## Cases\n\n| area | cases |\n|---|---|\n");
    for (area, count) in areas {
        text.push_str(&format!("| {area} | {count} |\n"));
    }
    text.push_str(&format!("| all | {} |\n\n## Known differences\n\n", cases.len()));
    if DIFFERENCES.is_empty() {
        text.push_str("None.\n");
    } else {
        text.push_str("| case | where | reason |\n|---|---|---|\n");
    }
    for known in DIFFERENCES {
        text.push_str(&format!("| {} | `{}` | {} |\n", known.case, known.pointer, known.reason));
    }
    text.push_str(include_str!("beyond.md"));
    text
}

/// Writes the document.
pub(crate) fn write_document(cases: &[Case]) -> Result<()> {
    agentcube_testkit::golden::write_text(&document(), &render(cases))
}

/// Whether the document says what the suite does.
pub(crate) fn check_document(cases: &[Case]) -> Result<()> {
    let committed = std::fs::read_to_string(document()).unwrap_or_default();
    ensure!(committed == render(cases), "docs/CONFORMANCE.md is out of date: run `cargo xtask gen`");
    Ok(())
}
