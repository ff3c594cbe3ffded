//! The library of functions that a client calls.

/// A library of functions. Its name says what it holds: a library with another text has another name.
#[derive(Clone, Debug)]
pub struct FunctionLibrary {
    /// The name, as in the first line of the text.
    pub name: String,
    /// The whole text, from `#!lua name=` on.
    pub code: String,
}
