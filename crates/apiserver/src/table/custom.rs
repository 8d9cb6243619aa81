//! Tables of custom resources: the columns that their definition asks for.

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;
use super::{Column, all};
use crate::builtin::access::Peek;

/// One of `additionalPrinterColumns`, with what finds its value. `find` gives the values at the path, none if the
/// object has none.
pub struct CustomColumn<F> {
    pub ty: String,
    pub find: F,
}

/// The column definitions of a version of a custom resource: its name, and those it asks for, or its age.
/// `additional` is `additionalPrinterColumns` as it stands in the CustomResourceDefinition.
pub fn custom_columns(additional: &[Value]) -> Vec<Column> {
    let texts = all();
    let mut columns = vec![Column {
        name: "Name".to_owned(),
        ty: "string".to_owned(),
        format: "name".to_owned(),
        description: texts.name.clone(),
        priority: 0,
    }];
    if additional.is_empty() {
        columns.push(Column {
            name: "Age".to_owned(),
            ty: "date".to_owned(),
            format: String::new(),
            description: texts.created.clone(),
            priority: 0,
        });
    }
    for column in additional {
        let mut description = column.str_of("description").to_owned();
        if description.is_empty() {
            description = format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.str_of("jsonPath")
            );
        }
        columns.push(Column {
            name: column.str_of("name").to_owned(),
            ty: column.str_of("type").to_owned(),
            format: column.str_of("format").to_owned(),
            description,
            priority: i32::try_from(column.int_of("priority").unwrap_or_default()).unwrap_or_default(),
        });
    }
    columns
}

/// The cells of one custom resource. With no columns given, the cell beside the name is the age.
pub fn custom_cells<F>(columns: &[CustomColumn<F>], object: &Value, now: Timestamp) -> Vec<Value>
where
    F: Fn(&Value) -> Vec<Value>,
{
    let meta = object.sub("metadata");
    let mut cells = vec![Value::from(meta.str_of("name"))];
    if columns.is_empty() {
        cells.push(since(meta.sub("creationTimestamp"), now).into());
    }
    for column in columns {
        let cell = match (column.find)(object).into_iter().next() {
            None => Value::Null,
            Some(value) => cell(&column.ty, value, now),
        };
        cells.push(cell);
    }
    cells
}

fn cell(ty: &str, value: Value, now: Timestamp) -> Value {
    match (ty, value) {
        ("string", Value::String(text)) => text.into(),
        ("string", Value::Null) => "<no value>".into(),
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().map_or(Value::Null, |float| (float as i64).into()),
        },
        ("number", Value::Number(number)) => number.into(),
        ("boolean", Value::Bool(flag)) => flag.into(),
        ("date", Value::String(text)) => {
            if text.parse::<Timestamp>().is_ok() {
                since(&text.into(), now).into()
            } else {
                "<invalid>".into()
            }
        }
        _ => Value::Null,
    }
}
