//! The ceiling: a bare tonic server that answers every call as AddCount, with a message of the same size, and does nothing else.
//!
//! Written by hand instead of with the generated server, so that no other method has to exist.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use anyhow::Result;
use tallystone_client::proto::counter::v1::{AddCountRequest, AddCountResponse, Outcome};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

#[derive(Clone)]
struct Echo;

impl UnaryService<AddCountRequest> for Echo {
    type Response = AddCountResponse;
    type Future = Ready<Result<Response<AddCountResponse>, Status>>;

    fn call(&mut self, request: Request<AddCountRequest>) -> Self::Future {
        let now = SystemTime::now().into();
        ready(Ok(Response::new(AddCountResponse {
            outcome: Outcome::Applied.into(),
            idempotency_token: request.into_inner().idempotency_token,
            event_time: Some(now),
            server_time: Some(now),
            idempotent: true,
        })))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(Self, request).await)
        })
    }
}

/// Serves until the process ends; prints its address.
pub async fn serve() -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("listening on {}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().serve_with_incoming(Echo, incoming).await?;
    Ok(())
}
