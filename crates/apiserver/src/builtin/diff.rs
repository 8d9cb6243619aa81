//! Unified diffs in the form that the real server puts into messages: the blocks that Ratcliff and Obershelp's
//! matching finds, with three lines of context.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

const CONTEXT: usize = 3;

/// A run of lines: from..to in the old text, from..to in the new one.
#[derive(Debug, Clone)]
struct Run {
    equal: bool,
    old: Range<usize>,
    new: Range<usize>,
}

/// The difference of two texts, empty if there is none.
pub(super) fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    let mut text = String::new();
    for hunk in hunks(&runs(&old, &new)) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let (from, to) = (first.old.start..last.old.end, first.new.start..last.new.end);
        // Writing to a String does not fail.
        let _ = writeln!(text, "@@ -{} +{} @@", position(&from), position(&to));
        for run in hunk {
            if run.equal {
                lines(&mut text, ' ', &old[run.old]);
            } else {
                lines(&mut text, '-', &old[run.old]);
                lines(&mut text, '+', &new[run.new]);
            }
        }
    }
    text
}

fn lines(text: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        text.push(sign);
        text.push_str(line);
        text.push('\n');
    }
}

fn position(range: &Range<usize>) -> String {
    match range.len() {
        1 => (range.start + 1).to_string(),
        0 => format!("{},0", range.start),
        count => format!("{},{count}", range.start + 1),
    }
}

/// Splits runs into hunks: equal runs are cut to the context, long ones separate hunks.
fn hunks(runs: &[Run]) -> Vec<Vec<Run>> {
    let mut hunks = Vec::new();
    let mut hunk: Vec<Run> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        if !run.equal {
            hunk.push(run.clone());
            continue;
        }
        let (first, last) = (index == 0, index + 1 == runs.len());
        let head = Run {
            equal: true,
            old: run.old.start..run.old.end.min(run.old.start + CONTEXT),
            new: run.new.start..run.new.end.min(run.new.start + CONTEXT),
        };
        let tail = Run {
            equal: true,
            old: run.old.start.max(run.old.end.saturating_sub(CONTEXT))..run.old.end,
            new: run.new.start.max(run.new.end.saturating_sub(CONTEXT))..run.new.end,
        };
        if first {
            hunk.push(tail);
        } else if last {
            hunk.push(head);
        } else if run.old.len() > 2 * CONTEXT {
            hunk.push(head);
            hunks.push(std::mem::take(&mut hunk));
            hunk.push(tail);
        } else {
            hunk.push(run.clone());
        }
    }
    hunks.push(hunk);
    hunks.retain(|hunk| hunk.iter().any(|run| !run.equal));
    hunks
}

/// The whole of both texts as equal and different runs in turn.
fn runs(old: &[&str], new: &[&str]) -> Vec<Run> {
    let mut matches = Vec::new();
    let places = places(new);
    let mut open = vec![(0..old.len(), 0..new.len())];
    while let Some((a, b)) = open.pop() {
        let (i, j, size) = longest(old, new, &places, &a, &b);
        if size > 0 {
            matches.push((i, j, size));
            open.push((a.start..i, b.start..j));
            open.push((i + size..a.end, j + size..b.end));
        }
    }
    matches.sort_unstable();
    matches.push((old.len(), new.len(), 0));
    let mut runs: Vec<Run> = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (next_i, next_j, size) in matches {
        if i < next_i || j < next_j {
            runs.push(Run { equal: false, old: i..next_i, new: j..next_j });
        }
        if size > 0 {
            match runs.last_mut().filter(|run| run.equal) {
                Some(run) => (run.old.end, run.new.end) = (next_i + size, next_j + size),
                None => {
                    runs.push(Run { equal: true, old: next_i..next_i + size, new: next_j..next_j + size })
                }
            }
        }
        (i, j) = (next_i + size, next_j + size);
    }
    runs
}

/// Where each line of the new text stands. In a long text, lines that are everywhere anchor nothing.
fn places<'a>(new: &[&'a str]) -> BTreeMap<&'a str, Vec<usize>> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(index);
    }
    if new.len() >= 200 {
        let most = new.len() / 100 + 1;
        places.retain(|_, at| at.len() <= most);
    }
    places
}

/// The longest common block of two ranges: the earliest in the old text, then in the new one.
fn longest(
    old: &[&str],
    new: &[&str],
    places: &BTreeMap<&str, Vec<usize>>,
    a: &Range<usize>,
    b: &Range<usize>,
) -> (usize, usize, usize) {
    let (mut best_i, mut best_j, mut size) = (a.start, b.start, 0);
    let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
    for i in a.clone() {
        let mut next = BTreeMap::new();
        for &j in places.get(old[i]).into_iter().flatten().filter(|j| b.contains(j)) {
            let length = j.checked_sub(1).and_then(|before| lengths.get(&before)).unwrap_or(&0) + 1;
            next.insert(j, length);
            if length > size {
                (best_i, best_j, size) = (i + 1 - length, j + 1 - length, length);
            }
        }
        lengths = next;
    }
    while best_i > a.start && best_j > b.start && old[best_i - 1] == new[best_j - 1] {
        (best_i, best_j, size) = (best_i - 1, best_j - 1, size + 1);
    }
    while best_i + size < a.end && best_j + size < b.end && old[best_i + size] == new[best_j + size] {
        size += 1;
    }
    (best_i, best_j, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_have_context() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk";
        let new = "a\nB\nc\nd\ne\nf\ng\nh\ni\nk";
        assert_eq!(
            unified(old, new),
            "@@ -1,5 +1,5 @@\n a\n-b\n+B\n c\n d\n e\n@@ -7,5 +7,4 @@\n g\n h\n i\n-j\n k\n"
        );
        assert_eq!(unified(old, old), "");
    }
}
