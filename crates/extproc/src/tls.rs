//! Certificates from files, read anew when they have changed: whoever renews them only writes the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Who may connect: whoever has a certificate of these authorities. Without it, everybody.
    pub client_authorities: Option<PathBuf>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: rustls_pki_types::pem::Error },
    #[error("{} holds no certificate", .0.display())]
    Empty(PathBuf),
    #[error("the certificates cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("the authorities of clients cannot be used: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// What is in the files, as of when.
pub(crate) struct Certificates {
    tls: Tls,
    config: Arc<ServerConfig>,
    read: Vec<Option<SystemTime>>,
}

impl Certificates {
    pub(crate) fn read(tls: Tls) -> Result<Certificates, Error> {
        // Taken before they are read: what changes in between is read again.
        let read = tls.changed();
        Ok(Certificates { config: config(&tls)?, tls, read })
    }

    /// The present ones. What cannot be used is no reason to stop: the last ones stay.
    pub(crate) fn current(&mut self) -> Arc<ServerConfig> {
        let changed = self.tls.changed();
        if changed != self.read {
            self.read = changed;
            match config(&self.tls) {
                Ok(config) => self.config = config,
                Err(error) => {
                    tracing::warn!(%error, "new certificates cannot be used, so the last ones stay")
                }
            }
        }
        self.config.clone()
    }
}

impl Tls {
    /// Whether the files can be used as they are.
    pub fn check(&self) -> Result<(), Error> {
        config(self).map(drop)
    }

    /// What gives the present certificates: read anew when the files have changed.
    pub fn watched(self) -> Result<impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static, Error> {
        let certificates = parking_lot::Mutex::new(Certificates::read(self)?);
        Ok(move || certificates.lock().current())
    }

    fn changed(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_authorities.as_ref()];
        let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        files.into_iter().flatten().map(changed).collect()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |error| Error::Read { path: path.to_owned(), error };
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(failed)?.collect();
    match read.map_err(failed)? {
        none if none.is_empty() => Err(Error::Empty(path.to_owned())),
        some => Ok(some),
    }
}

fn config(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let chain = certificates(&tls.certificate)?;
    let failed = |error| Error::Read { path: tls.key.clone(), error };
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(failed)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &tls.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
