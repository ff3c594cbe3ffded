//! Rewrites usage errors as sentences: clap reports invalid numbers in the words of the standard library's parsers, and
//! advises `-- -5` for a negative value even where an option needs it.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::str::ParseBoolError;

use clap::Error;
use clap::error::{ContextKind, ErrorKind};

/// Replaces a standard parser's message in the error with a sentence, if it has one.
pub fn with_plain_message(error: Error, command: &clap::Command) -> Error {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (argument, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    let message = match words(&error) {
        Some(words) => format!("invalid value '{value}' for '{argument}': {words}"),
        None if error.kind() == ErrorKind::UnknownArgument && is_negative_number(&argument) => {
            format!("unexpected argument '{argument}'; write a negative value of an option as --OPTION={argument}")
        }
        None => return error,
    };
    Error::raw(error.kind(), format!("{message}\n\nFor more information, try '--help'.\n")).with_cmd(command)
}

fn is_negative_number(argument: &str) -> bool {
    argument.strip_prefix('-').is_some_and(|digits| digits.starts_with(|first: char| first.is_ascii_digit()))
}

fn words(error: &Error) -> Option<&'static str> {
    let source = error.source()?;
    if let Some(error) = source.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large",
            IntErrorKind::NegOverflow => "the number is too small",
            // Empty, no digits, or an error kind of a later library.
            _ => "not a whole number; write it in digits, as in 5",
        });
    }
    if source.is::<ParseFloatError>() {
        return Some("not a number; write it as 5 or 0.5");
    }
    source.is::<ParseBoolError>().then_some("write true or false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(arguments: &[&str]) -> String {
        let mut command = crate::command();
        let line = [&["tallystone"], arguments].concat();
        let error = command.try_get_matches_from_mut(line).expect_err("a value that is refused");
        let error = with_plain_message(error, &command);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ValueValidation, 2));
        error.to_string()
    }

    #[test]
    fn numbers_are_refused_in_sentences() {
        let cases: &[(&[&str], &str)] = &[
            (&["counter", "add", "views", "many"], "'many' for '[DELTA]': not a whole number"),
            (&["counter", "add", "views", "9223372036854775808"], "'[DELTA]': the number is too large"),
            (&["counter", "top", "x"], "'x' for '[N]': not a whole number"),
            (&["msg", "push", "-q", "a", "b", "--priority", "1.5"], "'--priority <N>': not a whole number"),
        ];
        for (arguments, words) in cases {
            let told = told(arguments);
            assert!(told.starts_with("error: invalid value '") && told.contains(words), "{told}");
            assert!(told.ends_with("For more information, try '--help'.\n"), "{told}");
        }
    }

    #[test]
    fn a_negative_value_of_an_option_is_advised_with_an_equals_sign() {
        let mut command = crate::command();
        let line = ["tallystone", "msg", "peek", "-q", "a", "--max", "-1"];
        let error = with_plain_message(command.try_get_matches_from_mut(line).expect_err("an unknown flag"), &command);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::UnknownArgument, 2));
        assert!(error.to_string().contains("'-1'; write a negative value of an option as --OPTION=-1\n"), "{error}");
    }

    #[test]
    fn a_sentence_stays_as_it_is() {
        assert!(told(&["counter", "top", "0"]).contains("0 is not in 1..=1000"));
        assert!(told(&["counter", "get", "views", "--timeout", "5"]).contains("not a duration; write it as 500ms"));
    }
}
