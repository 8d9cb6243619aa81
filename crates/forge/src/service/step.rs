//! One build: the manifest and the library of pages become a module, by esbuild in a process of its own that sees no network and
//! little else. The manifest is data all the way: it stands in the module as text that is parsed when the page is shown.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agentcube_api::conditions::frontend as reasons;
use agentcube_runtime::confine;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Limits;
use crate::files::{LARGEST_BUNDLE, MANIFEST, MAP, MODULE};
use crate::hash;

/// The library of pages, as the console's sources were built.
pub(super) const PAGE: &str = include_str!("../../assets/page.js");
/// Changes with what is generated here, so that results of before are not taken for those of now.
const GENERATOR: u32 = 1;
/// What a bundler may say.
const LARGEST_TEXT: u64 = 16 << 10;

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The same manifest fails again.
    pub(super) is_final: bool,
}

impl Failure {
    fn new(message: impl Into<String>) -> Failure {
        Failure { reason: reasons::REASON_BUILD_FAILED, message: message.into(), is_final: false }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(format!("the build service cannot work: {error}"))
    }
}

/// What builds.
pub(super) struct Tool {
    pub(super) program: PathBuf,
    pub(super) confiner: PathBuf,
    pub(super) limits: Limits,
}

impl Tool {
    /// Names everything that a result depends on besides the manifest.
    pub(super) async fn identity(&self, work: &Path) -> Result<String, Failure> {
        let said = self.run(work, &["--version"]).await?;
        Ok(hash::hex(format!("{GENERATOR}\n{}\n{}", said.trim(), hash::hex(PAGE.as_bytes())).as_bytes()))
    }

    /// The files of a manifest, which is canonical JSON; `work` is an empty directory.
    pub(super) async fn build(
        &self,
        work: &Path,
        manifest: &str,
    ) -> Result<Vec<(&'static str, Vec<u8>)>, Failure> {
        lay_out(work, manifest)?;
        self.run(
            work,
            &[
                "entry.js",
                "--bundle",
                "--format=esm",
                "--platform=browser",
                "--target=es2022",
                "--charset=ascii",
                "--minify",
                "--sourcemap",
                "--legal-comments=none",
                "--log-level=warning",
                "--log-limit=10",
                "--color=false",
                "--outfile=out/index.js",
            ],
        )
        .await?;
        let out = work.join("out");
        let (module, map) = (read(&out.join(MODULE))?, read(&out.join(MAP))?);
        let files = vec![(MODULE, module), (MAP, map), (MANIFEST, manifest.as_bytes().to_vec())];
        // In an object they are in base64.
        let weight = files.iter().map(|(_, content)| content.len() / 3 * 4).sum::<usize>();
        if weight > LARGEST_BUNDLE {
            let message = format!(
                "the bundle has {weight} bytes, and an object of the API server holds {LARGEST_BUNDLE}: make fewer pages or columns of it"
            );
            return Err(Failure { reason: reasons::REASON_BUNDLE_TOO_LARGE, message, is_final: true });
        }
        Ok(files)
    }

    /// Runs the bundler to its end, and gives what it wrote.
    async fn run(&self, work: &Path, arguments: &[&str]) -> Result<String, Failure> {
        let limits = confine::Limits {
            memory: self.limits.memory,
            cpu_seconds: self.limits.build.as_secs().max(1),
            file_bytes: 4 * LARGEST_BUNDLE as u64,
            open_files: 256,
        };
        let half = format!("{}", self.limits.memory / 2);
        let environment =
            [("GOMEMLIMIT", OsStr::new(&half)), ("GOMAXPROCS", OsStr::new("2")), ("HOME", work.as_os_str())];
        let shown: Vec<PathBuf> = self.program.parent().map(Path::to_owned).into_iter().collect();
        let mut command = confine::command(&self.confiner, &self.program, work, &shown, limits, &environment);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let group = Group(child.id());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let running = async {
            let (out, err, status) = tokio::join!(text(out), text(err), child.wait());
            Ok::<_, io::Error>((out, err, status?))
        };
        let Some((out, err, status)) = timely(self.limits.build, running).await? else {
            let seconds = self.limits.build.as_secs();
            return Err(Failure::new(format!("the bundler was not done after {seconds} s, and was stopped")));
        };
        drop(group);
        match status.success() {
            true => Ok(out),
            false => Err(Failure::new(format!("the bundler failed ({status}): {}", err.trim()))),
        }
    }
}

async fn timely<T>(limit: Duration, running: impl Future<Output = io::Result<T>>) -> io::Result<Option<T>> {
    match tokio::time::timeout(limit, running).await {
        Ok(ended) => ended.map(Some),
        Err(_) => Ok(None),
    }
}

/// A bundler and whatever it started end with this.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let id = self.0.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            // It may have ended by itself.
            let _ended = kill_process_group(id, Signal::KILL);
        }
    }
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut bytes = Vec::new();
    // What cannot be read is as if it had not been said; the rest is read and thrown away, so that nobody waits.
    let _unsaid = (&mut stream).take(LARGEST_TEXT).read_to_end(&mut bytes).await;
    let _rest = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Puts everything into place that is bundled.
fn lay_out(work: &Path, manifest: &str) -> io::Result<()> {
    let library = work.join("node_modules/@agentcube/page");
    std::fs::create_dir_all(&library)?;
    std::fs::write(library.join("index.js"), PAGE)?;
    let package = r#"{"name":"@agentcube/page","version":"1.0.0","type":"module","main":"index.js"}"#;
    std::fs::write(library.join("package.json"), package)?;
    std::fs::write(work.join("entry.js"), entry(manifest))
}

fn entry(manifest: &str) -> String {
    format!(
        "import {{ mount as show }} from \"@agentcube/page\";\n\
         const manifest = JSON.parse({});\n\
         export const apiVersion = 1;\n\
         export default function mount(root, host, page) {{\n  return show(root, host, page, manifest);\n}}\n",
        literal(manifest)
    )
}

/// JSON as a literal of JavaScript that ends neither a script nor a line, wherever it is put. What could is escaped within the JSON,
/// where it is in strings only: the bundler prints a literal as it likes, and leaves what it says.
fn literal(json: &str) -> String {
    let mut harmless = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                harmless.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            other => harmless.push(other),
        }
    }
    serde_json::Value::from(harmless).to_string()
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let meta = std::fs::symlink_metadata(path)?;
    if !meta.is_file() || meta.len() > 4 * LARGEST_BUNDLE as u64 {
        return Err(Failure::new("the bundler made something else than a module"));
    }
    Ok(std::fs::read(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_stays_data_in_the_module() {
        let hostile = "{\"t\":\"</script><script>alert(1)<!--\u{2028}\u{2029}`${x}\\\"\"}";
        let entry = entry(hostile);
        assert_eq!(entry.lines().count(), 6);
        for wrong in ["</script", "<", "\u{2028}", "\u{2029}"] {
            assert!(!entry.contains(wrong), "{entry}");
        }
        let text = entry.split_once("JSON.parse(").unwrap().1.split_once(");\n").unwrap().0;
        let parsed: String = serde_json::from_str(text).unwrap();
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&parsed), value(hostile));
    }
}
