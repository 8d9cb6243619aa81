//! `agentcube image`: the images of this machine's node. Works on the same directory as a running `up`, which sees
//! every change at once.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentcube_runtime::image::{Image, Keyring, Options, Progress, Reference, Report, Store};
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube image import app.tar
  docker save app | agentcube image import -
  agentcube image pull registry.example/team/app:1
  agentcube image ls
  agentcube image rm registry.example/team/app:1")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Where `up` keeps its data
    #[arg(long, global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Take in images from OCI layouts (directories or tar) and docker archives
    Import {
        /// Files or directories; `-` is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Name the image so, instead of as the archive does
        #[arg(long)]
        name: Option<Reference>,
    },
    /// Get an image from its registry
    Pull(Pull),
    /// List the images
    #[command(visible_alias = "list")]
    Ls {
        /// How to print them
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Remove images by name or id
    Rm {
        /// Names, ids, or beginnings of ids
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Print all that is known of an image as JSON
    Inspect {
        /// A name, an id, or the beginning of an id
        image: String,
    },
}

#[derive(Args)]
struct Pull {
    /// Which image
    reference: Reference,
    /// The registry of names that say none
    #[arg(long, value_name = "HOST", env = "AGENTCUBE_DEFAULT_REGISTRY")]
    default_registry: Option<String>,
    /// Certificates to trust for registries besides those of this machine, as PEM
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
    /// A registry that may be spoken to without encryption; those on loopback always may
    #[arg(long, value_name = "HOST")]
    insecure_registry: Vec<String>,
    /// Credentials, in the form of a `.dockerconfigjson`
    #[arg(long, value_name = "FILE", env = "REGISTRY_AUTH_FILE")]
    auth_file: Option<PathBuf>,
    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub(crate) async fn run(arguments: Arguments, default_data_dir: &Path) -> anyhow::Result<()> {
    let data_dir = arguments.data_dir.as_deref().unwrap_or(default_data_dir);
    match arguments.command {
        Command::Import { files, name } => import(&Store::open(data_dir)?, files, name).await,
        Command::Pull(wanted) => pull(data_dir, wanted).await,
        Command::Ls { output } => {
            let images = Store::open(data_dir)?.list()?;
            match output {
                Output::Table => print(&table(&images)),
                Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(&images)?)),
            }
        }
        Command::Rm { images } => {
            let store = Store::open(data_dir)?;
            for image in images {
                // A running node holds what it uses.
                let removed = store.remove(&image, &|_| false)?;
                let names = removed.names.iter().map(|name| format!("untagged {name}\n"));
                let deleted = removed.image.iter().map(|id| format!("deleted {id}\n"));
                print(&names.chain(deleted).collect::<String>())?;
            }
            Ok(())
        }
        Command::Inspect { image } => {
            let image = Store::open(data_dir)?.find(&image)?;
            print(&format!("{}\n", serde_json::to_string_pretty(&image)?))
        }
    }
}

async fn import(store: &Store, files: Vec<PathBuf>, name: Option<Reference>) -> anyhow::Result<()> {
    anyhow::ensure!(name.is_none() || files.len() == 1, "--name names one image: give one file with it");
    for file in files {
        let (store, name) = (store.clone(), name.clone());
        let images = tokio::task::spawn_blocking(move || {
            let (report, name) = (progress(), name.as_ref());
            if file == Path::new("-") {
                return store.import_reader(std::io::stdin().lock(), "standard input", name, &report);
            }
            store.import(&file, name, &report)
        });
        for image in images.await?? {
            print(&format!("{}\n", told(&image)))?;
        }
    }
    Ok(())
}

async fn pull(data_dir: &Path, wanted: Pull) -> anyhow::Result<()> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let options = Options {
        default_registry: wanted.default_registry,
        insecure_registries: wanted.insecure_registry,
        registry_ca: wanted.registry_ca.as_ref().map(read).transpose()?,
        ..Options::default()
    };
    let keyring = match &wanted.auth_file {
        Some(path) => {
            Keyring::parse(&read(path)?).with_context(|| format!("cannot use {}", path.display()))?
        }
        None => Keyring::default(),
    };
    let named = match &options.default_registry {
        Some(host) => wanted.reference.with_default_host(host),
        None => wanted.reference.clone(),
    };
    let credentials = keyring.find(&named.repository()).next().cloned();
    let store = Store::open_with(data_dir, options)?;
    let deadline = Instant::now() + Duration::from_secs(wanted.timeout.into());
    let image = store.pull(&wanted.reference, credentials, progress(), deadline).await?;
    print(&format!("{}\n", told(&image)))
}

/// A closed pipe is the reader's decision, and no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn told(image: &Image) -> String {
    let names =
        if image.names.is_empty() { "an image without a name".to_owned() } else { image.names.join(", ") };
    format!("{names}: {} ({})", short(&image.id), size(image.size))
}

/// Enough of an id to tell images apart.
fn short(id: &str) -> &str {
    let hex = id.split_once(':').map_or(id, |(_, hex)| hex);
    hex.get(..12).unwrap_or(hex)
}

fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit > 0 && value < 9.95 {
        format!("{value:.1} {}", units[unit])
    } else {
        format!("{value:.0} {}", units[unit])
    }
}

fn table(images: &[Image]) -> String {
    let mut rows = vec![["NAME".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in images {
        let size = if image.id == agentcube_runtime::image::HOST { "-".to_owned() } else { size(image.size) };
        let row = |name: &str| [name.to_owned(), short(&image.id).to_owned(), size.clone()];
        // Digests are in `inspect`; here they would fill the line.
        let tags: Vec<_> = image.names.iter().filter(|name| !name.contains('@')).collect();
        if tags.is_empty() {
            rows.push(row("<none>"));
        }
        rows.extend(tags.into_iter().map(|name| row(name)));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (name, id) = (width(0), width(1));
    rows.iter().map(|row| format!("{:name$}   {:id$}   {}\n", row[0], row[1], row[2])).collect()
}

/// Tells on standard error what is being done, once that has taken a second: one line that changes on a terminal, and
/// else a line now and then.
fn progress() -> Report {
    let terminal = std::io::stderr().is_terminal();
    let pause = Duration::from_millis(if terminal { 100 } else { 10_000 });
    let next = Mutex::new(Instant::now() + Duration::from_secs(1));
    Arc::new(move |progress| {
        let mut next = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if Instant::now() < *next {
            return;
        }
        *next = Instant::now() + pause;
        let line = match progress {
            Progress::Downloading { blob, bytes, total } => {
                format!("downloading {}: {} of {}", short(blob.as_str()), size(bytes), size(total))
            }
            Progress::Unpacking { layer, of } => format!("unpacking layer {layer} of {of}"),
        };
        let (before, after) = if terminal { ("\r\x1b[K", "\r") } else { ("", "\n") };
        let _unheard = write!(std::io::stderr(), "{before}{line}{after}");
    })
}

#[cfg(test)]
mod tests {
    use agentcube_runtime::image::Config;
    use agentcube_runtime::spec::Root;

    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9_949, "9.9 kB"),
            (9_950, "10 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (12_345_678_901, "12 GB"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_tag() {
        let image = |id: &str, names: &[&str]| Image {
            id: id.into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            root: Root::Host { also: Vec::new() },
            config: Config::default(),
            size: 1500,
        };
        let images = [
            image("host", &["host"]),
            image("sha256:0123456789abcdef", &["a:1", "registry.example/b:2", "c@sha256:00"]),
            image("sha256:fedcba9876543210", &[]),
        ];
        let expected = "\
NAME                   ID             SIZE
host                   host           -
a:1                    0123456789ab   1.5 kB
registry.example/b:2   0123456789ab   1.5 kB
<none>                 fedcba987654   1.5 kB
";
        assert_eq!(table(&images), expected);
    }
}
