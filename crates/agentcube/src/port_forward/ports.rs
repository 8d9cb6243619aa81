//! Which port is meant: as it is written, as a Service has it, as a Pod has it. Pure.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A port by number or by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Port {
    Number(u16),
    Name(String),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

impl Port {
    /// From an entry of an object, where it is a number or a string.
    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(name) => Some(Self::Name(name.clone())),
            number => u16::try_from(number.as_u64()?).ok().filter(|port| *port > 0).map(Self::Number),
        }
    }

    /// Whether an entry with this number and name is meant.
    fn means(&self, number: &Value, name: &Value) -> bool {
        match self {
            Self::Number(own) => *number == *own,
            Self::Name(own) => *name == *own,
        }
    }
}

/// `[LOCAL:]REMOTE` as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    /// 0 is any free port; `None` the same number as the remote one.
    pub(super) local: Option<u16>,
    pub(super) remote: Port,
}

impl FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, remote) =
            match text.split_once(':') {
                Some(("", remote)) => (Some(0), remote),
                Some((local, remote)) => {
                    let number = local.parse();
                    (
                        Some(number.map_err(|_| {
                            format!("{local:?} is not a port of this machine: use 0 to 65535")
                        })?),
                        remote,
                    )
                }
                None => (None, text),
            };
        let remote = match remote.parse() {
            Ok(0) => return Err("a Pod has no port 0".to_owned()),
            Ok(number) => Port::Number(number),
            Err(_) if is_name(remote) => Port::Name(remote.to_owned()),
            Err(_) => return Err(format!("{remote:?} is neither a port's number nor its name")),
        };
        Ok(Self { local, remote })
    }
}

/// As Kubernetes lets ports be called.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&text.len())
        && text.bytes().all(allowed)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// What a target does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{whose} has no port {port}; it has: {has}")]
pub(super) struct Unknown {
    whose: String,
    port: Port,
    has: String,
}

fn unknown<'a>(whose: &str, port: &Port, has: impl Iterator<Item = (&'a Value, &'a Value)>) -> Unknown {
    let entry = |(number, name): (&Value, &Value)| match name.as_str() {
        Some(name) if !name.is_empty() => format!("{number} ({name})"),
        _ => number.to_string(),
    };
    let mut entries = has.map(entry).collect::<Vec<_>>().join(", ");
    if entries.is_empty() {
        entries = "none that are named".to_owned();
    }
    Unknown { whose: whose.to_owned(), port: port.clone(), has: entries }
}

/// The port of a Service: the number that clients use, and where it leads in its Pods.
pub(super) fn of_service(service: &Value, called: &str, port: &Port) -> Result<(u16, Port), Unknown> {
    let entries = || service["spec"]["ports"].as_array().into_iter().flatten();
    let found = entries().find(|entry| port.means(&entry["port"], &entry["name"]));
    let read = |entry: &Value| {
        let own = Port::read(&entry["port"])?;
        let target = Port::read(&entry["targetPort"]).unwrap_or_else(|| own.clone());
        match own {
            Port::Number(number) => Some((number, target)),
            Port::Name(_) => None,
        }
    };
    found
        .and_then(read)
        .ok_or_else(|| unknown(called, port, entries().map(|entry| (&entry["port"], &entry["name"]))))
}

/// The number of a Pod's port. A number need not be declared: any port can be listened on.
pub(super) fn of_pod(pod: &Value, port: &Port) -> Result<u16, Unknown> {
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    let spec = &pod["spec"];
    let containers = ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array());
    let entries: Vec<&Value> =
        containers.flatten().filter_map(|container| container["ports"].as_array()).flatten().collect();
    let found = entries.iter().find(|entry| entry["name"] == *name);
    match found.and_then(|entry| Port::read(&entry["containerPort"])) {
        Some(Port::Number(number)) => Ok(number),
        _ => {
            let called = format!("pod/{}", crate::pods::name(pod));
            Err(unknown(&called, port, entries.iter().map(|entry| (&entry["containerPort"], &entry["name"]))))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn number(number: u16) -> Port {
        Port::Number(number)
    }

    fn name(name: &str) -> Port {
        Port::Name(name.to_owned())
    }

    #[test]
    fn mappings_are_read() {
        for (text, local, remote) in [
            ("8080", None, number(8080)),
            ("80:8080", Some(80), number(8080)),
            (":8080", Some(0), number(8080)),
            ("0:8080", Some(0), number(8080)),
            ("http", None, name("http")),
            ("8080:http", Some(8080), name("http")),
        ] {
            assert_eq!(text.parse(), Ok(Mapping { local, remote }), "{text}");
        }
        for text in
            ["", ":", "0", "80:0", "http:80", "80:70000", "80:8080:90", "-1", "80:HTTP", "1:a_b", "70000:1"]
        {
            assert!(text.parse::<Mapping>().is_err(), "{text}");
        }
    }

    #[test]
    fn services_lead_to_ports_of_pods() {
        let service = json!({"spec": {"ports": [
            {"name": "http", "port": 80, "targetPort": "web"},
            {"name": "admin", "port": 81, "targetPort": 9000},
            {"port": 82},
        ]}});
        for (asked, expected) in [
            (number(80), (80, name("web"))),
            (name("http"), (80, name("web"))),
            (name("admin"), (81, number(9000))),
            (number(82), (82, number(82))),
        ] {
            assert_eq!(of_service(&service, "service/a", &asked), Ok(expected), "{asked}");
        }
        let error = of_service(&service, "service/a", &number(9000)).unwrap_err();
        assert_eq!(error.to_string(), "service/a has no port 9000; it has: 80 (http), 81 (admin), 82");
    }

    #[test]
    fn names_are_those_of_the_pods_containers() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {
            "initContainers": [{"ports": [{"name": "side", "containerPort": 7000}]}],
            "containers": [{}, {"ports": [{"name": "web", "containerPort": 8080}]}],
        }});
        assert_eq!(of_pod(&pod, &number(1)), Ok(1));
        assert_eq!(of_pod(&pod, &name("web")), Ok(8080));
        assert_eq!(of_pod(&pod, &name("side")), Ok(7000));
        let error = of_pod(&pod, &name("http")).unwrap_err().to_string();
        assert_eq!(error, "pod/a has no port \"http\"; it has: 8080 (web), 7000 (side)");
        let error = of_pod(&json!({"metadata": {"name": "b"}}), &name("http")).unwrap_err().to_string();
        assert_eq!(error, "pod/b has no port \"http\"; it has: none that are named");
    }
}
