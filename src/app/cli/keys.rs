//! `key`: creates, lists, rotates and deletes API keys. The first key is made while no server runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::arguments;
use crate::commands::{self, OfflineArgs};
use crate::namespaces::{Confirmation, confirm_unseen};
use crate::output::{CliResponse, Output, TableRows, time_cell};
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, on_a_runtime, pages};
use tallystone_adapters::system::SystemClock;
use tallystone_api::grpc::keys::{grant_message, grant_of, key_message, quotas_message, quotas_of};
use tallystone_api::time;
use tallystone_app::notices::print_notice;
use tallystone_app::server::first_key;
use tallystone_domain::Timestamp;
use tallystone_domain::access::{AccessRole, Grant, GrantEffect, Grants, KeyQuota, KeyQuotas, PrincipalName};
use tallystone_engine::access::KeyDraft;
use tallystone_engine::catalog::Author;
use tallystone_ports::Clock as _;
use tallystone_proto::admin::v1 as pb;

/// The actor in the history of a key that was made without a server.
const OFFLINE_ACTOR: &str = "tallystone key create --offline";

/// Create, list, rotate and delete API keys.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone key create billing --grant viewer --expires 90d")]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key and print it; it is not shown again.
    #[command(
        after_help = "Example:\n  tallystone key create orders --grant 'worker:queue:orders/*' --quota calls-per-second=1000 --expires 90d --description 'the workers of orders'"
    )]
    Create(KeyCreateArgs),
    /// List keys by name, with their expiry and without their secrets.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone key ls")]
    Ls,
    /// Replace the grants of a key; its open calls end, its secrets stay.
    #[command(
        after_help = "Example:\n  tallystone key update orders --grant 'worker:queue:orders/*' --deny worker:queue:orders/secret"
    )]
    Update(KeyUpdateArgs),
    /// Make a new secret for a key and print it; the old one stays valid for a time.
    #[command(after_help = "Example:\n  tallystone key rotate orders --keep-old 1h")]
    Rotate(KeyRotateArgs),
    /// Delete a key; its calls end.
    #[command(after_help = "Example:\n  tallystone key rm orders --yes")]
    Rm(KeyRmArgs),
}

#[derive(Debug, Args)]
struct KeyCreateArgs {
    /// The name of the principal, recorded as the actor of its changes; up to 64 bytes.
    name: String,
    /// What the key is for.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    description: String,
    /// What the key allows: ROLE, ROLE:KIND, ROLE:KIND:NAME or ROLE:KIND:PREFIX*, with the roles counter-reader,
    /// counter-writer, enqueuer, worker, viewer, queue-operator, queue-maker, admin and metrics, and the kinds server,
    /// namespace, counter (named NAMESPACE#COUNTER), queue and *; may be repeated. The default of --offline is admin.
    #[arg(long, value_name = "GRANT", value_parser = allowing, required_unless_present = "offline")]
    grant: Vec<Grant>,
    /// What the key denies, whatever its grants allow, in the same form; may be repeated.
    #[arg(long, value_name = "GRANT", value_parser = denying)]
    deny: Vec<Grant>,
    /// A limit of the key instead of that of the server: QUOTA=NUMBER or QUOTA=unlimited, with the quotas calls-per-second,
    /// bytes-per-second, streams, connections, sessions, operations, queues and namespaces; may be repeated.
    #[arg(long, value_name = "QUOTA", value_parser = quota)]
    quota: Vec<(KeyQuota, u64)>,
    /// How long the key is valid [default: for ever].
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    expires: Option<Duration>,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// Write to the store that the settings name, while no server runs on it: the first key of a server.
    #[arg(long)]
    offline: bool,
    /// The data directory of the stopped server.
    #[arg(long, value_name = "DIR", requires = "offline")]
    data: Option<PathBuf>,
    #[command(flatten)]
    settings: OfflineArgs,
}

#[derive(Debug, Args)]
struct KeyUpdateArgs {
    /// The key.
    name: String,
    /// What the key allows from now on, as in `key create`; may be repeated.
    #[arg(long, value_name = "GRANT", value_parser = allowing, required = true)]
    grant: Vec<Grant>,
    /// What the key denies from now on, whatever its grants allow; may be repeated.
    #[arg(long, value_name = "GRANT", value_parser = denying)]
    deny: Vec<Grant>,
    /// The limits of the key from now on instead of those of the server, as in `key create`; may be repeated [default: they
    /// stay].
    #[arg(long, value_name = "QUOTA", value_parser = quota)]
    quota: Vec<(KeyQuota, u64)>,
    /// Use the limits of the server from now on.
    #[arg(long, conflicts_with = "quota")]
    default_quotas: bool,
    /// What the key is for [default: it stays].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    description: Option<String>,
    /// Only this version: the etag from `key ls -o json`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// Go on even if no key can manage keys afterwards.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct KeyRotateArgs {
    /// The key.
    name: String,
    /// How long the old secret stays valid, up to 90d.
    #[arg(long, default_value = "1d", value_name = "TIME", value_parser = arguments::duration)]
    keep_old: Duration,
    /// How long the new secret is valid [default: for ever].
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    expires: Option<Duration>,
    /// Only this version: the etag from `key ls -o json`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
struct KeyRmArgs {
    /// The key.
    name: String,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Only this version: the etag from `key ls -o json`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// Go on even if no key can manage keys afterwards.
    #[arg(long)]
    force: bool,
}

impl KeyArgs {
    pub fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        match self.command {
            KeyCommand::Create(args) if args.offline => {
                let output = self.client.output.or(&global.output());
                on_a_runtime(create_offline(args, output))
            }
            command => {
                let client = self.client;
                on_a_runtime(async move {
                    let session = client.open(global)?;
                    match command {
                        KeyCommand::Create(args) => session.create_key(args).await,
                        KeyCommand::Ls => session.list_keys().await,
                        KeyCommand::Update(args) => session.update_key(args).await,
                        KeyCommand::Rotate(args) => session.rotate_key(args).await,
                        KeyCommand::Rm(args) => session.remove_key(args).await,
                    }
                })
            }
        }
    }
}

/// Creates a key in the store of a stopped server.
async fn create_offline(args: KeyCreateArgs, output: Output) -> Result<(), Failure> {
    let loaded = commands::load_offline(&args.settings, args.data.as_deref())?;
    let allowed = if args.grant.is_empty() { vec![Grant::everywhere(AccessRole::Admin)] } else { args.grant };
    let grants = Grants::new(allowed.into_iter().chain(args.deny).collect());
    let grants = grants.map_err(|reject| Failure::usage(reject.to_string()))?;
    let name = PrincipalName::new(&args.name).map_err(|reject| Failure::usage(reject.to_string()))?;
    let quotas = args.quota.into_iter().collect();
    let draft = KeyDraft { name, description: args.description, grants, quotas, expires: None };
    let author = Author { actor: OFFLINE_ACTOR.to_owned(), reason: args.reason };
    let made = Box::pin(first_key::create_offline(&loaded.config, draft, args.expires, author)).await;
    let made = made.map_err(|error| commands::failure_of_start(&error))?;
    let made = pb::CreateKeyResponse { key: Some(key_message(&made.key)), api_key: made.secret.reveal() };
    print_key(output, "CreateKeyResponse", &made, &args.name, &made.api_key)
}

impl ClientContext {
    async fn create_key(&self, args: KeyCreateArgs) -> Result<(), Failure> {
        let request = pb::CreateKeyRequest {
            name: args.name.clone(),
            description: args.description,
            expire_time: expire_time(args.expires),
            reason: args.reason,
            grants: args.grant.iter().chain(&args.deny).map(grant_message).collect(),
            quotas: Some(quotas_message(&args.quota.into_iter().collect())),
        };
        let made = call!(self, keys.create_key, &request)?;
        print_key(self.output, "CreateKeyResponse", &made, &args.name, &made.api_key)
    }

    async fn list_keys(&self) -> Result<(), Failure> {
        let (keys, next_page_token) = pages::rows(usize::MAX, async |page_size, page_token| {
            let request = pb::ListKeysRequest { page_size, page_token };
            let page = call!(ask self, keys.list_keys, &request)?;
            Ok((page.keys, page.next_page_token))
        })
        .await?;
        let whole = pb::ListKeysResponse { keys, next_page_token };
        let now = SystemClock.now();
        let cells = whole.keys.iter().map(|key| {
            vec![
                key.name.clone(),
                key.key_id.clone(),
                valid_secrets(key, now).to_string(),
                time_cell(key.secrets.last().and_then(|newest| newest.expire_time.as_ref())),
                time_cell(key.create_time.as_ref()),
                time_cell(key.update_time.as_ref()),
                key.description.clone(),
                quotas_cell(key),
                grants_cell(key),
            ]
        });
        let columns = &[
            "name",
            "key_id",
            "secrets",
            "expire_time",
            "create_time",
            "update_time",
            "description",
            "quotas",
            "grants",
        ];
        let rows = TableRows { columns, cells: cells.collect() };
        // The grants are what the list is read for, so they are not cut.
        self.output.sentences(&CliResponse::many(&full_name("ListKeysResponse"), &whole, "keys"), &rows)
    }

    async fn update_key(&self, args: KeyUpdateArgs) -> Result<(), Failure> {
        let own: KeyQuotas = args.quota.into_iter().collect();
        let is_changed = args.default_quotas || own != KeyQuotas::default();
        let request = pb::UpdateKeyRequest {
            name: args.name,
            grants: args.grant.iter().chain(&args.deny).map(grant_message).collect(),
            quotas: is_changed.then(|| quotas_message(&own)),
            description: args.description,
            etag: args.etag,
            reason: args.reason,
            force: args.force,
        };
        let changed = call!(self, keys.update_key, &request)?;
        let key = changed.key.clone().unwrap_or_default();
        let cells = vec![vec![key.name.clone(), key.description.clone(), quotas_cell(&key), grants_cell(&key)]];
        let rows = TableRows { columns: &["name", "description", "quotas", "grants"], cells };
        self.output.sentences(&CliResponse::one(&full_name("UpdateKeyResponse"), &changed), &rows)
    }

    async fn rotate_key(&self, args: KeyRotateArgs) -> Result<(), Failure> {
        let request = pb::RotateKeyRequest {
            name: args.name.clone(),
            keep_old: Some(time::write_duration(args.keep_old)),
            expire_time: expire_time(args.expires),
            etag: args.etag,
            reason: args.reason,
        };
        let made = call!(self, keys.rotate_key, &request)?;
        print_key(self.output, "RotateKeyResponse", &made, &args.name, &made.api_key)
    }

    async fn remove_key(&self, args: KeyRmArgs) -> Result<(), Failure> {
        if confirm_unseen(args.yes, &format!("delete key {} and end its calls", args.name))? == Confirmation::No {
            return Ok(());
        }
        let request = pb::DeleteKeyRequest { name: args.name, etag: args.etag, reason: args.reason, force: args.force };
        let gone = call!(self, keys.delete_key, &request)?;
        if self.output.is_for_people() {
            print_notice(&format!("key {} is deleted", request.name));
            return Ok(());
        }
        let rows = TableRows { columns: &["name"], cells: vec![vec![request.name]] };
        self.output.answer(&CliResponse::one(&full_name("DeleteKeyResponse"), &gone), &rows)
    }
}

/// Prints a new key: alone on stdout for people, so that it can go into a file.
fn print_key(
    output: Output,
    message: &str,
    answer: &impl prost::Message,
    name: &str,
    api_key: &str,
) -> Result<(), Failure> {
    // It cannot be shown again.
    let unseen = |failure: Failure| {
        failure
            .hint(format!("{name} exists, and nobody has seen its key: make it anew with tallystone key rotate {name}"))
    };
    if output.is_for_people() {
        output.bytes(format!("{api_key}\n").as_bytes()).map_err(unseen)?;
        print_notice(&format!("this is the key of {name}; keep it in a safe place, it is not shown again"));
        return Ok(());
    }
    let rows = TableRows { columns: &["name", "api_key"], cells: vec![vec![name.to_owned(), api_key.to_owned()]] };
    output.answer(&CliResponse::one(&full_name(message), answer), &rows).map_err(unseen)
}

/// The time so long from now, by the clock of this machine.
fn expire_time(after: Option<Duration>) -> Option<prost_types::Timestamp> {
    let now: Timestamp = SystemClock.now();
    after.map(|after| time::write(now + after))
}

/// Parses a grant that allows.
fn allowing(text: &str) -> Result<Grant, String> {
    Grant::parse(GrantEffect::Allow, text).map_err(|reject| reject.message)
}

/// Parses a grant that denies.
fn denying(text: &str) -> Result<Grant, String> {
    Grant::parse(GrantEffect::Deny, text).map_err(|reject| reject.message)
}

/// How many secrets of a key are valid at a time.
fn valid_secrets(key: &pb::Key, now: Timestamp) -> usize {
    let now = time::write(now);
    let is_valid = |secret: &&pb::KeySecret| {
        secret.expire_time.is_none_or(|expires| (expires.seconds, expires.nanos) > (now.seconds, now.nanos))
    };
    key.secrets.iter().filter(is_valid).count()
}

/// The grants of a key in one cell. A kind or role of a newer server is left out.
fn grants_cell(key: &pb::Key) -> String {
    key.grants.iter().cloned().filter_map(|grant| grant_of(grant).ok()).collect::<Grants>().to_string()
}

/// Parses a limit of a key.
fn quota(text: &str) -> Result<(KeyQuota, u64), String> {
    KeyQuotas::parse_one(text).map_err(|reject| reject.message)
}

/// The own limits of a key in one cell.
fn quotas_cell(key: &pb::Key) -> String {
    key.quotas.map(quotas_of).unwrap_or_default().to_string()
}

/// The full name of a message of the key service.
fn full_name(message: &str) -> String {
    format!("tallystone.admin.v1.{message}")
}
