//! The server's certificate and the token that opens it: made once, kept in the data directory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub(crate) struct Credentials {
    pub(crate) token: String,
    pub(crate) ca_pem: String,
    pub(crate) tls: Arc<ServerConfig>,
}

impl Credentials {
    /// Reads them from a data directory, or makes them; without a directory they are new each time.
    pub(crate) fn load(directory: Option<&Path>) -> Result<Self, String> {
        let kept = match directory {
            Some(directory) => read(directory)?,
            None => None,
        };
        let files = match kept {
            Some(files) => files,
            None => {
                let files = Files::generate().map_err(|e| e.to_string())?;
                if let Some(directory) = directory {
                    files.write(directory).map_err(|e| e.to_string())?;
                }
                files
            }
        };
        files.into_credentials()
    }

    /// Compares in constant time, so that the answer's delay says nothing about the token.
    pub(crate) fn admits(&self, authorization: &str) -> bool {
        let Some(presented) = authorization.strip_prefix("Bearer ") else { return false };
        let presented = ring::digest::digest(&ring::digest::SHA256, presented.trim().as_bytes());
        let expected = ring::digest::digest(&ring::digest::SHA256, self.token.as_bytes());
        let differing = presented.as_ref().iter().zip(expected.as_ref()).fold(0, |sum, (a, b)| sum | (a ^ b));
        differing == 0
    }

    pub(crate) fn kubeconfig(&self, address: SocketAddr) -> String {
        let host = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        let server = SocketAddr::new(host, address.port());
        let ca = STANDARD.encode(&self.ca_pem);
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: agentcube\n  cluster:\n    server: https://{server}\n    \
             certificate-authority-data: {ca}\nusers:\n- name: admin\n  user:\n    token: {}\ncontexts:\n\
             - name: agentcube\n  context:\n    cluster: agentcube\n    user: admin\n    namespace: default\n\
             current-context: agentcube\n",
            self.token
        )
    }
}

struct Files {
    ca: String,
    certificate: String,
    key: String,
    token: String,
}

const NAMES: [&str; 4] = ["ca.crt", "server.crt", "server.key", "token"];

fn read(directory: &Path) -> Result<Option<Files>, String> {
    if !directory.join(NAMES[3]).exists() {
        return Ok(None);
    }
    let text = |name: &str| {
        std::fs::read_to_string(directory.join(name)).map_err(|e| format!("cannot read {name}: {e}"))
    };
    let [ca, certificate, key, token] = NAMES;
    Ok(Some(Files { ca: text(ca)?, certificate: text(certificate)?, key: text(key)?, token: text(token)? }))
}

impl Files {
    fn generate() -> Result<Self, rcgen::Error> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "agentcube");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate()?;
        let mut server = CertificateParams::new(vec![
            "localhost".into(),
            "kubernetes".into(),
            "kubernetes.default".into(),
            "kubernetes.default.svc".into(),
        ])?;
        server.distinguished_name.push(DnType::CommonName, "agentcube-apiserver");
        server.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        server.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1))));
        let certificate = server.signed_by(&key, &issuer)?;
        Ok(Self {
            ca: ca_certificate.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            token: new_token(),
        })
    }

    /// The token goes last: with it, the set is complete.
    fn write(&self, directory: &Path) -> std::io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::create_dir_all(directory)?;
        let contents = [&self.ca, &self.certificate, &self.key, &self.token];
        for (name, content) in NAMES.into_iter().zip(contents) {
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(directory.join(name))?;
            file.write_all(content.as_bytes())?;
        }
        Ok(())
    }

    fn into_credentials(self) -> Result<Credentials, String> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|e| format!("server.crt: {e}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| format!("server.key: {e}"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| e.to_string())?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Credentials { token: self.token, ca_pem: self.ca, tls: Arc::new(tls) })
    }
}

fn new_token() -> String {
    let mut bytes = [0; 24];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_survive_a_restart_and_only_the_token_opens() {
        let directory = tempfile::tempdir().unwrap();
        let first = Credentials::load(Some(directory.path())).unwrap();
        let second = Credentials::load(Some(directory.path())).unwrap();
        assert_eq!((&first.token, &first.ca_pem), (&second.token, &second.ca_pem));
        assert!(first.admits(&format!("Bearer {}", second.token)));
        for wrong in ["", "Bearer ", "Bearer x", "Basic x", &first.token] {
            assert!(!first.admits(wrong), "{wrong}");
        }
    }
}
