//! Numbers against their bounds, with the rounding of the real validator.

use serde_json::Number;

use super::super::path::Path;
use super::super::{Schema, Type};
use super::{Checker, Outcome};
use crate::status::{FieldError, FieldErrorKind, go_float};

impl Checker<'_> {
    pub(super) fn number(
        &self,
        schema: &Schema,
        format: Option<&str>,
        value: &Number,
        path: &Path<'_>,
        out: &mut Outcome,
    ) {
        let float = value.as_f64().unwrap_or(f64::NAN);
        self.range(schema, format, float, value.as_i64(), "Checked", path, out);
        let bound = |limit: Option<f64>, what: &str, out: &mut Outcome| -> Option<f64> {
            let limit = limit?;
            self.range(schema, format, limit, None, what, path, out);
            Some(limit)
        };
        if let Some(factor) = bound(schema.multiple_of, "MultipleOf", out) {
            // Beside an integer the factor is one too, whatever it was.
            let fits = match (value.as_i64(), factor as i64) {
                (Some(value), whole) => whole > 0 && value % whole == 0,
                _ => is_json_integer(if factor < 1.0 { 1.0 / factor * float } else { float / factor }),
            };
            if factor <= 0.0 || (value.is_i64() && factor < 1.0) {
                let text = format!("factor MultipleOf declared for {} must be positive", path.dotted());
                let shown = go_number(factor, value);
                out.add(FieldError::new(
                    FieldErrorKind::Invalid,
                    self.at(path).0,
                    None,
                    format!("{shown}: {text}: {shown}"),
                ));
            } else if !fits {
                let detail = format!("should be a multiple of {}", go_number(factor, value));
                out.add(self.fail(FieldErrorKind::Invalid, value.clone(), path, detail));
            }
        }
        // Integers are compared with bounds whose fraction is cut off.
        let below = |limit: f64, or_equal: bool| match value.as_i64() {
            Some(value) => value < limit as i64 || (or_equal && value == limit as i64),
            None => float < limit || (or_equal && float == limit),
        };
        if let Some(min) = bound(schema.minimum, "Minimum boundary", out)
            && below(min, schema.exclusive_minimum)
        {
            let or_equal = if schema.exclusive_minimum { "" } else { " or equal to" };
            let detail = format!("should be greater than{or_equal} {}", go_number(min, value));
            out.add(self.fail(FieldErrorKind::Invalid, value.clone(), path, detail));
        }
        if let Some(max) = bound(schema.maximum, "Maximum boundary", out)
            && !below(max, !schema.exclusive_maximum)
        {
            let or_equal = if schema.exclusive_maximum { "" } else { " or equal to" };
            let detail = format!("should be less than{or_equal} {}", go_number(max, value));
            out.add(self.fail(FieldErrorKind::Invalid, value.clone(), path, detail));
        }
        out.passed += 1;
    }

    /// Whether a number can be what type and format say.
    #[allow(clippy::too_many_arguments)] // One call per bound; a struct for it would say less.
    fn range(
        &self,
        schema: &Schema,
        format: Option<&str>,
        float: f64,
        integer: Option<i64>,
        what: &str,
        path: &Path<'_>,
        out: &mut Outcome,
    ) {
        let ty = match schema.ty {
            Some(Type::Integer) if !schema.int_or_string => "integer",
            Some(Type::Number) if !schema.int_or_string => "number",
            _ => return,
        };
        let whole = integer.is_some() || (float.fract() == 0.0 && float.abs() < 9.2e18);
        let fits = match (ty, format) {
            ("integer", Some("int32")) => whole && (-2147483648.0..=2147483647.0).contains(&float),
            ("integer", _) => whole,
            (_, Some("float")) => float.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !fits {
            let format = match format {
                Some(format) => format!("with format {format}"),
                None => "(default format)".to_owned(),
            };
            out.add(
                self.nameless(format!("{what} value must be of type {ty} {format} in {}", path.dotted())),
            );
        }
    }
}

/// Whole, and small enough for every JSON reader.
pub(super) fn is_json_integer(float: f64) -> bool {
    const MAX: f64 = 9007199254740991.0;
    float.is_finite() && float.abs() <= MAX && (float - float.round()).abs() < 1e-9
}

/// A bound as Go prints it beside a value: as an integer beside an integer.
fn go_number(bound: f64, beside: &Number) -> String {
    if beside.is_i64() { (bound as i64).to_string() } else { go_float(bound) }
}
