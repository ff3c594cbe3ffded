//! How tests find and read the pages of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("the package is in a workspace")
}

/// Finds the files of an extension below a folder, build output apart.
pub fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
}

/// The rows of all tables of a page that have this heading.
pub fn table(page: &str, heading: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join(page)).expect("the page is there");
    let tables = page.split(heading).skip(1);
    let rows = tables.flat_map(|rest| rest.lines().skip(2).take_while(|line| line.starts_with('|')));
    rows.map(str::to_owned).collect()
}

/// As code hosts make anchors: lower case, spaces to hyphens, punctuation gone.
pub fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}
