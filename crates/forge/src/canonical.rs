//! JSON in the one form of RFC 8785, so that equal values have equal hashes, whoever wrote them: names sorted by their UTF-16
//! units, numbers as ECMAScript prints them, no white space.

use serde_json::{Map, Number, Value};

/// Whole numbers beyond this are not exact as doubles, and count as doubles.
const EXACT: u64 = 1 << 53;

pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => text.push_str(&print(number)),
        Value::String(string) => quote(string, text),
        Value::Array(items) => {
            text.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Object(members) => object(members, text),
    }
}

fn object(members: &Map<String, Value>, text: &mut String) {
    let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
    sorted.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
    text.push('{');
    for (place, (name, value)) in sorted.into_iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        quote(name, text);
        text.push(':');
        write(value, text);
    }
    text.push('}');
}

fn quote(string: &str, text: &mut String) {
    text.push('"');
    for letter in string.chars() {
        match letter {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{8}' => text.push_str("\\b"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\u{c}' => text.push_str("\\f"),
            '\r' => text.push_str("\\r"),
            control if control < ' ' => text.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => text.push(other),
        }
    }
    text.push('"');
}

fn print(number: &Number) -> String {
    match (number.as_i64(), number.as_u64()) {
        (Some(whole), _) if whole.unsigned_abs() <= EXACT => whole.to_string(),
        (_, Some(whole)) if whole <= EXACT => whole.to_string(),
        // What is no finite double cannot be in JSON.
        _ => double(number.as_f64().unwrap_or_default()),
    }
}

/// As `Number::toString` of ECMAScript.
fn double(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    // The shortest digits that read back as the same number, as `d.ddde±x`.
    let shortest = format!("{:e}", value.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    // The place of the decimal point, counted from the first digit.
    let point = exponent.parse::<i32>().unwrap_or_default() + 1;
    let sign = if value < 0.0 { "-" } else { "" };
    let zeros = |number: i32| "0".repeat(usize::try_from(number).unwrap_or(0));
    let at = |place: i32| digits.split_at(usize::try_from(place).unwrap_or(0));
    let text = if (count..=21).contains(&point) {
        format!("{digits}{}", zeros(point - count))
    } else if 0 < point && point <= 21 {
        let (whole, rest) = at(point);
        format!("{whole}.{rest}")
    } else if -6 < point && point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        let plus = if point > 0 { "+" } else { "-" };
        format!("{first}{dot}{rest}e{plus}{}", (point - 1).abs())
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        // Section 3.2.2 and 3.2.3 of RFC 8785.
        let mut value: Value = serde_json::from_str(
            r#"{"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#,
        )
        .unwrap();
        // By the compiler: serde_json reads some numbers one digit off.
        value["numbers"] =
            json!([333_333_333.333_333_3, 1e30, 4.50, 2e-3, 0.000_000_000_000_000_000_000_000_001]);
        assert_eq!(
            canonical(&value),
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
        );
        let sorted = canonical(
            &json!({ "\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7 }),
        );
        let order: Vec<char> = sorted.chars().filter(char::is_ascii_digit).collect();
        // The name `1` is one of them.
        assert_eq!(order, ['2', '1', '4', '6', '7', '1', '5', '3']);
    }

    #[test]
    fn numbers_are_those_of_ecmascript() {
        for (number, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (5e-324, "5e-324"),
            (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (295_147_905_179_352_830_000.0, "295147905179352830000"),
            (1e21, "1e+21"),
            (9.999_999_999_999_997e22, "9.999999999999997e+22"),
            (0.000_001, "0.000001"),
            (1e-7, "1e-7"),
            (-1.5, "-1.5"),
            (123.456, "123.456"),
        ] {
            assert_eq!(double(number), expected, "{number}");
        }
        assert_eq!(
            canonical(&json!([1, -7, 1.0, u64::MAX, i64::MIN])),
            "[1,-7,1,18446744073709552000,-9223372036854776000]"
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_number(number in proptest::num::f64::NORMAL) {
            prop_assert_eq!(double(number).parse::<f64>().unwrap(), number);
        }

        #[test]
        fn it_is_json_and_printing_it_again_changes_nothing(text in ".*", number in any::<i32>(), flag in any::<bool>()) {
            let once = canonical(&json!({ text.clone(): [text, number, f64::from(number) / 8.0, flag] }));
            let again: Value = serde_json::from_str(&once).unwrap();
            prop_assert_eq!(canonical(&again), once);
        }
    }
}
