//! The bundler: where it is, and which version. Only esbuild itself is run, never the script that npm puts in its place: that would
//! need Node, and more of the machine than a confined program sees.

use std::io::Read;
use std::path::{Path, PathBuf};

/// For whoever has none.
pub const HOW_TO_GET: &str = "install esbuild (the package esbuild of Debian, Ubuntu or npm, or cmd/esbuild of the Go module evanw/esbuild), or name it \
     by --bundler";

#[cfg(target_arch = "x86_64")]
const PLATFORM: &str = "@esbuild/linux-x64/bin/esbuild";
#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "@esbuild/linux-arm64/bin/esbuild";

/// The program that is meant, if it is there: the one that is named, else the first of these places.
pub fn find(named: Option<&Path>, path: &[PathBuf]) -> Option<PathBuf> {
    match named {
        Some(named) => program(named),
        None => path.iter().find_map(|place| program(&place.join("esbuild"))),
    }
}

fn program(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok().filter(|real| real.is_file())?;
    let mut start = [0; 2];
    std::fs::File::open(&real).and_then(|mut file| file.read_exact(&mut start)).ok()?;
    if start != *b"#!" {
        return Some(real);
    }
    // `node_modules/esbuild/bin/esbuild` of npm; the program itself is in a package beside it, or below it.
    let package = real.parent()?.parent()?;
    let places = [package.join("node_modules"), package.parent()?.to_owned()];
    places
        .into_iter()
        .find_map(|place| place.join(PLATFORM).canonicalize().ok().filter(|real| real.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_of_npm_leads_to_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("node_modules");
        let (script, native) = (modules.join("esbuild/bin/esbuild"), modules.join(PLATFORM));
        for (file, text) in [(&script, "#!/usr/bin/env node\n"), (&native, "\u{7f}ELF")] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(&script, bin.join("esbuild")).unwrap();
        let native = native.canonicalize().unwrap();
        assert_eq!(find(None, &[directory.path().join("none"), bin]), Some(native.clone()));
        assert_eq!(find(Some(&native), &[]), Some(native.clone()));
        std::fs::remove_file(&native).unwrap();
        assert_eq!(find(Some(&script), &[]), None);
        assert_eq!(find(None, &[]), None);
    }
}
