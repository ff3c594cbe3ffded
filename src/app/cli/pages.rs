//! Reads lists in pages, and says where a list is cut.

use clap::Args;

use crate::Failure;
use crate::failure::Exit;
use crate::output::{Format, Output};
use tallystone_app::notices::print_notice;
use tallystone_domain::limits::PAGE_ROWS_MAX;

/// The rows of a list if nothing else is asked for.
const ROWS_SHOWN: usize = 100;

/// How many rows of a list to show.
#[derive(Clone, Copy, Debug, Args)]
pub struct RowLimit {
    /// The maximum number of rows [default: 100].
    #[arg(long, value_name = "N", conflicts_with = "all")]
    limit: Option<usize>,
    /// Show all rows.
    #[arg(long)]
    all: bool,
}

impl RowLimit {
    /// Returns the most rows to read.
    pub fn rows(self) -> usize {
        self.rows_or(ROWS_SHOWN)
    }

    /// The same for a list with another default.
    pub fn rows_or(self, default: usize) -> usize {
        if self.all { usize::MAX } else { self.limit.unwrap_or(default) }
    }

    /// Returns whether all rows were asked for.
    pub fn is_all(self) -> bool {
        self.all
    }

    /// Ends a list that was printed: `rest` is the page token of what follows its rows. To be called after the last
    /// row, because what reads rows alone learns of a cut by the exit code only.
    pub fn end(self, rest: &str, output: Output) -> Result<(), Failure> {
        self.end_with(rest, output, "there are more; show them with --limit N or --all")
    }

    /// The same with a text of its own.
    pub fn end_with(self, rest: &str, output: Output, what: &str) -> Result<(), Failure> {
        match (rest.is_empty(), self.limit) {
            (true, _) => Ok(()),
            (false, None) => cut(output, what),
            (false, Some(_)) => {
                print_notice(what);
                Ok(())
            }
        }
    }
}

/// Says that a list is not whole, though the caller did not ask for a part of it. CSV and JSON lines have no place for
/// that, so the command fails where they are printed: a script would take the part for the whole.
pub fn cut(output: Output, what: &str) -> Result<(), Failure> {
    match output.format() {
        Format::Csv | Format::Jsonl => Err(Failure::new(Exit::Unavailable, format!("the list is cut: {what}"))),
        Format::Table | Format::Json => {
            print_notice(what);
            Ok(())
        }
    }
}

/// Reads pages until there are `limit` rows, or no more. Returns the rows and the page token of the rest, empty at the
/// end. `page` gets the number of rows to request and the token.
pub async fn rows<T>(
    limit: usize,
    mut page: impl AsyncFnMut(i32, String) -> Result<(Vec<T>, String), Failure>,
) -> Result<(Vec<T>, String), Failure> {
    let (mut rows, mut token) = (Vec::new(), String::new());
    while rows.len() < limit {
        let size = (limit - rows.len()).min(PAGE_ROWS_MAX);
        let (some, next) = page(i32::try_from(size).unwrap_or(i32::MAX), std::mem::take(&mut token)).await?;
        rows.extend(some);
        token = next;
        if token.is_empty() {
            break;
        }
    }
    Ok((rows, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from a list of 2,500 numbers, at most a thousand per page.
    async fn read(limit: usize) -> (usize, String, Vec<i32>) {
        let mut sizes = Vec::new();
        let (rows, left) = rows(limit, async |size, token| {
            sizes.push(size);
            let from: usize = if token.is_empty() { 0 } else { token.parse().expect("a number") };
            let to = (from + usize::try_from(size).expect("small")).min(2_500);
            Ok(((from..to).collect::<Vec<_>>(), if to < 2_500 { to.to_string() } else { String::new() }))
        })
        .await
        .expect("every page is served");
        assert!(rows.iter().enumerate().all(|(at, row)| at == *row), "each once, in order");
        (rows.len(), left, sizes)
    }

    #[tokio::test]
    async fn pages_are_read_to_the_end_or_the_limit() {
        assert_eq!(read(usize::MAX).await, (2_500, String::new(), vec![1_000, 1_000, 1_000]));
        assert_eq!(read(1_200).await, (1_200, "1200".to_owned(), vec![1_000, 200]));
        assert_eq!(read(2_500).await, (2_500, String::new(), vec![1_000, 1_000, 500]));
        assert_eq!(read(0).await, (0, String::new(), vec![]));
    }
}
