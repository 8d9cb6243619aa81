//! How many requests are let through: buckets that fill as time goes by, of the whole gateway, of each Task, and of the
//! clients that a rule is for. Kept in the memory of each gateway process, so that several together let through as many
//! times more. Pure but for the buckets: the time is given.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use agentcube_api::agentcube::traffic::{
    ClientSelector, HeaderMatch, HeaderMatchType, RateLimit, RateLimitRule, RateLimitUnit, RateLimitingSpec,
};
use http::HeaderMap;
use http::header::HeaderName;
use parking_lot::Mutex;
use regex::bytes::{Regex, RegexBuilder};
use ring::digest::{Context, SHA256};
use tokio::time::Instant;

/// Buckets that are remembered of each limit, in each of two generations. Clients make up values, so there is a limit.
const MOST_BUCKETS: usize = 1 << 15;
/// The most that a regular expression may take when compiled, in bytes.
const LARGEST_EXPRESSION: usize = 256 << 10;

/// The limits of a gateway.
pub(crate) struct Limits {
    limits: Vec<Limit>,
    /// Those of each limit; one lock, so that a request is counted by all of them or by none.
    buckets: Mutex<Vec<Buckets>>,
    /// Why rules are not kept. The others are.
    pub(crate) broken: Option<String>,
}

/// The buckets of a limit that were used lately, and when each is full again: the sooner, the more is in it. When there
/// are too many, those of the generation before are forgotten, in one step however many they are. A limit's buckets push
/// out no other's, so what clients make up for one rule does not reset another.
#[derive(Default)]
struct Buckets {
    young: HashMap<Bucket, Instant>,
    old: HashMap<Bucket, Instant>,
}

impl Buckets {
    fn full_at(&self, bucket: &Bucket) -> Option<Instant> {
        self.young.get(bucket).or_else(|| self.old.get(bucket)).copied()
    }

    fn set(&mut self, bucket: Bucket, full: Instant) {
        if self.young.len() >= MOST_BUCKETS && !self.young.contains_key(&bucket) {
            std::mem::swap(&mut self.young, &mut self.old);
            // Keeps its room, so that nothing is moved while it fills.
            self.young.clear();
        }
        self.young.insert(bucket, full);
    }
}

struct Limit {
    /// What a client is told.
    name: String,
    of: Of,
    /// A bucket holds so many requests, and gets one more after each of these times.
    unit: Duration,
    step: Duration,
}

/// Which requests share a bucket.
enum Of {
    Gateway,
    Task,
    Clients(Vec<Selector>),
}

struct Selector {
    headers: Vec<(HeaderName, Compared)>,
    network: Option<Network>,
}

enum Compared {
    Exact(Vec<u8>),
    Expression(Regex),
    Distinct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: u128,
    mask: u128,
    v4: bool,
}

/// What tells the buckets of a limit apart.
type Bucket = [u8; 16];

/// When a limit is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before it is known who sends a request: who is refused is counted, too.
    Arrival,
    /// After that: limits that go by what the gateway says of who it is.
    Identified,
}

/// What limits look at.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) task: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) client: IpAddr,
}

/// A request is one too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) limit: String,
    pub(crate) after: Duration,
}

impl Limits {
    /// Reads them. A rule that cannot be read is left out, and the others are kept.
    pub(crate) fn new(spec: &RateLimitingSpec) -> Limits {
        let mut limits = Vec::new();
        limits.extend(spec.global.map(|limit| Limit::new("of the gateway".into(), Of::Gateway, limit)));
        limits.extend(spec.per_route.map(|limit| Limit::new("of the Task".into(), Of::Task, limit)));
        let mut broken = Vec::new();
        for rule in &spec.rules {
            match of_rule(rule) {
                Ok(limit) => limits.push(limit),
                Err(why) => broken.push(format!("rateLimiting.rules, {}: {why}", rule.name)),
            }
        }
        let broken = (!broken.is_empty())
            .then(|| format!("{}; these rules are not kept, all other limits are", broken.join("; ")));
        let buckets = limits.iter().map(|_| Buckets::default()).collect();
        Limits { limits, buckets: Mutex::new(buckets), broken }
    }

    /// Counts a request by the limits of this stage, or says why it is one too many; then none of them counts it. `told`
    /// are headers that the gateway sets itself: what goes by them has to wait until it has.
    pub(crate) fn take(
        &self,
        request: Request<'_>,
        stage: Stage,
        told: impl Fn(&HeaderName) -> bool,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let due = |limit: &Limit| limit.stage(&told) == stage;
        let applying: Vec<(usize, &Limit, Bucket)> = self
            .limits
            .iter()
            .enumerate()
            .filter(|(_, limit)| due(limit))
            .filter_map(|(number, limit)| Some((number, limit, limit.bucket(request)?)))
            .collect();
        if applying.is_empty() {
            return Ok(());
        }
        let mut buckets = self.buckets.lock();
        let mut taken = Vec::with_capacity(applying.len());
        for (number, limit, bucket) in applying {
            let full = buckets[number].full_at(&bucket).map_or(now, |full| full.max(now));
            let most = limit.unit.saturating_sub(limit.step);
            let missing = (full - now).saturating_sub(most);
            if !missing.is_zero() {
                return Err(Exceeded { limit: limit.name.clone(), after: missing });
            }
            taken.push((number, bucket, full + limit.step));
        }
        for (number, bucket, full) in taken {
            buckets[number].set(bucket, full);
        }
        Ok(())
    }
}

impl Limit {
    fn new(name: String, of: Of, limit: RateLimit) -> Limit {
        let unit = Duration::from_secs(match limit.unit {
            RateLimitUnit::Second => 1,
            RateLimitUnit::Minute => 60,
            RateLimitUnit::Hour => 60 * 60,
            RateLimitUnit::Day => 24 * 60 * 60,
        });
        let most = u32::try_from(limit.requests_per_unit).unwrap_or(1).max(1);
        let said = format!("{name}, {most} in each {:?}", limit.unit).to_lowercase();
        Limit { name: said, of, unit, step: unit / most }
    }

    fn stage(&self, told: impl Fn(&HeaderName) -> bool) -> Stage {
        let Of::Clients(selectors) = &self.of else { return Stage::Arrival };
        let mut names = selectors.iter().flat_map(|selector| &selector.headers).map(|(name, _)| name);
        if names.any(told) { Stage::Identified } else { Stage::Arrival }
    }

    /// What tells the bucket of a request apart; none if the limit is not for it.
    fn bucket(&self, request: Request<'_>) -> Option<Bucket> {
        let mut context = Context::new(&SHA256);
        let mut add = |part: &[u8]| {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        };
        match &self.of {
            Of::Gateway => {}
            Of::Task => add(request.task.as_bytes()),
            Of::Clients(selectors) => {
                for selector in selectors {
                    selector.apply(request, &mut add)?;
                }
            }
        }
        let mut bucket = [0; 16];
        bucket.copy_from_slice(&context.finish().as_ref()[..16]);
        Some(bucket)
    }
}

impl Selector {
    /// Gives what tells clients apart; none if the selector is not for this one.
    fn apply(&self, request: Request<'_>, tell: &mut impl FnMut(&[u8])) -> Option<()> {
        if self.network.is_some_and(|network| !network.contains(request.client)) {
            return None;
        }
        for (name, compared) in &self.headers {
            let mut values = request.headers.get_all(name).iter().map(|value| value.as_bytes()).peekable();
            match compared {
                Compared::Exact(wanted) => values.any(|value| value == wanted.as_slice()).then_some(())?,
                Compared::Expression(wanted) => values.any(|value| wanted.is_match(value)).then_some(())?,
                Compared::Distinct => {
                    values.peek()?;
                    values.for_each(&mut *tell);
                }
            }
        }
        Some(())
    }
}

fn of_rule(rule: &RateLimitRule) -> Result<Limit, String> {
    let selectors: Result<Vec<_>, _> = rule.client_selectors.iter().map(selector).collect();
    let name = format!("of rule {}", rule.name);
    Ok(Limit::new(name, Of::Clients(selectors?), rule.limit))
}

fn selector(spec: &ClientSelector) -> Result<Selector, String> {
    let headers: Result<Vec<_>, String> = spec.headers.iter().map(compared).collect();
    let network = spec.source_cidr.as_deref().map(|text| {
        Network::read(text).ok_or_else(|| format!("sourceCIDR {text} is no network, such as 10.0.0.0/8"))
    });
    Ok(Selector { headers: headers?, network: network.transpose()? })
}

fn compared(spec: &HeaderMatch) -> Result<(HeaderName, Compared), String> {
    let name = spec.name.parse().map_err(|_| format!("{:?} is no name of a header", spec.name))?;
    let value = spec.value.as_deref().unwrap_or_default();
    let compared = match spec.type_ {
        HeaderMatchType::Exact => Compared::Exact(value.as_bytes().to_vec()),
        HeaderMatchType::Distinct => Compared::Distinct,
        HeaderMatchType::RegularExpression => {
            // The whole value, as Envoy has it.
            let whole = RegexBuilder::new(&format!("^(?:{value})$")).size_limit(LARGEST_EXPRESSION).build();
            Compared::Expression(
                whole.map_err(|_| format!("{value:?} is no regular expression, or too large"))?,
            )
        }
    };
    Ok((name, compared))
}

impl Network {
    fn read(text: &str) -> Option<Network> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(bits);
        let host = bits.checked_sub(length)?;
        let mask = u128::MAX.checked_shl(host).unwrap_or(0);
        Some(Network { address: number(address) & mask, mask, v4: address.is_ipv4() })
    }

    fn contains(self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_ipv4() == self.v4 && number(client) & self.mask == self.address
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn limits(spec: Value) -> Limits {
        Limits::new(&serde_json::from_value(spec).unwrap())
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn client() -> IpAddr {
        [10, 1, 2, 3].into()
    }

    fn take(limits: &Limits, task: &str, headers: &HeaderMap, now: Instant) -> Result<(), Exceeded> {
        limits.take(Request { task, headers, client: client() }, Stage::Arrival, |_| false, now)
    }

    #[test]
    fn a_bucket_fills_as_time_goes_by() {
        let limits = limits(json!({ "global": { "requestsPerUnit": 3, "unit": "Minute" } }));
        let (now, none) = (Instant::now(), HeaderMap::new());
        let at = |seconds: u64| take(&limits, "a", &none, now + Duration::from_secs(seconds));
        assert_eq!([at(0), at(0), at(0)], [Ok(()), Ok(()), Ok(())]);
        let exceeded = at(0).unwrap_err();
        assert_eq!(exceeded.after, Duration::from_secs(20));
        assert_eq!(exceeded.limit, "of the gateway, 3 in each minute");
        assert_eq!(at(19).unwrap_err().after, Duration::from_secs(1), "what is refused is not counted");
        assert_eq!((at(20), at(20).is_err()), (Ok(()), true));
        assert_eq!([at(600), at(600), at(600), at(600)].iter().filter(|it| it.is_ok()).count(), 3);
    }

    #[test]
    fn tasks_and_clients_have_buckets_of_their_own_and_the_strictest_counts() {
        let hour = |most: u32| json!({ "requestsPerUnit": most, "unit": "Hour" });
        let limits = limits(json!({
            "global": hour(5), "perRoute": hour(3),
            "rules": [
                { "name": "tenants", "limit": hour(1),
                    "clientSelectors": [{ "headers": [{ "type": "Distinct", "name": "X-Tenant" }] }] },
                { "name": "bots", "limit": hour(1), "clientSelectors": [
                    { "headers": [{ "type": "RegularExpression", "name": "user-agent", "value": ".*bot" }], "sourceCIDR": "10.0.0.0/8" }] },
                { "name": "far", "limit": hour(1), "clientSelectors": [{ "sourceCIDR": "192.168.0.0/16" }] },
            ],
        }));
        let now = Instant::now();
        let at = |task: &str, pairs: &[(&'static str, &str)]| {
            take(&limits, task, &headers(pairs), now).map_err(|exceeded| exceeded.limit)
        };
        assert_eq!(at("a", &[("x-tenant", "one")]), Ok(()));
        assert_eq!(at("a", &[("x-tenant", "one")]), Err("of rule tenants, 1 in each hour".into()));
        assert_eq!(at("a", &[("x-tenant", "two")]), Ok(()));
        assert_eq!(at("a", &[("user-agent", "a robot")]), Ok(()), "and a third of Task a");
        assert_eq!(at("a", &[]), Err("of the task, 3 in each hour".into()));
        assert_eq!(at("b", &[("user-agent", "another bot")]), Err("of rule bots, 1 in each hour".into()));
        assert_eq!(at("b", &[("user-agent", "bots")]), Ok(()), "the whole value is compared");
        assert_eq!(at("c", &[]), Ok(()));
        assert_eq!(at("d", &[]), Err("of the gateway, 5 in each hour".into()));
    }

    #[test]
    fn clients_that_make_values_up_do_not_fill_memory() {
        let limits =
            limits(json!({ "rules": [{ "name": "each", "limit": { "requestsPerUnit": 1, "unit": "Hour" },
            "clientSelectors": [{ "headers": [{ "type": "Distinct", "name": "x" }] }] }] }));
        let now = Instant::now();
        let at = |value: &str, now: Instant| take(&limits, "a", &headers(&[("x", value)]), now).is_ok();
        for n in 0..3 * MOST_BUCKETS {
            assert!(at(&n.to_string(), now), "each has a bucket of its own, however many there are");
        }
        let kept = |limits: &Limits| {
            limits.buckets.lock().iter().map(|one| one.young.len() + one.old.len()).sum::<usize>()
        };
        assert!(kept(&limits) <= 2 * MOST_BUCKETS);
        assert!(!at(&(3 * MOST_BUCKETS - 1).to_string(), now) && !at(&(2 * MOST_BUCKETS).to_string(), now));
    }

    #[test]
    fn what_clients_make_up_for_one_rule_does_not_reset_another() {
        let rule = |name: &str, header: &str, most: u32| {
            json!({ "name": name, "limit": { "requestsPerUnit": most, "unit": "Hour" },
                "clientSelectors": [{ "headers": [{ "type": "Distinct", "name": header }] }] })
        };
        let limits = limits(json!({ "rules": [rule("made-up", "x", 9), rule("users", "user", 1)] }));
        let now = Instant::now();
        assert!(take(&limits, "a", &headers(&[("user", "ada")]), now).is_ok());
        for n in 0..3 * MOST_BUCKETS {
            assert!(take(&limits, "a", &headers(&[("x", &n.to_string())]), now).is_ok());
        }
        assert!(take(&limits, "a", &headers(&[("user", "ada")]), now).is_err());
    }

    #[test]
    fn only_what_goes_by_the_gateways_word_waits_for_it() {
        let hour = json!({ "requestsPerUnit": 1, "unit": "Hour" });
        let rule = |name: &str, selector: Value| json!({ "name": name, "limit": hour, "clientSelectors": [selector] });
        let header = |name: &str| json!({ "headers": [{ "type": "Distinct", "name": name }] });
        let limits = limits(json!({ "rules": [
            rule("users", header("x-user")), rule("keys", header("x-key")), rule("near", json!({ "sourceCIDR": "10.0.0.0/8" })),
        ] }));
        let now = Instant::now();
        let given = headers(&[("x-user", "ada"), ("x-key", "1")]);
        let at = |stage: Stage| {
            let request = Request { task: "a", headers: &given, client: client() };
            limits.take(request, stage, |name| name == "x-user", now).map_err(|it| it.limit)
        };
        assert_eq!((at(Stage::Arrival), at(Stage::Identified)), (Ok(()), Ok(())));
        assert_eq!(at(Stage::Arrival), Err("of rule keys, 1 in each hour".into()));
        assert_eq!(at(Stage::Identified), Err("of rule users, 1 in each hour".into()));
    }

    #[test]
    fn networks() {
        let contains = |network: &str, client: &str| {
            Network::read(network).map(|network| network.contains(client.parse().unwrap()))
        };
        assert_eq!(contains("10.0.0.0/8", "10.9.9.9"), Some(true));
        assert_eq!(contains("10.0.0.0/8", "::ffff:10.9.9.9"), Some(true));
        assert_eq!(contains("10.1.2.3", "10.1.2.4"), Some(false));
        assert_eq!(contains("0.0.0.0/0", "1.2.3.4"), Some(true));
        assert_eq!(contains("0.0.0.0/0", "::1"), Some(false));
        assert_eq!(contains("2001:db8::/32", "2001:db8:1::1"), Some(true));
        assert_eq!(contains("::/0", "2001:db8:1::1"), Some(true));
        for bad in ["10.0.0.0/33", "10.0.0/8", "::/129", "x", "10.0.0.0/-1", ""] {
            assert_eq!(Network::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_so() {
        let rule = |selector: Value| {
            let spec = json!({ "rules": [{ "name": "r", "limit": { "requestsPerUnit": 1, "unit": "Day" }, "clientSelectors": [selector] }] });
            limits(spec).broken.unwrap_or_default()
        };
        let expression = |value: &str| {
            rule(json!({ "headers": [{ "type": "RegularExpression", "name": "a", "value": value }] }))
        };
        assert!(expression("(").contains("no regular expression"));
        assert!(expression("(a{1000}){1000}").contains("too large"));
        assert!(rule(json!({ "sourceCIDR": "here" })).contains("no network"));
        assert!(rule(json!({ "headers": [{ "name": "a b" }] })).contains("no name of a header"));
    }

    #[test]
    fn one_that_cannot_be_read_does_not_take_the_others_with_it() {
        let hour = json!({ "requestsPerUnit": 1, "unit": "Hour" });
        let rule = |name: &str, network: &str| json!({ "name": name, "limit": hour, "clientSelectors": [{ "sourceCIDR": network }] });
        let limits =
            limits(json!({ "perRoute": hour, "rules": [rule("bad", "here"), rule("good", "10.0.0.0/8")] }));
        let said = limits.broken.clone().unwrap();
        assert!(said.contains("bad: sourceCIDR here") && !said.contains("good"), "{said}");
        let (now, none) = (Instant::now(), HeaderMap::new());
        assert!(take(&limits, "a", &none, now).is_ok());
        let limit = |task: &str| take(&limits, task, &none, now).map_err(|exceeded| exceeded.limit);
        assert_eq!(limit("a"), Err("of the task, 1 in each hour".into()));
        assert_eq!(limit("b"), Err("of rule good, 1 in each hour".into()));
    }

    proptest! {
        /// In any stretch of one unit, at most twice the limit comes through: what was left, and what came back.
        #[test]
        fn no_more_than_promised(most in 1_u32..20, gaps in prop::collection::vec(0_u64..500, 1..200)) {
            let limits = limits(json!({ "global": { "requestsPerUnit": most, "unit": "Second" } }));
            let (begin, none) = (Instant::now(), HeaderMap::new());
            let mut at = Duration::ZERO;
            let mut passed = Vec::new();
            for gap in gaps {
                at += Duration::from_millis(gap);
                if take(&limits, "a", &none, begin + at).is_ok() {
                    passed.push(at);
                }
            }
            for first in &passed {
                let within = passed.iter().filter(|at| *at >= first && **at < *first + Duration::from_secs(1));
                prop_assert!(within.count() <= 2 * most as usize);
            }
        }
    }
}
