//! What real tools make and a real registry serves. Each test says so and passes where its tools are not installed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentcube_runtime::image::Store;

use crate::build::{blobs, file, gzip, symlink, tar, write_layout};
use crate::{quiet, reference, root, tree};

/// Whether all of them are here; says so if not.
fn installed(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        !std::env::split_paths(&folders).any(|folder| folder.join(tool).is_file())
    });
    if let Some(tool) = missing {
        eprintln!("passed over: {tool} is not installed");
    }
    missing.is_none()
}

fn run(command: &str, arguments: &[&str], directory: &Path) {
    let output = Command::new(command).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{command} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn archives_made_by_skopeo_and_umoci_are_taken_in() {
    if !installed(&["skopeo", "umoci"]) || !rustix::process::geteuid().is_root() {
        return;
    }
    let area = tempfile::tempdir().unwrap();
    let at = area.path();
    run("umoci", &["init", "--layout", "layout"], at);
    run("umoci", &["new", "--image", "layout:app"], at);
    run("umoci", &["unpack", "--image", "layout:app", "bundle"], at);
    let made = at.join("bundle/rootfs");
    std::fs::create_dir_all(made.join("etc/gone")).unwrap();
    std::fs::write(made.join("etc/one"), "1").unwrap();
    std::fs::write(made.join("etc/gone/x"), "1").unwrap();
    std::os::unix::fs::symlink("one", made.join("etc/link")).unwrap();
    run("umoci", &["repack", "--refresh-bundle", "--image", "layout:app", "bundle"], at);
    std::fs::remove_dir_all(made.join("etc/gone")).unwrap();
    std::fs::write(made.join("etc/two"), "2").unwrap();
    run("umoci", &["repack", "--image", "layout:app", "bundle"], at);
    run("umoci", &["config", "--image", "layout:app", "--config.cmd", "/bin/x"], at);
    for (form, destination) in [
        ("docker.tar", "docker-archive:docker.tar:app:1"),
        ("oci.tar", "oci-archive:oci.tar:app:1"),
        ("oci", "oci:oci:app:1"),
        ("layout", ""),
    ] {
        if !destination.is_empty() {
            run("skopeo", &["--insecure-policy", "copy", "oci:layout:app", destination], at);
        }
        let store = Store::open(&at.join(format!("data-{form}"))).unwrap();
        store.import(&at.join(form), None, &quiet()).unwrap();
        let name = if destination.is_empty() { "app" } else { "app:1" };
        let image = store.resolve(&reference(name)).unwrap().unwrap_or_else(|| panic!("{form}: no {name}"));
        assert_eq!(image.config.cmd, ["/bin/x"]);
        assert_eq!(tree(root(&image)), tree(&made), "{form}");
    }
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[tokio::test]
async fn images_are_pulled_from_a_real_registry() {
    if !installed(&["skopeo", "docker-registry"]) {
        return;
    }
    let area = tempfile::tempdir().unwrap();
    let at = area.path();
    let layers = [tar(&[file("etc/one", "1"), symlink("link", "etc/one")]), tar(&[file("etc/.wh.one", "")])];
    write_layout(&at.join("layout"), "app", &blobs(&layers, gzip));
    let address = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let config = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
        at.join("registry").display()
    );
    std::fs::write(at.join("config.yml"), config).unwrap();
    let mut command = Command::new("docker-registry");
    command.args(["serve", "config.yml"]).current_dir(at).stdout(Stdio::null()).stderr(Stdio::null());
    let _running = Running(command.spawn().unwrap());
    let began = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "the registry does not start");
        tokio::task::yield_now().await;
    }
    let destination = format!("docker://{address}/team/app:1");
    let source = ["--insecure-policy", "copy", "--dest-tls-verify=false", "oci:layout:app", &destination];
    run("skopeo", &source, at);
    let store = Store::open(&at.join("data")).unwrap();
    let name = reference(&format!("{address}/team/app:1"));
    let image = store.pull(&name, None, quiet(), Instant::now() + Duration::from_secs(60)).await.unwrap();
    assert_eq!(tree(root(&image)).into_keys().collect::<Vec<_>>(), ["etc", "link"]);
    let missing = reference(&format!("{address}/team/app:2"));
    let error =
        store.pull(&missing, None, quiet(), Instant::now() + Duration::from_secs(60)).await.unwrap_err();
    assert!(error.to_string().contains("not found"), "{error}");
}
