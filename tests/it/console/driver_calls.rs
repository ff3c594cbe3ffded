//! The calls of a browser's driver, by the HTTP client that the server has: the library's own one would be a second client
//! for all tests to compile, with other features of what both need.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use thirtyfour::prelude::{WebDriverError, WebDriverResult};
use thirtyfour::session::http::{Body, HttpClient};
use tokio::time::timeout;

use crate::console::chromium::SCRIPT_WAIT;

/// A client of one driver.
pub struct DriverCalls(Client<HttpConnector, Full<Bytes>>);

impl DriverCalls {
    pub fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> WebDriverResult<Response<Bytes>> {
        let answer = self.0.request(request).await.map_err(failed)?;
        let (head, body) = answer.into_parts();
        Ok(Response::from_parts(head, body.collect().await.map_err(failed)?.to_bytes()))
    }
}

fn failed(error: impl Display) -> WebDriverError {
    WebDriverError::HttpError(error.to_string())
}

#[async_trait::async_trait]
impl HttpClient for DriverCalls {
    async fn send(&self, request: Request<Body<'_>>) -> WebDriverResult<Response<Bytes>> {
        let (mut head, body) = request.into_parts();
        let body = match body {
            Body::Empty => Bytes::new(),
            Body::Json(json) => {
                head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                json.to_string().into()
            }
        };
        let exchange = self.exchange(Request::from_parts(head, Full::new(body)));
        timeout(SCRIPT_WAIT, exchange).await.map_err(failed)?
    }

    /// A client that can be used when the runtime of this one has ended.
    async fn new(&self) -> Arc<dyn HttpClient> {
        Arc::new(Self::new())
    }
}
