//! The API key of a command: from an option, a file or the environment.

use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::Failure;

/// The environment's names of the key and of its file.
const KEY_VARIABLE: &str = "TALLYSTONE_KEY";
const KEY_FILE_VARIABLE: &str = "TALLYSTONE_KEY_FILE";

/// A key as it was given. `Debug` does not show it.
#[derive(Clone)]
pub struct KeyText(String);

impl FromStr for KeyText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(..)")
    }
}

/// The options of one place: the key, or its file.
type KeyOptions<'a> = (Option<&'a KeyText>, Option<&'a Path>);

/// The key of a command: from the options after the noun, those before it, or the environment. None if nobody gave one.
pub fn key_of(after: KeyOptions<'_>, before: KeyOptions<'_>) -> Result<Option<String>, Failure> {
    for (key, file) in [after, before] {
        if let Some(key) = key {
            return Ok(Some(key.0.clone()));
        }
        if let Some(file) = file {
            return read(file).map(Some);
        }
    }
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(key) = set(KEY_VARIABLE) {
        let key = key.into_string();
        return key.map(Some).map_err(|_| Failure::usage(format!("the variable {KEY_VARIABLE} is not valid UTF-8")));
    }
    set(KEY_FILE_VARIABLE).map(|file| read(Path::new(&file))).transpose()
}

fn read(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file);
    text.map_err(|error| Failure::usage(format!("cannot read the API key in {}: {error}", file.display())))
}
