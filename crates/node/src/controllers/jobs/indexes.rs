//! A set of completion indexes as ordered runs, written as Jobs write them: `0-2,4`. Its size depends on the number
//! of runs, never on the number of indexes.

use std::fmt;

/// Runs in increasing order that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<Run>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: i32,
    last: i32,
}

impl Indexes {
    /// Reads what a status or a policy says, up to `completions`. What cannot be read is left out.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let runs = text.split(',').filter_map(|run| {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last) = (first.parse().ok()?, last.parse::<i32>().ok()?.min(completions - 1));
            (0 <= first && first <= last).then_some(Run { first, last })
        });
        Self::joined(runs.collect())
    }

    fn joined(mut runs: Vec<Run>) -> Self {
        runs.sort_by_key(|run| run.first);
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(before) if run.first <= before.last.saturating_add(1) => {
                    before.last = before.last.max(run.last)
                }
                _ => joined.push(run),
            }
        }
        Self(joined)
    }

    pub(super) fn with(&self, more: impl IntoIterator<Item = i32>) -> Self {
        let more = more.into_iter().map(|index| Run { first: index, last: index });
        Self::joined(self.0.iter().copied().chain(more).collect())
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::joined(self.0.iter().chain(&other.0).copied().collect())
    }

    pub(super) fn len(&self) -> i32 {
        self.0.iter().fold(0, |sum, run| sum.saturating_add(run.last - run.first + 1))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|run| run.last < index);
        self.0.get(at).is_some_and(|run| run.first <= index)
    }

    /// How many indexes are in both.
    pub(super) fn overlap(&self, other: &Self) -> i32 {
        let pairs = self.0.iter().flat_map(|a| other.0.iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| (a.last.min(b.last) - a.first.max(b.first) + 1).max(0)).sum()
    }

    /// The lowest `count` indexes below `completions` that are not in the set.
    pub(super) fn first_missing(&self, count: usize, completions: i32) -> Vec<i32> {
        let mut missing = Vec::new();
        let mut candidate = 0;
        let end = Run { first: completions, last: completions };
        for run in self.0.iter().chain([&end]) {
            while candidate < run.first.min(completions) && missing.len() < count {
                missing.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(run.last.saturating_add(1));
        }
        missing
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match run.last - run.first {
                0 => write!(f, "{comma}{}", run.first)?,
                1 => write!(f, "{comma}{},{}", run.first, run.last)?,
                _ => write!(f, "{comma}{}-{}", run.first, run.last)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_is_written_and_skips_the_rest() {
        for (text, completions, expected) in [
            ("", 9, ""),
            ("0", 9, "0"),
            ("0,1", 9, "0,1"),
            ("0-2,4", 9, "0-2,4"),
            ("0-2,3", 9, "0-3"),
            ("0-8", 3, "0-2"),
            ("5,7", 6, "5"),
            ("x,2,-1,3-y,5-4", 9, "2"),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(a in prop::collection::btree_set(0..40_i32, 0..30),
                            b in prop::collection::btree_set(0..40_i32, 0..30), count in 0..10_usize) {
            let (x, y) = (Indexes::default().with(a.clone()), Indexes::default().with(b.clone()));
            let both: BTreeSet<i32> = a.union(&b).copied().collect();
            prop_assert_eq!(x.union(&y), Indexes::default().with(both));
            prop_assert_eq!(usize::try_from(x.len()).unwrap_or(0), a.len());
            prop_assert_eq!(usize::try_from(x.overlap(&y)).unwrap_or(0), a.intersection(&b).count());
            prop_assert!((0..40).all(|index| x.contains(index) == a.contains(&index)));
            let missing: Vec<i32> = (0..40).filter(|index| !a.contains(index)).take(count).collect();
            prop_assert_eq!(x.first_missing(count, 40), missing);
            prop_assert_eq!(Indexes::parse(&x.to_string(), 40), x);
        }
    }
}
