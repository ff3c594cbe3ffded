//! The files of the console, compiled in. Their names contain a hash, so browsers keep them for ever.

use std::sync::LazyLock;

use http::{HeaderValue, Response, StatusCode, header};
use tonic::body::Body;
use xxhash_rust::xxh3::xxh3_64;

use super::text;
use crate::http::response_body::with_type;

/// A compiled-in file.
struct Asset {
    /// Its name in links, relative to a page.
    link: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

/// The links to the files.
pub struct AssetLinks {
    pub style: String,
    pub script: String,
    pub icon: String,
}

const NAMED: [(&str, &str, &[u8]); 3] = [
    ("css", "text/css; charset=utf-8", include_bytes!("assets/console.css")),
    ("js", "text/javascript; charset=utf-8", include_bytes!("assets/console.js")),
    ("svg", "image/svg+xml", include_bytes!("assets/icon.svg")),
];

static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    NAMED.map(|(kind, content_type, bytes)| {
        let link = format!("assets/{:016x}.{kind}", xxh3_64(bytes));
        Asset { link, content_type, bytes }
    })
});

/// The links to the files, relative to a page.
pub static LINKS: LazyLock<AssetLinks> = LazyLock::new(|| {
    let [style, script, icon] = [0, 1, 2].map(|place| ASSETS[place].link.clone());
    AssetLinks { style, script, icon }
});

/// Answers a file by its name below `assets/`.
pub fn answer(file: &str) -> Response<Body> {
    let found = ASSETS.iter().find(|asset| asset.link.strip_prefix("assets/") == Some(file));
    let Some(asset) = found else { return text(StatusCode::NOT_FOUND, "there is no such file\n".to_owned()) };
    let mut response = with_type(StatusCode::OK, asset.content_type, asset.bytes);
    let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, kept);
    response
}
