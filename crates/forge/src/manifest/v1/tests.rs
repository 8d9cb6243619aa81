//! What specs become, and what is refused.

use serde_json::{Value, json};

use super::*;

fn spec_of(text: &str) -> Value {
    let object: Value = serde_json::from_str(text).unwrap();
    object["spec"].clone()
}

fn table() -> Value {
    json!({
        "displayName": "Agent tasks",
        "integration": { "type": "crd", "crd": {
            "names": { "kind": "Task", "plural": "tasks" }, "group": "agentcube.io", "version": "v1alpha1", "scope": "Namespaced" } },
        "routing": { "path": "agents/tasks" },
        "columns": [{ "key": "name", "title": "Name", "enableSorting": true, "render": { "type": "text", "path": "metadata.name" } }],
        "menu": { "name": "Tasks", "placements": ["global", "cluster"] },
    })
}

#[test]
fn a_table_becomes_a_page_with_its_route_and_menus() {
    let manifest = render("tasks", &table()).unwrap();
    let expected = json!({
        "version": "v1", "name": "tasks", "displayName": "Agent tasks",
        "routes": [{ "path": "agents/tasks", "pageId": "main" }],
        "menus": [
            { "parent": "global", "name": "agents/tasks", "title": "menu", "order": 0 },
            { "parent": "cluster", "name": "agents/tasks", "title": "menu", "order": 0 },
        ],
        "locales": [
            { "lang": "en", "messages": { "displayName": "Agent tasks", "menu": "Tasks" } },
            { "lang": "zh", "messages": { "displayName": "Agent tasks", "menu": "Tasks" } },
        ],
        "pages": [{ "id": "main", "entryComponent": "CrdTable", "props": {
            "resource": { "group": "agentcube.io", "version": "v1alpha1", "plural": "tasks", "kind": "Task", "scope": "Namespaced" },
            "columns": table()["columns"],
        } }],
    });
    assert_eq!(manifest, expected);
    let read: Manifest = serde_json::from_value(manifest).unwrap();
    assert_eq!(judge(&read), Ok(()));
}

#[test]
fn several_pages_and_menus_with_children() {
    let spec = spec_of(&json!({ "spec": {
        "pages": [
            { "key": "list", "type": "crdTable", "crdTable": { "names": { "kind": "Sandbox", "plural": "sandboxes" },
                "group": "sandbox.fast.io", "version": "v1alpha1", "columns": table()["columns"] } },
            { "key": "guide", "path": "sandboxes/guide", "type": "iframe", "iframe": { "src": "/docs/sandboxes" } },
        ],
        "menus": [{ "name": "Sandboxes", "icon": "cube", "order": 10, "placements": ["workspace"], "children": [
            { "name": "Guide", "page": "guide", "order": 2 }, { "name": "All", "page": "list" }] }],
    } }).to_string());
    let manifest: Manifest = serde_json::from_value(render("sandboxes", &spec).unwrap()).unwrap();
    assert_eq!(manifest.display_name, "sandboxes");
    let routes: Vec<&str> = manifest.routes.iter().map(|route| route.path.as_str()).collect();
    assert_eq!(routes, ["list", "sandboxes/guide"]);
    let menus: Vec<(&str, &str, Option<&str>, i32)> = manifest
        .menus
        .iter()
        .map(|menu| {
            (
                menu.name.as_str(),
                manifest.locales[0].messages[&menu.title].as_str(),
                menu.icon.as_deref(),
                menu.order,
            )
        })
        .collect();
    assert_eq!(
        menus,
        [
            ("list", "Sandboxes / All", Some("cube"), 10),
            ("sandboxes/guide", "Sandboxes / Guide", Some("cube"), 10)
        ]
    );
    assert_eq!(manifest.pages[1].shows, Shows::Iframe(Frame { src: "/docs/sandboxes".into() }));
}

#[test]
fn what_cannot_be_built_is_said_with_its_place() {
    let with = |pointer: &str, value: Value| {
        let mut spec = table();
        *spec.pointer_mut(pointer).unwrap() = value;
        render("tasks", &spec).unwrap_err().to_string()
    };
    for (pointer, value, told) in [
        ("/routing/path", json!("../../etc"), "routes[../../etc]"),
        ("/routing/path", json!("a//b"), "routes[a//b]"),
        ("/columns", json!([]), "needs columns"),
        ("/integration/crd/group", json!("../x"), "names"),
        ("/integration", json!({ "type": "iframe", "iframe": { "src": "javascript:alert(1)" } }), "https://"),
        ("/integration", json!({ "type": "iframe", "iframe": { "src": "https://a/\"onload=" } }), "https://"),
        ("/integration", json!({ "type": "crd" }), "integration"),
        ("/integration", json!(7), "cannot be read"),
    ] {
        let error = with(pointer, value);
        assert!(error.contains(told), "{pointer}: {error}");
    }
    let menus = |menus: Value| {
        let mut spec = table();
        spec["menus"] = menus;
        render("tasks", &spec).unwrap_err().to_string()
    };
    assert!(menus(json!([{ "name": "A" }])).contains("menus[0]: it leads to no page"));
    assert!(menus(json!([{ "name": "A", "page": "none" }])).contains("there is no page \"none\""));
}
