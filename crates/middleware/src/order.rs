//! The order in which groups or Pods are treated. An agent says it; what it says is believed only if it is a permutation
//! of what it was asked. In doubt one after another, whoever leads last.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// An order, and whether it is one at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub names: Vec<String>,
    /// All at once, as far as other limits allow.
    pub concurrent: bool,
}

/// Why the order is not the agent's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    #[error("the agent cannot be asked: {0}; one after another, leader last")]
    Unreachable(String),
    #[error("the agent's order is no permutation of what it was asked: {0}; one after another, leader last")]
    NoPermutation(String),
}

/// The order to go by.
pub fn decide(
    asked: &[String],
    leads: impl Fn(&str) -> bool,
    answer: Result<&Order, &str>,
) -> (Order, Option<Doubt>) {
    match answer {
        Ok(order) if order.concurrent && order.names.is_empty() => {
            (Order { names: asked.to_vec(), concurrent: true }, None)
        }
        Ok(order) if is_permutation(asked, &order.names) => (order.clone(), None),
        Ok(order) => (serial(asked, leads), Some(Doubt::NoPermutation(shown(&order.names)))),
        Err(message) => (serial(asked, leads), Some(Doubt::Unreachable(message.into()))),
    }
}

/// One after another, whoever leads last.
fn serial(asked: &[String], leads: impl Fn(&str) -> bool) -> Order {
    let mut names = asked.to_vec();
    names.sort_by_key(|name| leads(name));
    Order { names, concurrent: false }
}

fn is_permutation(asked: &[String], answer: &[String]) -> bool {
    asked.len() == answer.len()
        && answer.iter().collect::<BTreeSet<_>>() == asked.iter().collect::<BTreeSet<_>>()
        && answer.iter().collect::<BTreeSet<_>>().len() == answer.len()
}

/// An answer may be anything, and is shown to people.
fn shown(names: &[String]) -> String {
    let all = format!("{names:?}");
    match all.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &all[..end]),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_permutations_are_believed() {
        let asked = names("a b c");
        let leads = |name: &str| name == "a";
        let order = |text: &str, concurrent| Order { names: names(text), concurrent };
        assert_eq!(decide(&asked, leads, Ok(&order("c a b", false))), (order("c a b", false), None));
        assert_eq!(decide(&asked, leads, Ok(&order("c a b", true))), (order("c a b", true), None));
        assert_eq!(decide(&asked, leads, Ok(&order("", true))), (order("a b c", true), None));
        for wrong in ["a b", "a b c d", "a a b", "a b d", ""] {
            let (decided, doubt) = decide(&asked, leads, Ok(&order(wrong, false)));
            assert_eq!(decided, order("b c a", false), "{wrong}");
            assert!(matches!(doubt, Some(Doubt::NoPermutation(_))), "{wrong}");
        }
        // An agent that cannot be reached never means all at once.
        let (decided, doubt) = decide(&asked, leads, Err("no answer"));
        assert_eq!(decided, order("b c a", false));
        assert_eq!(doubt, Some(Doubt::Unreachable("no answer".into())));
    }

    #[test]
    fn a_hostile_answer_is_cut() {
        let order = Order { names: vec!["ä".repeat(5000)], concurrent: true };
        let (_, doubt) = decide(&names("a b"), |_| false, Ok(&order));
        assert!(doubt.unwrap().to_string().len() < 700);
    }
}
