//! The definitions that are built in are those of deploy/crds. `AGENTCUBE_RECORD=1` writes them anew, as for sessions.

use std::path::Path;

#[test]
fn every_generated_definition_is_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(root.join("../../deploy/crds")).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let line = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let definition: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        format!("{definition}\n")
    };
    let current: String = files.iter().map(|path| line(path)).collect();
    let path = root.join("src/up/definitions.jsonl");
    if std::env::var_os("AGENTCUBE_RECORD").is_some() {
        std::fs::write(path, current).unwrap();
    } else {
        let built_in = std::fs::read_to_string(path).unwrap();
        assert!(built_in == current, "the built-in definitions are old: run `cargo xtask gen`");
    }
}
