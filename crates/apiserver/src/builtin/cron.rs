//! CronJobs, and the syntax of their schedules.

use serde_json::Value;

use super::access::{Errors, Path, Peek, Poke};
use super::{PLAIN, Strategy, job, pod};

pub(crate) const CRON_JOB: Strategy = Strategy {
    defaults: |cron| {
        let Some(spec) = cron.part("spec") else { return };
        if let Some(job) = spec.part("jobTemplate").and_then(|template| template.part("spec")) {
            pod::template_defaults(job);
        }
        spec.fill_str("concurrencyPolicy", "Allow");
        spec.fill("suspend", false);
        spec.fill("successfulJobsHistoryLimit", 3);
        spec.fill("failedJobsHistoryLimit", 1);
    },
    validate: |cron, errors| {
        validate(cron, errors);
        let name = cron.sub("metadata").str_of("name");
        // A job's name is the name of its CronJob and eleven more characters.
        if name.len() > 52 {
            errors.push(
                Path::root("metadata").child("name").invalid(name, "must be no more than 52 characters"),
            );
        }
    },
    validate_update: |new, _, errors| validate(new, errors),
    ..PLAIN
};

fn validate(cron: &Value, errors: &mut Errors) {
    let (spec, path) = (cron.sub("spec"), Path::root("spec"));
    let schedule = spec.str_of("schedule");
    if schedule.is_empty() {
        errors.push(path.child("schedule").required(""));
    } else if let Err(message) = check(schedule) {
        errors.push(path.child("schedule").invalid(schedule, message));
    }
    if schedule.contains("TZ") {
        errors.push(
            path.child("schedule")
                .invalid(schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
        );
    }
    time_zone(spec, &path.child("timeZone"), errors);
    path.not_negative(spec, "startingDeadlineSeconds", errors);
    path.one_of(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"], errors);
    path.not_negative(spec, "successfulJobsHistoryLimit", errors);
    path.not_negative(spec, "failedJobsHistoryLimit", errors);
    let path = path.child("jobTemplate");
    job::validate_spec(spec.sub("jobTemplate").sub("spec"), &path.child("spec"), errors);
}

/// The areas of the time zone database. The names below them are not known here and taken as they are.
const AREAS: &[&str] = &[
    "Africa",
    "America",
    "Antarctica",
    "Arctic",
    "Asia",
    "Atlantic",
    "Australia",
    "Brazil",
    "Canada",
    "Chile",
    "Etc",
    "Europe",
    "Indian",
    "Mexico",
    "Pacific",
    "US",
];

fn time_zone(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(zone) = spec.sub("timeZone").as_str() else { return };
    if zone.is_empty() {
        errors.push(path.invalid(zone, "timeZone must be nil or non-empty string"));
        return;
    }
    if zone.eq_ignore_ascii_case("local") {
        errors.push(path.invalid(
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        ));
    }
    let known = match zone.split_once('/') {
        Some((area, rest)) => AREAS.contains(&area) && !rest.is_empty(),
        None => zone.chars().next().is_some_and(|first| first.is_ascii_uppercase()),
    };
    if !known {
        errors.push(path.invalid(zone, format!("unknown time zone {zone}")));
    }
}

/// The five fields: lowest and highest value, and names from the lowest on.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// What is wrong with a schedule, in the words of the cron library that the real server uses.
fn check(schedule: &str) -> Result<(), String> {
    let mut text = schedule;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        text = text.split_once(' ').map_or("", |(_, rest)| rest.trim());
    }
    if text.starts_with('@') {
        return descriptor(text);
    }
    let parts: Vec<&str> = text.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
    }
    for (part, (low, high, names)) in parts.iter().zip(FIELDS) {
        for range in part.split(',').filter(|range| !range.is_empty()) {
            check_range(range, low, high, names)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_duration(duration) => Ok(()),
            Some(duration) => {
                Err(format!("failed to parse duration {text}: time: invalid duration {duration:?}"))
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// `1h30m`, `90s`, `1.5h`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 {
            return false;
        }
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        if !["ns", "us", "µs", "ms", "s", "m", "h"].contains(&&rest[..unit]) {
            return false;
        }
        rest = &rest[unit..];
        any = true;
    }
    any
}

fn check_range(range: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let parts: Vec<&str> = range.split('/').collect();
    let bounds: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end);
    if bounds[0] == "*" || bounds[0] == "?" {
        (start, end) = (low, high);
    } else {
        start = number(bounds[0], low, names)?;
        end = match bounds.len() {
            1 => start,
            2 => number(bounds[1], low, names)?,
            _ => return Err(format!("too many hyphens: {range}")),
        };
    }
    let step = match parts.len() {
        1 => 1,
        2 => {
            if bounds.len() == 1 {
                end = high;
            }
            number(parts[1], 0, &[])?
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok(())
}

fn number(text: &str, low: u32, names: &[&str]) -> Result<u32, String> {
    if let Some(index) = names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        return Ok(low + u32::try_from(index).unwrap_or_default());
    }
    text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for fine in ["* * * * *", "*/5 0-6 1,15 jan-mar MON", "@daily", "@every 1h30m", "0 0 ? * 0"] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for wrong in ["", "a", "* * * * 7", "1-2-3 * * * *", "*/1/2 * * * *", "@every x", "@every"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
