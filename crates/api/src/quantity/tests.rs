//! Against tables that real apimachinery printed, and properties that hold for every quantity.

use proptest::prelude::*;

use super::*;
use crate::gostring::unquote;

fn parse(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

#[test]
fn agrees_with_apimachinery() {
    let mut rows = 0;
    for line in include_str!("../../testdata/quantities.tsv").lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let input = unquote(columns[0]);
        match (columns[1], input.parse::<Quantity>()) {
            ("error", Err(error)) => assert_eq!(error.to_string(), columns[2], "{input:?}"),
            ("error", Ok(got)) => panic!("{input:?}: Go refuses it, we read {got}"),
            (_, Err(error)) => panic!("{input:?}: Go accepts it, we say {error}"),
            (format, Ok(got)) => {
                assert_eq!(format!("{:?}", got.format()), format, "{input:?}");
                assert_eq!(got.to_string(), columns[2], "{input:?}");
                let sum = got.checked_add(&Quantity::default()).expect("small enough");
                assert_eq!(sum.to_string(), columns[3], "{input:?} + 0");
                for (expected, value) in [(columns[4], got.value()), (columns[5], got.milli_value())] {
                    if expected != "-" {
                        assert_eq!(value.to_string(), expected, "{input:?}");
                    }
                }
            }
        }
        rows += 1;
    }
    assert!(rows > 500, "{rows} rows");
}

#[test]
fn computes_like_apimachinery() {
    for line in include_str!("../../testdata/quantity_arithmetic.tsv").lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let (a, b) = (parse(columns[0]), parse(columns[1]));
        assert_eq!((a.cmp(&b) as i8).to_string(), columns[2], "{line}");
        assert_eq!(a.checked_add(&b).expect("small enough").to_string(), columns[3], "{line}");
        assert_eq!(a.checked_sub(&b).expect("small enough").to_string(), columns[4], "{line}");
    }
}

#[test]
fn huge_exponents_cost_nothing() {
    let huge = parse("1e2000000000");
    assert!(huge > parse("1Ei"));
    assert_eq!(huge.value(), i64::MAX);
    assert_eq!(huge.checked_add(&parse("1")), None);
}

#[test]
fn reads_numbers_and_text() {
    for (json, text) in [("2", "2"), ("\"4Gi\"", "4Gi"), ("\" 1 \"", "1"), ("0.5", "500m")] {
        let quantity: Quantity = serde_json::from_str(json).expect(json);
        assert_eq!(quantity, parse(text), "{json}");
    }
}

proptest! {
    #[test]
    fn printed_form_reads_back(text in PATTERN.trim_matches(['^', '$'])) {
        let quantity = parse(&text);
        // Past the largest suffix Go prints a number that reads back smaller; see the table.
        prop_assume!(quantity.value().unsigned_abs() < 1 << 62);
        prop_assert_eq!(parse(&quantity.to_string()), quantity);
    }

    #[test]
    fn sum_undoes_difference(a in -1_000_000_000i64..1_000_000_000, b: i32, milli: i16) {
        let (a, b) = (Quantity::from_value(a), parse(&format!("{b}.{:03}", milli.unsigned_abs() % 1000)));
        let difference = a.checked_sub(&b).expect("small");
        prop_assert_eq!(difference.checked_add(&b).expect("small"), a.clone());
        prop_assert_eq!(difference.is_negative(), a < b);
    }

    #[test]
    fn order_is_that_of_the_values(a: i64, b: i64) {
        prop_assert_eq!(Quantity::from_value(a).cmp(&Quantity::from_value(b)), a.cmp(&b));
        prop_assert_eq!(Quantity::from_value(a).value(), a);
    }

    #[test]
    fn no_input_panics(text: String) {
        let _ = text.parse::<Quantity>();
    }
}
