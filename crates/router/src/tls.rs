//! TLS of listeners: certificates out of Secrets, chosen by the name that a client asks for. Pure but for what rustls
//! keeps. A listener whose certificates cannot be read is not served; others go on.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use agentcube_api::agentcube::gateway::TlsVersion;
use gateway_api::gateways::{GatewayListeners, GatewayListenersTlsMode};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::route::{GatewayId, HostPattern};

/// Secrets of this type are for servers.
pub(crate) const SECRET_TYPE: &str = "kubernetes.io/tls";

/// Which versions a listener speaks, from and to.
pub(crate) type Versions = (Option<TlsVersion>, Option<TlsVersion>);

/// Why a listener has no certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// A reference leads to nothing of use.
    Invalid(String),
    /// A reference leads where it may not.
    Forbidden(String),
}

/// What a listener with TLS serves.
#[derive(Clone)]
pub(crate) struct Served {
    host: HostPattern,
    made_of: MadeOf,
    pairs: Arc<Pairs>,
    config: Arc<ServerConfig>,
}

/// What tells whether certificates are still the same.
#[derive(Clone, Debug, PartialEq)]
struct MadeOf {
    /// UIDs and versions of the Secrets.
    secrets: Vec<(Option<String>, Option<String>)>,
    versions: Versions,
}

impl Served {
    /// Reads the certificates of a listener. What has not changed is taken over, with the sessions of its clients.
    pub(crate) fn new(
        listener: &GatewayListeners,
        namespace: &str,
        versions: Versions,
        secret: impl Fn(&str) -> Option<Arc<Secret>>,
        before: &[Served],
    ) -> Result<Served, Unresolved> {
        let tls = listener.tls.as_ref();
        if tls
            .and_then(|tls| tls.mode.as_ref())
            .is_some_and(|mode| *mode != GatewayListenersTlsMode::Terminate)
        {
            return Err(Unresolved::Invalid(
                "TLS has to end at the gateway: set tls.mode to Terminate".into(),
            ));
        }
        let references = tls.and_then(|tls| tls.certificate_refs.as_deref()).unwrap_or_default();
        let mut secrets = Vec::new();
        for reference in references {
            let core = reference.group.as_deref().unwrap_or_default().is_empty();
            let kind = reference.kind.as_deref().unwrap_or("Secret");
            if !core || kind != "Secret" {
                return Err(Unresolved::Invalid(format!("{kind} {} is no Secret", reference.name)));
            }
            if let Some(other) = reference.namespace.as_deref().filter(|other| *other != namespace) {
                return Err(Unresolved::Forbidden(format!(
                    "Secret {other}/{}: the built-in gateway takes certificates from the Gateway's own namespace",
                    reference.name
                )));
            }
            let found = secret(&reference.name).ok_or_else(|| {
                Unresolved::Invalid(format!("there is no Secret {} of type {SECRET_TYPE}", reference.name))
            })?;
            secrets.push(found);
        }
        let host = HostPattern::read(listener.hostname.as_deref());
        let version = |secret: &Arc<Secret>| (secret.uid(), secret.resource_version());
        let made_of = MadeOf { secrets: secrets.iter().map(version).collect(), versions };
        if let Some(same) = before.iter().find(|before| before.host == host && before.made_of == made_of) {
            return Ok(same.clone());
        }
        let pairs: Result<Vec<Pair>, Unresolved> = secrets.iter().map(|secret| Pair::read(secret)).collect();
        let pairs = Arc::new(Pairs(pairs?));
        let config = config(pairs.clone(), versions).map_err(Unresolved::Invalid)?;
        Ok(Served { host, made_of, pairs, config: Arc::new(config) })
    }
}

fn config(pairs: Arc<Pairs>, versions: Versions) -> Result<ServerConfig, String> {
    if pairs.0.is_empty() {
        return Err("tls.certificateRefs names no Secret".into());
    }
    let all: [(TlsVersion, &'static SupportedProtocolVersion); 2] =
        [(TlsVersion::V1_2, &rustls::version::TLS12), (TlsVersion::V1_3, &rustls::version::TLS13)];
    let (least, most) = versions;
    let spoken: Vec<_> = all
        .into_iter()
        .filter(|(version, _)| least.is_none_or(|least| *version >= least))
        .filter(|(version, _)| most.is_none_or(|most| *version <= most))
        .map(|(_, version)| version)
        .collect();
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&spoken)
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(pairs);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A certificate with its key.
struct Pair {
    certificate: CertificateDer<'static>,
    key: Arc<CertifiedKey>,
}

impl Pair {
    fn read(secret: &Secret) -> Result<Pair, Unresolved> {
        let bad = |why: &str| Unresolved::Invalid(format!("Secret {}: {why}", secret.name_any()));
        let part =
            |name: &str| secret.data.as_ref().and_then(|data| data.get(name)).map(|part| part.0.as_slice());
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(part("tls.crt").unwrap_or_default()).collect();
        let chain = chain.map_err(|_| bad("tls.crt is not PEM"))?;
        let certificate = chain.first().cloned().ok_or_else(|| bad("tls.crt has no certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(part("tls.key").unwrap_or_default())
            .map_err(|_| bad("tls.key has no private key"))?;
        let key = CertifiedKey::from_der(chain, key, &default_provider())
            .map_err(|_| bad("tls.key is not the key of tls.crt, or of a kind that is not known"))?;
        Ok(Pair { certificate, key: Arc::new(key) })
    }

    fn is_for(&self, name: &ServerName<'_>) -> bool {
        ParsedCertificate::try_from(&self.certificate)
            .is_ok_and(|parsed| verify_server_name(&parsed, name).is_ok())
    }
}

/// The certificates of a listener: that of the name asked for, or else the first, of a kind that the client knows.
struct Pairs(Vec<Pair>);

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} certificates", self.0.len())
    }
}

impl ResolvesServerCert for Pairs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let known = |pair: &&Pair| pair.key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| self.0.iter().filter(known).find(|pair| pair.is_for(&name)));
        named.or_else(|| self.0.iter().find(known)).map(|pair| pair.key.clone())
    }
}

impl Pairs {
    /// The number of the one for a name, whatever a client knows; the first if there is none.
    fn of(&self, name: &str) -> usize {
        let name = ServerName::try_from(name).ok();
        name.and_then(|name| self.0.iter().position(|pair| pair.is_for(&name))).unwrap_or(0)
    }
}

/// All listeners with TLS of a port, of all Gateways that share it. Of several for a name that fit equally well, the
/// older Gateway's has it: nobody takes a name over by coming later.
#[derive(Default)]
pub(crate) struct Listeners(RwLock<BTreeMap<GatewayId, Shown>>);

/// What a Gateway shows.
#[derive(Clone, Default)]
struct Shown {
    /// When it was created, in seconds since 1970.
    since: i64,
    served: Vec<Served>,
}

impl Listeners {
    pub(crate) fn set(&self, gateway: &GatewayId, since: i64, served: Vec<Served>) {
        self.0.write().insert(gateway.clone(), Shown { since, served });
    }

    pub(crate) fn remove(&self, gateway: &GatewayId) {
        self.0.write().remove(gateway);
    }

    pub(crate) fn of(&self, gateway: &GatewayId) -> Vec<Served> {
        self.0.read().get(gateway).map(|shown| shown.served.clone()).unwrap_or_default()
    }

    /// The listener for a name; none if no listener has it. A client that asks for none gets one for any, if there is
    /// one.
    fn find<T>(&self, name: &str, show: impl FnOnce(&GatewayId, usize, &Served) -> T) -> Option<T> {
        let listeners = self.0.read();
        let all = listeners.iter().flat_map(|(gateway, shown)| {
            let numbered = shown.served.iter().enumerate();
            numbered.map(move |(number, served)| (gateway, shown.since, number, served))
        });
        let best = all
            .filter_map(|(gateway, since, number, served)| {
                let fit = served.host.fits(name)?;
                Some(((fit, Reverse((since, gateway, number))), served))
            })
            .max_by_key(|(rank, _)| *rank);
        best.map(|((_, Reverse((_, gateway, number))), served)| show(gateway, number, served))
    }

    /// Which listener, and which of its certificates, is for a name. Without a name certificates are not told apart:
    /// whoever names none gets the first.
    fn place(&self, name: &str, certificate: bool) -> Option<(GatewayId, usize, usize)> {
        self.find(name, |gateway, number, served| {
            (gateway.clone(), number, if certificate { served.pairs.of(name) } else { 0 })
        })
    }
}

/// How a client began to speak TLS: the name that it asked for, among these listeners.
pub(crate) struct Greeting {
    name: String,
    listeners: Arc<Listeners>,
}

impl Greeting {
    pub(crate) fn new(name: Option<&str>, listeners: Arc<Listeners>) -> Greeting {
        let name = name.unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        Greeting { name, listeners }
    }

    /// How to speak with the client.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.listeners.find(&self.name, |_, _, served| served.config.clone())
    }

    /// Whether a request for this host may come by the connection: it would have got the same listener and the same
    /// certificate. Otherwise it would come in by the rules of one listener and be served by those of another.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let named = !self.name.is_empty();
        self.name == host || self.listeners.place(&self.name, named) == self.listeners.place(host, named)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn served(host: &str, names: &[&str]) -> Served {
        let pair = |name: &&str| {
            let key = KeyPair::generate().unwrap();
            let certificate =
                CertificateParams::new([(*name).to_owned()]).unwrap().self_signed(&key).unwrap();
            let chain = vec![certificate.der().clone()];
            let der = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
            let key = CertifiedKey::from_der(chain, der, &default_provider()).unwrap();
            Pair { certificate: certificate.der().clone(), key: Arc::new(key) }
        };
        let pairs = Arc::new(Pairs(names.iter().map(pair).collect()));
        let config = Arc::new(config(pairs.clone(), (None, None)).unwrap());
        let made_of = MadeOf { secrets: Vec::new(), versions: (None, None) };
        Served { host: HostPattern::read(Some(host)), made_of, pairs, config }
    }

    fn id(name: &str) -> GatewayId {
        GatewayId { namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn the_older_gateway_has_a_name() {
        let of = |order: [(&str, i64); 3]| {
            let listeners = Arc::new(Listeners::default());
            for (name, since) in order {
                listeners.set(&id(name), since, vec![served("*.a.example", &["x.a.example"])]);
            }
            listeners.place("x.a.example", true).unwrap().0.name.to_string()
        };
        // Many times, since a map of another kind would be right now and then.
        for _ in 0..8 {
            assert_eq!(of([("a", 9), ("b", 5), ("c", 7)]), "b");
            assert_eq!(of([("c", 5), ("b", 5), ("a", 5)]), "a");
        }
    }

    #[test]
    fn a_connection_is_for_what_has_its_listener_and_certificate() {
        let listeners = Arc::new(Listeners::default());
        let one = served("*.a.example", &["x.a.example", "*.a.example"]);
        listeners.set(&id("one"), 1, vec![one, served("z.a.example", &["z.a.example"])]);
        listeners.set(&id("two"), 2, vec![served("", &["any.example"])]);
        let greeting = |name: Option<&str>| Greeting::new(name, listeners.clone());
        let by_x = greeting(Some("X.a.example"));
        assert!(by_x.is_for("x.a.example"));
        assert!(!by_x.is_for("y.a.example"), "another certificate");
        assert!(!by_x.is_for("z.a.example"), "another listener");
        assert!(!by_x.is_for("b.example"), "another gateway");
        let by_y = greeting(Some("y.a.example"));
        assert!(by_y.is_for("w.a.example") && !by_y.is_for("x.a.example"), "they share one");
        let by_none = greeting(None);
        assert!(by_none.is_for("b.example") && by_none.is_for("127.0.0.1") && !by_none.is_for("x.a.example"));
    }
}
