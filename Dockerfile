# The server as an image: docker build -t tallystone .
#
# Two stages: the toolchain stays behind, the image holds the binary and what it links to. It runs as user 10001 and keeps
# its data in /data.
FROM rust:1.95-bookworm AS build
WORKDIR /source
# All of it: the manifest names tests and the load tool, and a build without them is refused.
COPY . .
RUN cargo build --profile dist --locked --bin tallystone

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /data tallystone && install -d -o 10001 -m 0700 /data
COPY --from=build /source/target/dist/tallystone /usr/local/bin/tallystone
# By number: Kubernetes checks runAsNonRoot only against a numeric user.
USER 10001
VOLUME /data
EXPOSE 7450
# SIGTERM drains; give it longer than server.drain_deadline_ms before it is killed.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["tallystone", "server", "wait-ready", "--timeout", "3s"]
ENTRYPOINT ["tallystone"]
# The namespace of the first calls in README.md. A start changes nothing where it exists.
CMD ["server", "start", "--listen", "0.0.0.0:7450", "--data", "/data", "--namespace", "default"]
