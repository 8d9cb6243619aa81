//! The functions that rules can call: those of Kubernetes, and what the interpreter lacks of CEL's own.

use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, IdedExpr, Value as CelValue};

/// The functions that rules can call; variables are added in a scope of their own.
pub(super) static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default().with_all();
    // Types are their names here: enough for `type(self.x) == int`.
    context.add_function("type", |This(value): This<CelValue>| -> Result<CelValue, ExecutionError> {
        Ok(CelValue::String(Arc::new(type_of(&value).to_owned())))
    });
    context
        .add_function("dyn", |This(value): This<CelValue>| -> Result<CelValue, ExecutionError> { Ok(value) });
    context.add_function("bool", |This(value): This<CelValue>| -> Result<CelValue, ExecutionError> {
        match &value {
            CelValue::Bool(_) => Ok(value),
            CelValue::String(text) => match text.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(CelValue::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(CelValue::Bool(false)),
                _ => Err(ExecutionError::function_error(
                    "bool",
                    "type conversion error from 'string' to 'bool'",
                )),
            },
            _ => Err(ExecutionError::NoSuchOverload),
        }
    });
    for name in ["int", "uint", "double", "string", "bool", "bytes", "list", "map", "null_type"] {
        context.add_variable_from_value(name, name);
    }
    context
});

fn type_of(value: &CelValue) -> &'static str {
    match value {
        CelValue::Int(_) => "int",
        CelValue::UInt(_) => "uint",
        CelValue::Float(_) => "double",
        CelValue::String(_) => "string",
        CelValue::Bool(_) => "bool",
        CelValue::Bytes(_) => "bytes",
        CelValue::List(_) => "list",
        CelValue::Map(_) => "map",
        CelValue::Null => "null_type",
        _ => "unknown",
    }
}

/// Whether a call of this name can be meant: we have it, or the real server does and we fail when it is called.
pub(super) fn is_function(name: &str) -> bool {
    const REAL: [&str; 9] = [
        "bind",
        "sortBy",
        "optMap",
        "optFlatMap",
        "transformList",
        "transformMap",
        "transformMapEntry",
        "existsOne",
        "dyn",
    ];
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || REAL.contains(&name) {
        return true;
    }
    // The interpreter looks for the function before it looks at arguments.
    let call = Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args: Vec::new() });
    let missing = FUNCTIONS.resolve(&IdedExpr { id: 0, expr: call });
    !matches!(missing, Err(ExecutionError::UndeclaredReference(missing)) if missing.as_str() == name)
}
