//! Differences between two texts, line by line, as `diff -u` shows them. Pure.

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Texts with more lines on both sides than this are compared as a whole.
const MOST: usize = 4_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// A unified difference; empty if there is none.
pub(super) fn unified(old_name: &str, new_name: &str, old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let lines = compare(&old, &new);
    let changed: Vec<usize> = (0..lines.len()).filter(|at| !matches!(lines[*at], Line::Same(_))).collect();
    let Some(first) = changed.first() else { return String::new() };
    let mut hunks: Vec<(usize, usize)> = vec![(first.saturating_sub(CONTEXT), first + CONTEXT + 1)];
    for at in &changed {
        let begins = at.saturating_sub(CONTEXT);
        match hunks.last_mut() {
            Some((_, end)) if begins <= *end => *end = at + CONTEXT + 1,
            _ => hunks.push((begins, at + CONTEXT + 1)),
        }
    }
    let mut text = format!("--- {old_name}\n+++ {new_name}\n");
    for (begin, end) in hunks {
        let end = end.min(lines.len());
        let before = |count: fn(&Line<'_>) -> bool, lines: &[Line<'_>]| {
            lines.iter().filter(|line| count(line)).count()
        };
        let in_old: fn(&Line<'_>) -> bool = |line| !matches!(line, Line::New(_));
        let in_new: fn(&Line<'_>) -> bool = |line| !matches!(line, Line::Old(_));
        let (hunk, head) = (&lines[begin..end], &lines[..begin]);
        let range = |count: fn(&Line<'_>) -> bool| {
            let length = before(count, hunk);
            let start = before(count, head) + usize::from(length > 0);
            format!("{start},{length}")
        };
        text.push_str(&format!("@@ -{} +{} @@\n", range(in_old), range(in_new)));
        for line in hunk {
            let (mark, line) = match line {
                Line::Same(line) => (' ', line),
                Line::Old(line) => ('-', line),
                Line::New(line) => ('+', line),
            };
            text.push(mark);
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The longest common lines stay; what is between them was taken away or added.
fn compare<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(old, new)| old == new).count();
    let (old_middle, new_middle) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut lines: Vec<Line<'a>> = old[..start].iter().map(|line| Line::Same(line)).collect();
    if old_middle.len() > MOST || new_middle.len() > MOST {
        lines.extend(old_middle.iter().map(|line| Line::Old(line)));
        lines.extend(new_middle.iter().map(|line| Line::New(line)));
    } else {
        lines.extend(middle(old_middle, new_middle));
    }
    lines.extend(old[old.len() - end..].iter().map(|line| Line::Same(line)));
    lines
}

fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let width = new.len() + 1;
    // How many lines are common from here on.
    let mut common = vec![0u16; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = match old[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(Line::Same(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len()
            && (j == new.len() || common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            lines.push(Line::Old(old[i]));
            i += 1;
        } else {
            lines.push(Line::New(new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_looks_like_diff_u() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk\nl\nm\n";
        let expected = "--- o\n+++ n\n@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n@@ -10,3 +10,4 @@\n j\n k\n l\n+m\n";
        assert_eq!(unified("o", "n", old, new), expected);
        assert_eq!(unified("o", "n", old, old), "");
        assert_eq!(unified("o", "n", "", "x\n"), "--- o\n+++ n\n@@ -0,0 +1,1 @@\n+x\n");
    }

    proptest! {
        #[test]
        fn both_sides_can_be_read_from_it(
            old in prop::collection::vec("[abc]", 0..12),
            new in prop::collection::vec("[abc]", 0..12),
        ) {
            let (old, new): (Vec<&str>, Vec<&str>) =
                (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
            let lines = compare(&old, &new);
            let left = lines.iter().filter_map(|line| match line { Line::Same(l) | Line::Old(l) => Some(*l), Line::New(_) => None });
            let right = lines.iter().filter_map(|line| match line { Line::Same(l) | Line::New(l) => Some(*l), Line::Old(_) => None });
            prop_assert_eq!(left.collect::<Vec<_>>(), old);
            prop_assert_eq!(right.collect::<Vec<_>>(), new);
        }
    }
}
