//! What a value is, and whether two are the same all the way down.

use super::Param::{Any, Text};
use super::{Function, any, exactly, text};
use crate::error::Fault;
use crate::memory::{DEEPEST, Memory, too_deep};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("typeOf", &[Any], |memory, values| {
        let name = memory.type_name(any(values, 0));
        memory.text(name)
    }),
    exactly("typeIs", &[Text, Any], |memory, values| {
        Ok(Value::Bool(memory.type_name(any(values, 1)) == text(values, 0)))
    }),
    exactly("typeIsLike", &[Text, Any], |memory, values| {
        let (name, wanted) = (memory.type_name(any(values, 1)), text(values, 0));
        Ok(Value::Bool(name == wanted || name.strip_prefix('*') == Some(wanted)))
    }),
    exactly("kindOf", &[Any], |_, values| Ok(Value::text(any(values, 0).kind_name()))),
    exactly("kindIs", &[Text, Any], |_, values| {
        Ok(Value::Bool(any(values, 1).kind_name() == text(values, 0)))
    }),
    exactly("deepEqual", &[Any, Any], |memory, values| {
        deep_equal(memory, any(values, 0), any(values, 1)).map(Value::Bool)
    }),
];

/// As `reflect.DeepEqual`: of the same types, and the same.
pub(super) fn deep_equal(memory: &mut Memory, left: &Value, right: &Value) -> Result<bool, Fault> {
    nested(memory, left, right, 0)
}

fn nested(memory: &mut Memory, left: &Value, right: &Value, depth: usize) -> Result<bool, Fault> {
    memory.work(1)?;
    if depth > DEEPEST {
        return Err(too_deep());
    }
    Ok(match (left, right) {
        (Value::Missing | Value::Nil, Value::Missing | Value::Nil) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) | (Value::Int64(left), Value::Int64(right)) => left == right,
        (Value::Uint64(left), Value::Uint64(right)) => left == right,
        (Value::Byte(left), Value::Byte(right)) => left == right,
        (Value::Float(left), Value::Float(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => left == right,
        (Value::Version(left), Value::Version(right)) => left == right,
        (Value::List(left), Value::List(right)) => {
            if left.of != right.of || left.is_nil != right.is_nil || left.items.len() != right.items.len() {
                return Ok(false);
            }
            for (left, right) in left.items.iter().zip(right.items.iter()) {
                if !nested(memory, left, right, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(left), Value::Map(right)) if left == right => true,
        (Value::Map(left), Value::Map(right)) => {
            if memory.element(*left) != memory.element(*right) {
                return Ok(false);
            }
            let (left, right) = (memory.entries(*left).clone(), memory.entries(*right).clone());
            memory.work(left.len().max(right.len()))?;
            if left.len() != right.len() {
                return Ok(false);
            }
            for ((left_key, left), (right_key, right)) in left.iter().zip(right.iter()) {
                if left_key != right_key || !nested(memory, left, right, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        _ => false,
    })
}
