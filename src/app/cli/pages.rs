//! Reads lists in pages.

use crate::Failure;
use tallystone_domain::limits::PAGE_ROWS_MAX;

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
