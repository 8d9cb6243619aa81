//! Who may do what with the cluster: an authority of its own, certificates of the two servers and of the API server as a
//! client of the kubelet, the key of service accounts, and a token for each part. All are made once for each cluster.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::network;
use super::node::NAME;

/// A part of the cluster that asks the API server, by the name and the group that Kubernetes has its rights under.
struct Client {
    file: &'static str,
    user: &'static str,
    group: &'static str,
}

const CLIENTS: [Client; 5] = [
    Client { file: "admin", user: "admin", group: "system:masters" },
    Client { file: "kube-controller-manager", user: "system:kube-controller-manager", group: "" },
    Client { file: "kube-scheduler", user: "system:kube-scheduler", group: "" },
    Client { file: "kube-proxy", user: "system:kube-proxy", group: "" },
    Client { file: "kubelet", user: "system:node:agentcube", group: "system:nodes" },
];

/// Makes what is missing in a directory, all of it or nothing: `ca.crt`, `apiserver.crt`, `kubelet.crt`,
/// `kubelet-client.crt`, their keys, `sa.key`, `sa.pub`, `tokens.csv`, and a kubeconfig for each client.
pub(crate) fn prepare(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let unfinished = directory.with_extension("unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    std::fs::create_dir_all(&unfinished)?;
    std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o700))?;
    write_certificates(&unfinished)?;
    write_clients(&unfinished, directory)?;
    std::fs::rename(&unfinished, directory).with_context(|| format!("cannot make {}", directory.display()))
}

fn write_certificates(directory: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut params = named("agentcube-cluster", "", Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    std::fs::write(directory.join("ca.crt"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);

    let mut names: Vec<String> = ["localhost", "127.0.0.1"].map(str::to_owned).to_vec();
    names.extend([network::NODE, network::API_SERVICE].map(str::to_owned));
    let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    names.extend(service.map(str::to_owned));
    names.push(format!("kubernetes.default.svc.{}", network::DOMAIN));
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    sign(directory, "apiserver", named("kube-apiserver", "", names)?, server.clone(), &issuer)?;
    let names = vec![NAME.to_owned(), network::NODE.to_owned()];
    sign(directory, "kubelet", named("kubelet", "", names)?, server, &issuer)?;
    let client = named("kube-apiserver-kubelet-client", "system:masters", Vec::new())?;
    sign(directory, "kubelet-client", client, ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
    let accounts = KeyPair::generate()?;
    std::fs::write(directory.join("sa.key"), accounts.serialize_pem())?;
    std::fs::write(directory.join("sa.pub"), accounts.public_key_pem())?;
    Ok(())
}

fn named(name: &str, organization: &str, names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    Ok(params)
}

fn sign(
    directory: &Path,
    file: &str,
    mut params: CertificateParams,
    purpose: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    let key = KeyPair::generate()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    std::fs::write(directory.join(format!("{file}.crt")), params.signed_by(&key, issuer)?.pem())?;
    std::fs::write(directory.join(format!("{file}.key")), key.serialize_pem())?;
    Ok(())
}

fn write_clients(directory: &Path, later: &Path) -> Result<()> {
    let mut tokens = String::new();
    for client in &CLIENTS {
        let token = token()?;
        tokens.push_str(&format!("{token},{},{0},\"{}\"\n", client.user, client.group));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "agentcube", "cluster": {
                "server": network::api_server(), "certificate-authority": later.join("ca.crt") } }],
            "users": [{ "name": client.file, "user": { "token": token } }],
            "contexts": [{ "name": "agentcube", "context": { "cluster": "agentcube", "user": client.file } }],
            "current-context": "agentcube",
        });
        let text = serde_json::to_string_pretty(&config)?;
        std::fs::write(directory.join(format!("{}.kubeconfig", client.file)), text)?;
    }
    std::fs::write(directory.join("tokens.csv"), tokens)?;
    Ok(())
}

fn token() -> Result<String> {
    let mut bytes = [0_u8; 24];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
