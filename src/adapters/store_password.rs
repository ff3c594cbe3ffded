//! The password of a user of a store: a text, or the content of a file.
//!
//! Each new connection looks at the file and goes by what it holds then; open connections go on. A file that cannot be
//! used changes nothing, and is reported once for each change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// A password. Cheap to clone; clones of one file tell of it once.
#[derive(Clone)]
pub struct StorePassword(Source);

#[derive(Clone)]
enum Source {
    Text(Arc<str>),
    File(Arc<PasswordFile>),
}

struct PasswordFile {
    path: PathBuf,
    state: Mutex<PasswordState>,
}

struct PasswordState {
    /// The password that connections show.
    password: Arc<str>,
    /// The reason for which the file could not be used when it was looked at last.
    fault: Option<String>,
}

impl StorePassword {
    /// The password that a file holds, without the end of its line. Fails if it cannot be read or is empty.
    pub fn of_file(path: PathBuf) -> Result<Self, String> {
        let state = Mutex::new(PasswordState { password: read(&path)?, fault: None });
        Ok(Self(Source::File(Arc::new(PasswordFile { path, state }))))
    }

    /// The password of the moment, after a look at its file. Connections are rare, and the file short.
    pub fn current(&self) -> Arc<str> {
        match &self.0 {
            Source::Text(password) => Arc::clone(password),
            Source::File(file) => file.current(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Text(password) if password.is_empty())
    }
}

impl PasswordFile {
    fn current(&self) -> Arc<str> {
        let found = read(&self.path);
        let file = self.path.display();
        let mut state = self.state.lock();
        match found {
            Ok(password) => {
                if password != state.password {
                    tracing::info!(%file, "new connections to a store go by its new password");
                }
                *state = PasswordState { password, fault: None };
            }
            Err(why) => {
                if state.fault.as_ref() != Some(&why) {
                    tracing::warn!(%file, why, "the password file of a store cannot be used; the password of before holds");
                }
                state.fault = Some(why);
            }
        }
        Arc::clone(&state.password)
    }
}

/// The password in a file.
fn read(path: &Path) -> Result<Arc<str>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("it is empty".to_owned()), // as while it is written anew
        password => Ok(Arc::from(password)),
    }
}

impl From<&str> for StorePassword {
    fn from(password: &str) -> Self {
        Self(Source::Text(Arc::from(password)))
    }
}

impl fmt::Debug for StorePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = f.debug_struct("StorePassword");
        match &self.0 {
            Source::Text(_) => told.finish_non_exhaustive(),
            Source::File(file) => told.field("file", &file.path).finish_non_exhaustive(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_password_is_read_again_for_each_connection_and_one_that_cannot_be_used_changes_nothing() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        assert!(StorePassword::of_file(file.clone()).is_err(), "there is no file");
        fs::write(&file, "").expect("it can be written");
        assert!(StorePassword::of_file(file.clone()).is_err_and(|why| why.contains("empty")));
        fs::write(&file, "one\r\n").expect("it can be written");
        let password = StorePassword::of_file(file.clone()).expect("a password");
        assert_eq!(&*password.current(), "one");
        fs::write(&file, "two words \n").expect("it can be written");
        assert_eq!(&*password.clone().current(), "two words ");
        fs::write(&file, "\n").expect("it can be written");
        assert_eq!(&*password.current(), "two words ", "a file that is being written");
        fs::remove_file(&file).expect("it is there");
        assert_eq!(&*password.current(), "two words ");
        fs::write(&file, "three").expect("it can be written");
        assert_eq!(&*password.current(), "three");
        assert!(
            !format!("{password:?}").contains("three") && !format!("{:?}", StorePassword::from("x9")).contains("x9")
        );
    }
}
