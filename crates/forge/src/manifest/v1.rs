//! Version 1: pages with a component and its properties, routes to them, menus, and their titles by language.

use std::collections::{BTreeMap, BTreeSet};

use agentcube_api::frontend::FrontendIntegrationSpec;
use agentcube_api::frontend::page::{
    Column, CrdNames, CrdScope, IntegrationType, MenuItem, PageType, Placement,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Error;

/// The languages that titles are given in. A spec has one text for all of them.
const LANGUAGES: [&str; 2] = ["en", "zh"];
/// The page of an integration that has one.
const ONLY: &str = "main";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    pub version: String,
    pub name: String,
    pub display_name: String,
    pub routes: Vec<Route>,
    pub menus: Vec<Menu>,
    pub locales: Vec<Locale>,
    pub pages: Vec<Page>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    pub path: String,
    pub page_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Menu {
    pub parent: Placement,
    /// The path of the route that it opens.
    pub name: String,
    /// A key of the locales.
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icon: Option<String>,
    #[serde(default)]
    pub order: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locale {
    pub lang: String,
    pub messages: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    pub id: String,
    #[serde(flatten)]
    pub shows: Shows,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entryComponent", content = "props")]
pub enum Shows {
    CrdTable(Table),
    Iframe(Frame),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub resource: Resource,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub scope: CrdScope,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    pub src: String,
}

pub fn render(name: &str, spec: &Value) -> Result<Value, Error> {
    let spec: FrontendIntegrationSpec =
        serde_json::from_value(spec.clone()).map_err(|error| Error::Spec(error.to_string()))?;
    let display_name = spec.display_name.clone().unwrap_or_else(|| name.to_owned());
    let mut draft =
        Draft { messages: BTreeMap::new(), routes: Vec::new(), pages: Vec::new(), menus: Vec::new() };
    draft.add_pages(&spec)?;
    draft.add_menus(&spec, &display_name)?;
    draft.messages.insert("displayName".into(), display_name.clone());
    let locales = LANGUAGES.map(|lang| Locale { lang: lang.into(), messages: draft.messages.clone() }).into();
    let manifest = Manifest {
        version: "v1".into(),
        name: name.to_owned(),
        display_name,
        routes: draft.routes,
        menus: draft.menus,
        locales,
        pages: draft.pages,
    };
    judge(&manifest)?;
    Ok(json!(manifest))
}

struct Draft {
    messages: BTreeMap<String, String>,
    routes: Vec<Route>,
    pages: Vec<Page>,
    menus: Vec<Menu>,
}

impl Draft {
    fn add_pages(&mut self, spec: &FrontendIntegrationSpec) -> Result<(), Error> {
        if let Some(integration) = &spec.integration {
            let path = spec.routing.as_ref().ok_or_else(|| invalid("routing.path", "it is missing"))?;
            let shows = match (integration.type_, &integration.crd, &integration.iframe) {
                (IntegrationType::Crd, Some(crd), _) => {
                    let resource = resource(&crd.names, &crd.group, &crd.version, crd.scope);
                    Shows::CrdTable(Table { resource, columns: spec.columns.clone() })
                }
                (IntegrationType::Iframe, _, Some(frame)) => Shows::Iframe(Frame { src: frame.src.clone() }),
                _ => return Err(invalid("integration", "what its type names is missing")),
            };
            self.add_page(ONLY, &path.path, shows);
        }
        for page in spec.pages.iter().flatten() {
            let shows = match (page.type_, &page.crd_table, &page.iframe) {
                (PageType::CrdTable, Some(table), _) => {
                    let resource = resource(&table.names, &table.group, &table.version, table.scope);
                    Shows::CrdTable(Table { resource, columns: table.columns.clone() })
                }
                (PageType::Iframe, _, Some(frame)) => Shows::Iframe(Frame { src: frame.src.clone() }),
                _ => return Err(invalid(&format!("pages[{}]", page.key), "what its type names is missing")),
            };
            self.add_page(&page.key, page.path.as_deref().unwrap_or(&page.key), shows);
        }
        Ok(())
    }

    fn add_page(&mut self, id: &str, path: &str, shows: Shows) {
        self.routes.push(Route { path: path.to_owned(), page_id: id.to_owned() });
        self.pages.push(Page { id: id.to_owned(), shows });
    }

    fn add_menus(&mut self, spec: &FrontendIntegrationSpec, display_name: &str) -> Result<(), Error> {
        if let Some(menu) = &spec.menu {
            let first = self.routes.first().map(|route| route.path.clone());
            let path = first.ok_or_else(|| invalid("menu", "there is no page to lead to"))?;
            let title = menu.name.as_deref().unwrap_or(display_name);
            self.add_menu("menu", &path, title, None, 0, &menu.placements);
        }
        for (number, item) in spec.menus.iter().flatten().enumerate() {
            self.add_item(number, item)?;
        }
        Ok(())
    }

    /// An item with items below it becomes these: the console's menus have one level.
    fn add_item(&mut self, number: usize, item: &MenuItem) -> Result<(), Error> {
        let place = format!("menus[{number}]");
        let order = item.order.unwrap_or_default();
        if let Some(page) = &item.page {
            let path = self.path_of(page, &place)?;
            self.add_menu(&place, &path, &item.name, item.icon.as_deref(), order, &item.placements);
        } else if item.children.is_empty() {
            return Err(invalid(&place, "it leads to no page, and has no children"));
        }
        let mut children: Vec<_> = item.children.iter().enumerate().collect();
        children.sort_by_key(|(_, child)| child.order.unwrap_or_default());
        for (number, child) in children {
            let place = format!("{place}.children[{number}]");
            let path = self.path_of(&child.page, &place)?;
            let icon = child.icon.as_deref().or(item.icon.as_deref());
            let title = format!("{} / {}", item.name, child.name);
            self.add_menu(&place, &path, &title, icon, order, &item.placements);
        }
        Ok(())
    }

    fn path_of(&self, page: &str, place: &str) -> Result<String, Error> {
        let route = self.routes.iter().find(|route| route.page_id == page);
        let wrong = || invalid(place, &format!("there is no page {page:?}"));
        route.map(|route| route.path.clone()).ok_or_else(wrong)
    }

    /// In every menu that is named; in that of the platform where none is.
    fn add_menu(
        &mut self,
        key: &str,
        path: &str,
        title: &str,
        icon: Option<&str>,
        order: i32,
        places: &[Placement],
    ) {
        self.messages.insert(key.to_owned(), title.to_owned());
        let places = if places.is_empty() { &[Placement::Global][..] } else { places };
        for parent in places {
            self.menus.push(Menu {
                parent: *parent,
                name: path.to_owned(),
                title: key.to_owned(),
                icon: icon.map(str::to_owned),
                order,
            });
        }
    }
}

fn resource(names: &CrdNames, group: &str, version: &str, scope: CrdScope) -> Resource {
    let (plural, kind) = (names.plural.clone(), names.kind.clone());
    Resource { group: group.to_owned(), version: version.to_owned(), plural, kind, scope }
}

fn invalid(place: &str, wrong: &str) -> Error {
    Error::Invalid { place: place.to_owned(), wrong: wrong.to_owned() }
}

/// Most of anything that a manifest may have.
const MOST: usize = 256;

/// Whether a manifest can be built. The build service asks this of what anybody sends.
pub fn judge(manifest: &Manifest) -> Result<(), Error> {
    if manifest.version != "v1" {
        return Err(invalid("version", "it is not v1"));
    }
    if !is_name(&manifest.name, 253) {
        return Err(invalid("name", "it is no name of an object"));
    }
    for (what, count) in [
        ("routes", manifest.routes.len()),
        ("menus", manifest.menus.len()),
        ("locales", manifest.locales.len()),
        ("pages", manifest.pages.len()),
    ] {
        if count > MOST {
            return Err(invalid(what, &format!("there are more than {MOST}")));
        }
    }
    if manifest.pages.is_empty() {
        return Err(invalid("pages", "there is none"));
    }
    let mut ids = BTreeSet::new();
    for page in &manifest.pages {
        judge_page(page, ids.insert(page.id.as_str()))?;
    }
    let mut paths = BTreeSet::new();
    for route in &manifest.routes {
        let place = format!("routes[{}]", route.path);
        if !is_path(&route.path) {
            return Err(invalid(&place, "it is no path: letters, digits and -_.~ between slashes"));
        }
        if !paths.insert(route.path.as_str()) {
            return Err(invalid(&place, "two pages have this path"));
        }
        if !ids.contains(route.page_id.as_str()) {
            return Err(invalid(&place, &format!("there is no page {:?}", route.page_id)));
        }
    }
    match manifest.menus.iter().find(|menu| !paths.contains(menu.name.as_str())) {
        Some(menu) => Err(invalid("menus", &format!("no page is at {:?}", menu.name))),
        None => Ok(()),
    }
}

fn judge_page(page: &Page, is_new: bool) -> Result<(), Error> {
    let place = format!("pages[{}]", page.id);
    if !is_name(&page.id, 63) {
        return Err(invalid(&place, "its id has other characters than a-z, 0-9, - and ."));
    }
    if !is_new {
        return Err(invalid(&place, "two pages have this id"));
    }
    match &page.shows {
        Shows::Iframe(frame) => match is_site(&frame.src) {
            true => Ok(()),
            false => Err(invalid(&place, "the address of a frame begins with https://, http:// or /")),
        },
        Shows::CrdTable(table) => {
            let Resource { group, version, plural, .. } = &table.resource;
            let named = [group, version, plural].into_iter().all(|part| is_name(part, 253));
            if !named {
                return Err(invalid(&place, "its resource is none: group, version and plural are names"));
            }
            match table.columns.len() {
                0 => Err(invalid(&place, "a table needs columns")),
                many if many > MOST => Err(invalid(&place, &format!("it has more than {MOST} columns"))),
                _ => Ok(()),
            }
        }
    }
}

fn is_name(text: &str, longest: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= longest && text.bytes().all(plain) && end(bytes.first()) && end(bytes.last())
}

fn is_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.~:-".contains(&byte);
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain);
    text.len() <= 253 && text.split('/').all(part)
}

/// An address that leads to a site and runs nothing by itself.
fn is_site(text: &str) -> bool {
    let begins = ["https://", "http://", "/"].iter().any(|start| text.starts_with(start));
    text.len() <= 2048
        && begins
        && !text.chars().any(|letter| letter.is_control() || " \"'<>\\`".contains(letter))
}

#[cfg(test)]
mod tests;
