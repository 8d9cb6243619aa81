//! Signals by name, as images and Pods write them.

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

pub const TERM: i32 = 15;
pub const KILL: i32 = 9;

/// `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`: its number, if there is such a signal.
pub fn number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let offset = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse::<i32>().ok()? };
        return (0..=30).contains(&offset).then_some(34 + offset);
    }
    let place = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(place).ok().map(|place| place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let table =
            [("SIGTERM", 15), ("term", 15), ("9", 9), ("SIGSYS", 31), ("SIGRTMIN+3", 37), ("CHLD", 17)];
        for (name, expected) in table {
            assert_eq!(number(name), Some(expected), "{name}");
        }
        for name in ["", "SIG", "0", "65", "RTMIN+31", "RTMIN-1", "SIGTERMX"] {
            assert_eq!(number(name), None, "{name}");
        }
    }
}
