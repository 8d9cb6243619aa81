//! Numbers. Whole ones are `int64` whatever they were before; those with fractions are added and multiplied as decimals.

use super::Param::{Any, Float, Int, Text};
use super::{Function, any, exactly, int, text, variadic};
use crate::error::Fault;
use crate::literal;
use crate::memory::Memory;
use crate::print::to_text;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("int", &[Any], |_, values| Ok(Value::Int(to_int(any(values, 0))))),
    exactly("int64", &[Any], |_, values| Ok(Value::Int64(to_int(any(values, 0))))),
    exactly("float64", &[Any], |_, values| Ok(Value::Float(to_float(any(values, 0))))),
    exactly("atoi", &[Text], |_, values| Ok(Value::Int(decimal_integer(text(values, 0)).unwrap_or(0)))),
    exactly("toDecimal", &[Any], |memory, values| {
        let octal = to_text(memory, any(values, 0))?;
        Ok(Value::Int64(i64::from_str_radix(&octal, 8).unwrap_or(0)))
    }),
    exactly("add1", &[Any], |_, values| Ok(Value::Int64(to_int(any(values, 0)).wrapping_add(1)))),
    variadic("add", &[], Any, |_, values| {
        Ok(Value::Int64(values.iter().map(to_int).fold(0, i64::wrapping_add)))
    }),
    exactly("sub", &[Any, Any], |_, values| {
        Ok(Value::Int64(to_int(any(values, 0)).wrapping_sub(to_int(any(values, 1)))))
    }),
    variadic("mul", &[Any], Any, |_, values| {
        Ok(Value::Int64(values.iter().map(to_int).fold(1, i64::wrapping_mul)))
    }),
    exactly("div", &[Any, Any], |_, values| divide(values, i64::wrapping_div)),
    exactly("mod", &[Any, Any], |_, values| divide(values, i64::wrapping_rem)),
    variadic("max", &[Any], Any, |_, values| Ok(Value::Int64(values.iter().map(to_int).max().unwrap_or(0)))),
    variadic("biggest", &[Any], Any, |_, values| {
        Ok(Value::Int64(values.iter().map(to_int).max().unwrap_or(0)))
    }),
    variadic("min", &[Any], Any, |_, values| Ok(Value::Int64(values.iter().map(to_int).min().unwrap_or(0)))),
    variadic("maxf", &[Any], Any, |_, values| {
        Ok(Value::Float(values.iter().map(to_float).fold(f64::NEG_INFINITY, f64::max)))
    }),
    variadic("minf", &[Any], Any, |_, values| {
        Ok(Value::Float(values.iter().map(to_float).fold(f64::INFINITY, f64::min)))
    }),
    exactly("ceil", &[Any], |_, values| Ok(Value::Float(to_float(any(values, 0)).ceil()))),
    exactly("floor", &[Any], |_, values| Ok(Value::Float(to_float(any(values, 0)).floor()))),
    variadic("round", &[Any, Int], Float, round),
    exactly("add1f", &[Any], |_, values| {
        decimals(&[any(values, 0).clone(), Value::Int(1)], Decimal::add, |a, b| a + b)
    }),
    variadic("addf", &[], Any, |_, values| decimals(values, Decimal::add, |a, b| a + b)),
    variadic("subf", &[Any], Any, |_, values| decimals(values, Decimal::subtract, |a, b| a - b)),
    variadic("mulf", &[Any], Any, |_, values| decimals(values, Decimal::multiply, |a, b| a * b)),
    variadic("divf", &[Any], Any, |_, values| {
        if values.iter().skip(1).any(|value| to_float(value) == 0.0) {
            return Err("decimal division by 0".into());
        }
        decimals(values, Decimal::divide, |a, b| a / b)
    }),
    variadic("seq", &[], Int, |memory, values| {
        let numbers = sequence(memory, values)?;
        let words: Vec<String> = numbers.iter().map(i64::to_string).collect();
        memory.text(words.join(" "))
    }),
];

/// Whatever it is as a whole number; 0 if it is none.
pub(super) fn to_int(value: &Value) -> i64 {
    match value {
        Value::Int(number) | Value::Int64(number) => *number,
        Value::Uint64(number) => *number as i64,
        Value::Byte(number) => i64::from(*number),
        Value::Float(number) => *number as i64,
        Value::Bool(bool) => i64::from(*bool),
        Value::Text(text) => literal::integer(without_zero_fraction(text)).unwrap_or(0),
        _ => 0,
    }
}

/// `8.00` without its fraction.
fn without_zero_fraction(text: &str) -> &str {
    match text.rsplit_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() && fraction.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    }
}

fn to_float(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        Value::Uint64(number) => *number as f64,
        Value::Text(text) => literal::float(text).unwrap_or(0.0),
        other => to_int(other) as f64,
    }
}

/// Digits with a sign, and nothing else.
fn decimal_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn divide(values: &[Value], operation: fn(i64, i64) -> i64) -> Result<Value, Fault> {
    match to_int(any(values, 1)) {
        0 => Err("integer divide by zero".into()),
        divisor => Ok(Value::Int64(operation(to_int(any(values, 0)), divisor))),
    }
}

fn round(_: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let threshold = match values.get(2) {
        Some(Value::Float(threshold)) => *threshold,
        _ => 0.5,
    };
    let power = 10_f64.powi(int(values, 1).clamp(-400, 400) as i32);
    let shifted = to_float(any(values, 0)) * power;
    let rounded = if shifted.fract() >= threshold { shifted.ceil() } else { shifted.floor() };
    Ok(Value::Float(rounded / power))
}

/// Numbers from one to before another.
pub(super) fn until(memory: &mut Memory, begin: i64, end: i64, step: i64) -> Result<Vec<i64>, Fault> {
    let mut numbers = Vec::new();
    if step == 0 || (end < begin) != (step < 0) {
        return Ok(numbers);
    }
    let count =
        (i128::from(end) - i128::from(begin)).unsigned_abs().div_ceil(u128::from(step.unsigned_abs()));
    memory.work(usize::try_from(count).unwrap_or(usize::MAX))?;
    let mut number = begin;
    for _ in 0..count {
        numbers.push(number);
        number = number.wrapping_add(step);
    }
    Ok(numbers)
}

/// As the command `seq`: up to a number, from one to another, with a step between them.
fn sequence(memory: &mut Memory, values: &[Value]) -> Result<Vec<i64>, Fault> {
    let towards = |begin: i64, end: i64| if end < begin { -1 } else { 1 };
    let (begin, step, end) = match values.len() {
        1 => (1, towards(1, int(values, 0)), int(values, 0)),
        2 => (int(values, 0), towards(int(values, 0), int(values, 1)), int(values, 1)),
        3 => (int(values, 0), int(values, 1), int(values, 2)),
        _ => return Ok(Vec::new()),
    };
    if end < begin && step > 0 {
        return Ok(Vec::new());
    }
    until(memory, begin, end.saturating_add(towards(begin, end)), step)
}

/// A number as its shortest decimal: so 0.1 and 0.2 are 0.3.
#[derive(Clone, Copy)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

/// Digits behind the point of a quotient.
const QUOTIENT: i32 = 16;

impl Decimal {
    fn new(number: f64) -> Option<Decimal> {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e')?;
        let fraction = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let digits = mantissa.replace('.', "").parse().ok()?;
        Some(Decimal { digits, exponent: exponent.parse::<i32>().ok()? - i32::try_from(fraction).ok()? })
    }

    fn to_float(self) -> f64 {
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::NAN)
    }

    /// The same number with a smaller exponent.
    fn scaled(self, exponent: i32) -> Option<i128> {
        let power = u32::try_from(self.exponent - exponent).ok()?;
        self.digits.checked_mul(10_i128.checked_pow(power)?)
    }

    fn add(self, other: Decimal) -> Option<Decimal> {
        let exponent = self.exponent.min(other.exponent);
        Some(Decimal { digits: self.scaled(exponent)?.checked_add(other.scaled(exponent)?)?, exponent })
    }

    fn subtract(self, other: Decimal) -> Option<Decimal> {
        self.add(Decimal { digits: -other.digits, ..other })
    }

    fn multiply(self, other: Decimal) -> Option<Decimal> {
        let digits = self.digits.checked_mul(other.digits)?;
        Some(Decimal { digits, exponent: self.exponent + other.exponent })
    }

    fn divide(self, other: Decimal) -> Option<Decimal> {
        let dividend = Decimal { digits: self.digits, exponent: self.exponent - other.exponent };
        let dividend = dividend.scaled(-QUOTIENT)?;
        let (quotient, rest) = (dividend.checked_div(other.digits)?, dividend.checked_rem(other.digits)?);
        let half = rest.unsigned_abs() * 2 >= other.digits.unsigned_abs();
        let away = if half { dividend.signum() * other.digits.signum() } else { 0 };
        Some(Decimal { digits: quotient + away, exponent: -QUOTIENT })
    }
}

/// Folds numbers by an operation; where decimals have no room for it, as ordinary numbers.
fn decimals(
    values: &[Value],
    operation: fn(Decimal, Decimal) -> Option<Decimal>,
    ordinary: fn(f64, f64) -> f64,
) -> Result<Value, Fault> {
    if values.iter().any(|value| !to_float(value).is_finite()) {
        return Err("cannot calculate with what is not a number or infinite".into());
    }
    let mut numbers = values.iter().map(to_float);
    let Some(mut result) = numbers.next() else { return Ok(Value::Float(0.0)) };
    let mut exact = Decimal::new(result);
    for number in numbers {
        exact = exact.and_then(|exact| operation(exact, Decimal::new(number)?));
        result = exact.map_or_else(|| ordinary(result, number), Decimal::to_float);
        exact = exact.or_else(|| Decimal::new(result));
    }
    Ok(Value::Float(result))
}
