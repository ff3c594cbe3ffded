//! Checked-in texts that a test compares with what the code says.
//!
//! `TALLYSTONE_BLESS=1 cargo test --test it` writes them anew; the difference then belongs into the same change.

use std::fs;
use std::path::Path;

/// Whether this run writes the checked-in texts instead of comparing them.
pub fn blessing() -> bool {
    std::env::var_os("TALLYSTONE_BLESS").is_some_and(|value| !value.is_empty())
}

/// Compares a text with the file at a path from the root of the repository.
pub fn check(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if blessing() {
        fs::create_dir_all(file.parent().expect("a golden file has a folder")).expect("the folder can be made");
        fs::write(&file, text).expect("the golden file can be written");
        return;
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    if kept != text {
        let (kept, text): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), text.lines().collect());
        let first = kept.iter().zip(&text).position(|(one, other)| one != other).unwrap_or(kept.len().min(text.len()));
        panic!(
            "{path} is out of date from line {}:\n  kept: {}\n  new:  {}\nif the change is meant: TALLYSTONE_BLESS=1 cargo test --test it",
            first + 1,
            kept.get(first).unwrap_or(&"(end)"),
            text.get(first).unwrap_or(&"(end)"),
        );
    }
}
