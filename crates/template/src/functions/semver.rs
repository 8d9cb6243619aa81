//! Semantic versions, and ranges of them as Helm's library reads them: `^1.2`, `~1.2.3`, `>=1.0 <2`, `1.x || 3 - 4`.

use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;
use std::sync::LazyLock;

use regex::Regex;

use super::Param::Text;
use super::{Function, exactly, text};
use crate::error::Fault;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("semver", &[Text], |_, values| Ok(Value::Version(Rc::new(Version::parse(text(values, 0))?)))),
    exactly("semverCompare", &[Text, Text], |memory, values| {
        memory.work(10 + text(values, 0).len())?;
        let alternatives = constraints(text(values, 0))?;
        let version = Version::parse(text(values, 1))?;
        let holds = |all: &Vec<Constraint>| all.iter().all(|constraint| constraint.holds(&version));
        Ok(Value::Bool(alternatives.iter().any(holds)))
    }),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    before: String,
    metadata: String,
    original: String,
}

const IDENTIFIERS: &str = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*";

fn pattern(text: &str) -> Option<Regex> {
    Regex::new(text).ok()
}

static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| {
    pattern(&format!(
        r"^v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:-({IDENTIFIERS}))?(?:\+({IDENTIFIERS}))?$"
    ))
});

impl Version {
    fn parse(text: &str) -> Result<Version, Fault> {
        let invalid = || Fault::Message(format!("Invalid Semantic Version {text:?}; 1.2.3 is one"));
        let found = VERSION.as_ref().and_then(|regex| regex.captures(text)).ok_or_else(invalid)?;
        let part = |index: usize| found.get(index).map_or("", |part| part.as_str());
        let number = |index: usize| match part(index) {
            "" => Ok(0),
            digits => digits.parse::<u64>().map_err(|_| invalid()),
        };
        let zeros = |identifier: &str| {
            identifier.len() > 1
                && identifier.starts_with('0')
                && identifier.bytes().all(|byte| byte.is_ascii_digit())
        };
        if part(4).split('.').any(zeros) {
            return Err(invalid());
        }
        Ok(Version {
            major: number(1)?,
            minor: number(2)?,
            patch: number(3)?,
            before: part(4).to_owned(),
            metadata: part(5).to_owned(),
            original: text.to_owned(),
        })
    }

    fn compare(&self, other: &Version) -> Ordering {
        let numbers = |version: &Version| (version.major, version.minor, version.patch);
        numbers(self).cmp(&numbers(other)).then_with(|| compare_before(&self.before, &other.before))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.before.is_empty() {
            write!(f, "-{}", self.before)?;
        }
        if !self.metadata.is_empty() {
            write!(f, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

/// What comes before a release: without it is later than with it, numbers come before words.
fn compare_before(left: &str, right: &str) -> Ordering {
    if left.is_empty() || right.is_empty() {
        return left.is_empty().cmp(&right.is_empty());
    }
    let key = |identifier: &str| match identifier.parse::<u64>() {
        Ok(number) => (false, number, String::new()),
        Err(_) => (true, 0, identifier.to_owned()),
    };
    left.split('.').map(key).cmp(right.split('.').map(key))
}

/// What can be asked of a version with a dot.
pub(crate) fn method(version: &Rc<Version>, name: &str, arguments: &[Value]) -> Result<Value, Fault> {
    let other = match arguments {
        [] => None,
        [Value::Version(other)] => Some(version.compare(other)),
        _ => return Err(format!("{name} of a version wants a version").into()),
    };
    Ok(match (name, other) {
        ("Major", None) => Value::Uint64(version.major),
        ("Minor", None) => Value::Uint64(version.minor),
        ("Patch", None) => Value::Uint64(version.patch),
        ("Prerelease", None) => Value::text(&version.before),
        ("Metadata", None) => Value::text(&version.metadata),
        ("Original", None) => Value::text(&version.original),
        ("String", None) => Value::text(&version.to_string()),
        ("Compare", Some(order)) => Value::Int(order as i64),
        ("Equal", Some(order)) => Value::Bool(order.is_eq()),
        ("LessThan", Some(order)) => Value::Bool(order.is_lt()),
        ("GreaterThan", Some(order)) => Value::Bool(order.is_gt()),
        ("LessThanEqual", Some(order)) => Value::Bool(order.is_le()),
        ("GreaterThanEqual", Some(order)) => Value::Bool(order.is_ge()),
        _ => {
            let known = "Major, Minor, Patch, Prerelease, Metadata, Original, String, Compare";
            return Err(format!("a version has no {name} that is asked like this; it has {known}").into());
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    Tilde,
    Caret,
}

/// A condition on a version.
#[derive(Debug)]
struct Constraint {
    operator: Operator,
    version: Version,
    /// How many numbers were given: what is left out, or an `x`, stands for any.
    given: usize,
}

static CONSTRAINT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let number = r"[0-9]+|[xX*]";
    pattern(&format!(
        r"^(>=|=>|<=|=<|!=|~>|[=<>~^]|)\s*v?({number})(?:\.({number}))?(?:\.({number}))?(?:-({IDENTIFIERS}))?(?:\+{IDENTIFIERS})?"
    ))
});

/// Alternatives, each of which has conditions that all hold.
fn constraints(text: &str) -> Result<Vec<Vec<Constraint>>, Fault> {
    text.split("||").map(conjunction).collect()
}

fn conjunction(text: &str) -> Result<Vec<Constraint>, Fault> {
    let improper = || Fault::Message(format!("improper constraint: {text:?}; \">=1.2.3, <2\" is one"));
    let mut conditions: Vec<Constraint> = Vec::new();
    let mut rest = text.trim();
    loop {
        let found = CONSTRAINT.as_ref().and_then(|regex| regex.captures(rest)).ok_or_else(improper)?;
        let whole = found.get(0).map_or(0, |whole| whole.end());
        conditions.push(Constraint::new(&found)?);
        let after = &rest[whole..];
        let trimmed = after.trim_start();
        if trimmed.is_empty() {
            return Ok(conditions);
        }
        // `1.2 - 2.3`: from one to the other.
        if let Some(end) =
            trimmed.strip_prefix('-').filter(|end| after != trimmed && end.starts_with(char::is_whitespace))
        {
            rest = end.trim_start();
            let last = conditions.last_mut().ok_or_else(improper)?;
            let begins_with_number =
                rest.starts_with(|char: char| char.is_ascii_digit() || "vxX*".contains(char));
            if last.operator != Operator::Equal || !begins_with_number {
                return Err(improper());
            }
            last.operator = Operator::GreaterOrEqual;
            let found = CONSTRAINT.as_ref().and_then(|regex| regex.captures(rest)).ok_or_else(improper)?;
            let mut end = Constraint::new(&found)?;
            end.operator = Operator::LessOrEqual;
            conditions.push(end);
            let after = &rest[found.get(0).map_or(0, |whole| whole.end())..];
            rest = after.trim_start();
            if rest.is_empty() {
                return Ok(conditions);
            }
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            continue;
        }
        rest = match trimmed.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after != trimmed => trimmed,
            None => return Err(improper()),
        };
    }
}

impl Constraint {
    fn new(found: &regex::Captures<'_>) -> Result<Constraint, Fault> {
        let part = |index: usize| found.get(index).map_or("", |part| part.as_str());
        let is_number = |text: &str| text.starts_with(|char: char| char.is_ascii_digit());
        let given = (2..5).take_while(|index| is_number(part(*index))).count();
        let number = |index: usize| if index < 2 + given { part(index) } else { "0" };
        let before = if part(5).is_empty() { String::new() } else { format!("-{}", part(5)) };
        let version = Version::parse(&format!("{}.{}.{}{before}", number(2), number(3), number(4)))?;
        let operator = match part(1) {
            "" | "=" => Operator::Equal,
            "!=" => Operator::NotEqual,
            ">" => Operator::Greater,
            "<" => Operator::Less,
            ">=" | "=>" => Operator::GreaterOrEqual,
            "<=" | "=<" => Operator::LessOrEqual,
            "^" => Operator::Caret,
            _ => Operator::Tilde,
        };
        Ok(Constraint { operator, version, given })
    }

    fn holds(&self, version: &Version) -> bool {
        let wanted = &self.version;
        let exact = self.given == 3;
        // Whoever asks for releases does not want what comes before them.
        let unwanted = !version.before.is_empty() && wanted.before.is_empty();
        if unwanted && (self.operator != Operator::NotEqual || !exact) {
            return false;
        }
        let order = version.compare(wanted);
        match self.operator {
            Operator::Equal if exact => order.is_eq(),
            Operator::Equal | Operator::Tilde => self.tilde(version),
            Operator::NotEqual if exact || self.given == 0 => order.is_ne(),
            Operator::NotEqual => {
                let before = self.given == 2 && compare_before(&version.before, &wanted.before).is_ne();
                before || !self.begins_alike(version)
            }
            Operator::Greater if exact || self.given == 0 => order.is_gt(),
            Operator::Greater => order.is_gt() && !self.begins_alike(version),
            Operator::Less => order.is_lt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::LessOrEqual if exact => order.is_le(),
            Operator::LessOrEqual => match self.given {
                1 => version.major <= wanted.major,
                _ => (version.major, version.minor) <= (wanted.major, wanted.minor),
            },
            Operator::Caret => order.is_ge() && self.caret(version),
        }
    }

    /// Whether the numbers that were given are the same.
    fn begins_alike(&self, version: &Version) -> bool {
        let wanted = &self.version;
        let mut pairs = [(version.major, wanted.major), (version.minor, wanted.minor)]
            .into_iter()
            .take(self.given.max(1));
        pairs.all(|(left, right)| left == right)
    }

    /// The last number may grow, or the one before it if there are only two.
    fn tilde(&self, version: &Version) -> bool {
        let wanted = &self.version;
        let anything =
            (wanted.major, wanted.minor, wanted.patch) == (0, 0, 0) && (self.given == 3 || self.given == 0);
        let same_minor = self.given == 1 || version.minor == wanted.minor;
        version.compare(wanted).is_ge() && (anything || version.major == wanted.major && same_minor)
    }

    /// The first number that is not zero stays.
    fn caret(&self, version: &Version) -> bool {
        let wanted = &self.version;
        if self.given == 0 {
            return wanted.major == 0 && version.major == 0 && version.minor == 0 && version.patch == 0;
        }
        if wanted.major > 0 || self.given == 1 {
            return version.major == wanted.major;
        }
        if wanted.minor > 0 || self.given == 2 {
            return version.major == 0 && version.minor == wanted.minor;
        }
        (version.major, version.minor, version.patch) == (0, 0, wanted.patch)
    }
}
