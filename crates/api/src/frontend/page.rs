//! What a page of the console shows, and how the menu leads to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use std::collections::BTreeMap;

use crate::cel;

/// What the one page of an integration shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("(self.type == 'crd') == has(self.crd)", "crd must be set exactly when type is crd"),
    ("(self.type == 'iframe') == has(self.iframe)", "iframe must be set exactly when type is iframe"),
])))]
pub struct IntegrationSpec {
    /// What is shown: crd, a table of custom resources; or iframe, another site.
    #[serde(rename = "type")]
    pub type_: IntegrationType,
    /// The custom resources, for type crd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crd: Option<CrdSource>,
    /// The site, for type iframe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iframe: Option<IframeSource>,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum IntegrationType {
    /// A table of custom resources.
    Crd,
    /// Another site in a frame.
    Iframe,
}

/// Custom resources to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdSource {
    /// Names of the resource.
    pub names: CrdNames,
    /// API group of the resource.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// API version of the resource.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// Whether objects are in namespaces: Namespaced or Cluster.
    #[serde(default)]
    pub scope: CrdScope,
    /// Key by which the console decides who may see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub auth_key: Option<String>,
}

/// Names of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdNames {
    /// Kind, such as Task.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Plural, such as tasks.
    #[schemars(length(min = 1, max = 63))]
    pub plural: String,
}

/// Whether objects are in namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CrdScope {
    /// They are.
    #[default]
    Namespaced,
    /// They are not.
    Cluster,
}

/// A site to show in a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IframeSource {
    /// Address of the site.
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^(https?://|/).*$"))]
    pub src: String,
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Column {
    /// Key of the column, unique in the table.
    #[schemars(length(min = 1, max = 63))]
    pub key: String,
    /// Title for people.
    #[schemars(length(min = 1, max = 256))]
    pub title: String,
    /// Whether the table can be sorted by it.
    #[serde(default)]
    pub enable_sorting: bool,
    /// What stands in its cells.
    pub render: ColumnRender,
}

/// What stands in a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.type == 'time' || !has(self.format)", "format is used with columns of type time only"),
    ("self.type == 'link' || !has(self.link)", "link is used with columns of type link only"),
])))]
pub struct ColumnRender {
    /// How the value is shown: text, time or link.
    #[serde(rename = "type", default)]
    pub type_: RenderType,
    /// Path of the value in the object, such as metadata.name.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// How a time is written: local-datetime or utc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TimeFormat>,
    /// Text around the value, with {value} in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub pattern: Option<String>,
    /// Where a link leads, with {value} in the value's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub link: Option<String>,
    /// Further settings of the renderer, passed on as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub payload: Option<BTreeMap<String, Value>>,
}

/// How a value is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RenderType {
    /// As text.
    #[default]
    Text,
    /// As a time.
    Time,
    /// As a link.
    Link,
}

/// How a time is written: local-datetime or utc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeFormat {
    /// In the reader's time zone.
    LocalDatetime,
    /// In UTC.
    Utc,
}

/// The menu entry of an integration with one page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Menu {
    /// Name of the entry; displayName when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// Menus in which it stands: global, workspace, cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub placements: Vec<Placement>,
}

/// A menu of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// That of the platform.
    Global,
    /// That of a workspace.
    Workspace,
    /// That of a cluster.
    Cluster,
}

/// A menu entry that leads to a page, or has entries of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MenuItem {
    /// Title for people.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Page that it leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub page: Option<String>,
    /// Icon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub icon: Option<String>,
    /// Place among its neighbours, the lowest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
    /// Menus in which it stands: global, workspace, cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub placements: Vec<Placement>,
    /// Entries below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub children: Vec<MenuChild>,
}

/// A menu entry below another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MenuChild {
    /// Title for people.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Page that it leads to.
    #[schemars(length(min = 1, max = 63))]
    pub page: String,
    /// Icon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub icon: Option<String>,
    /// Place among its neighbours, the lowest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
}

/// One of several pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("(self.type == 'crdTable') == has(self.crdTable)", "crdTable must be set exactly when the type of the page is crdTable"),
    ("(self.type == 'iframe') == has(self.iframe)", "iframe must be set exactly when the type of the page is iframe"),
])))]
pub struct Page {
    /// Key of the page, unique in the integration.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub key: String,
    /// Where it is found in the console, without a leading slash. Defaults to the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~:-]+)*$"))]
    pub path: Option<String>,
    /// What is shown: crdTable or iframe.
    #[serde(rename = "type")]
    pub type_: PageType,
    /// The site, for type iframe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iframe: Option<IframeSource>,
    /// The table, for type crdTable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crd_table: Option<CrdTable>,
}

/// What a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PageType {
    /// A table of custom resources.
    CrdTable,
    /// Another site in a frame.
    Iframe,
}

/// A table of custom resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdTable {
    /// Names of the resource.
    pub names: CrdNames,
    /// API group of the resource.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// API version of the resource.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// Whether objects are in namespaces: Namespaced or Cluster.
    #[serde(default)]
    pub scope: CrdScope,
    /// Key by which the console decides who may see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub auth_key: Option<String>,
    /// Columns of the table.
    #[schemars(
        length(min = 1, max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"])
    )]
    pub columns: Vec<Column>,
}
