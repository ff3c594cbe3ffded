//! `rule`: counter rules, which enqueue a message for each threshold that a counter crosses.

use clap::{ArgGroup, Args, Subcommand};

use crate::arguments::{distinct, pair};
use crate::namespaces::{Confirmation, confirm_unseen};
use crate::output::{CliResponse, TableRows, time_cell};
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, pages};
use tallystone_app::notices::print_notice;
use tallystone_proto::rule::v1 as pb;
use tallystone_proto::rule::v1::rule::Threshold;

/// Enqueue a message for each threshold that a counter crosses.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone rule create every-100 views --every 100 -q emails 'look at this'")]
pub struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// Create a rule; succeeds if it already exists with the same settings.
    #[command(after_help = "Example:\n  tallystone rule create every-100 views --every 100 -q emails 'look at this'")]
    Create(Box<RuleCreateArgs>),
    /// List rules by name.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone rule ls every")]
    Ls(RuleLsArgs),
    /// Show all settings of a rule and how far it has fired.
    #[command(visible_alias = "get", after_help = "Example:\n  tallystone rule show every-100")]
    Show(RuleNameArgs),
    /// Delete a rule; its messages stay in the queue.
    #[command(after_help = "Example:\n  tallystone rule rm every-100 --yes")]
    Rm(RuleRmArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("threshold").required(true))]
struct RuleCreateArgs {
    /// The rule, up to 28 bytes.
    name: String,
    /// The counter.
    counter: String,
    /// The payload of the messages, up to 4 KiB. After --, it may begin with a hyphen.
    #[arg(default_value = "", hide_default_value = true, allow_negative_numbers = true)]
    payload: String,
    /// The namespace of the counter.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    namespace: String,
    /// Fire once, when the count reaches N.
    #[arg(long, value_name = "N", group = "threshold")]
    at: Option<i64>,
    /// Fire at each multiple of N.
    #[arg(long, value_name = "N", group = "threshold")]
    every: Option<i64>,
    /// The queue that gets the messages.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// A metadata pair of the messages; may be repeated, up to 2.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// The priority; lower is served first [default: the time at which the message becomes visible, in milliseconds].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The key that selects the shard instead of the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY")]
    shard_key: String,
    /// The type of the messages.
    #[arg(
        long = "type",
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    kind: String,
    /// The most messages of a minute, 1 to 600; crossings beyond it share the next message.
    #[arg(long, default_value_t = 60, value_name = "N")]
    max_per_minute: i32,
}

#[derive(Debug, Args)]
struct RuleLsArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

#[derive(Debug, Args)]
struct RuleNameArgs {
    /// The rule.
    name: String,
}

#[derive(Debug, Args)]
struct RuleRmArgs {
    /// The rule.
    name: String,
    /// The reason, recorded in the audit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

impl RuleArgs {
    pub async fn run(self, before: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(before)?;
        match self.command {
            RuleCommand::Create(args) => Box::pin(session.create_rule(*args)).await,
            RuleCommand::Ls(args) => session.list_rules(args).await,
            RuleCommand::Show(args) => session.show_rule(args).await,
            RuleCommand::Rm(args) => session.because(&args.reason).remove_rule(args).await,
        }
    }
}

impl ClientContext {
    async fn create_rule(&self, args: RuleCreateArgs) -> Result<(), Failure> {
        let message = pb::RuleMessage {
            payload: args.payload.into_bytes(),
            metadata: distinct(&args.meta)?,
            priority: args.priority,
            r#type: args.kind,
            shard_key: args.shard_key,
        };
        let rule = pb::Rule {
            name: args.name,
            namespace: args.namespace,
            counter_name: args.counter,
            threshold: args.at.map(Threshold::At).or(args.every.map(Threshold::Every)),
            queue: args.queue,
            message: Some(message),
            max_per_minute: Some(args.max_per_minute),
            ..Default::default()
        };
        let request = pb::CreateRuleRequest { rule: Some(rule) };
        let made = call!(self, rules.create_rule, &request)?;
        let rows = rows_of_rule(&made.rule.clone().unwrap_or_default());
        self.output.answer(&CliResponse::one(&full_name("CreateRuleResponse"), &made), &rows)
    }

    async fn list_rules(&self, args: RuleLsArgs) -> Result<(), Failure> {
        let (rules, next_page_token) = pages::rows(usize::MAX, async |page_size, page_token| {
            let request = pb::ListRulesRequest { prefix: args.prefix.clone(), page_size, page_token };
            let page = call!(ask self, rules.list_rules, &request)?;
            Ok((page.rules, page.next_page_token))
        })
        .await?;
        let whole = pb::ListRulesResponse { rules, next_page_token };
        let cells = whole.rules.iter().map(|rule| {
            vec![
                rule.name.clone(),
                rule.namespace.clone(),
                rule.counter_name.clone(),
                threshold_text(rule),
                rule.queue.clone(),
                rule.fired_through.to_string(),
                time_cell(rule.last_fired_time.as_ref()),
                rule.uncertain.to_string(),
                rule.problem.clone(),
            ]
        });
        let columns = &[
            "name",
            "namespace",
            "counter_name",
            "threshold",
            "queue",
            "fired_through",
            "last_fired_time",
            "uncertain",
            "problem",
        ];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output.answer(&CliResponse::many(&full_name("ListRulesResponse"), &whole, "rules"), &rows)
    }

    async fn show_rule(&self, args: RuleNameArgs) -> Result<(), Failure> {
        let request = pb::GetRuleRequest { name: args.name };
        let found = call!(ask self, rules.get_rule, &request)?;
        let rows = rows_of_rule(&found.rule.clone().unwrap_or_default());
        self.output.answer(&CliResponse::one(&full_name("GetRuleResponse"), &found), &rows)
    }

    async fn remove_rule(&self, args: RuleRmArgs) -> Result<(), Failure> {
        let what = format!("delete rule {}; its messages stay in the queue", args.name);
        if confirm_unseen(args.yes, &what)? == Confirmation::No {
            return Ok(());
        }
        let request = pb::DeleteRuleRequest { name: args.name };
        let gone = call!(self, rules.delete_rule, &request)?;
        if self.output.is_for_people() {
            print_notice(&format!("rule {} is deleted; its messages stay in the queue", request.name));
            return Ok(());
        }
        let rows = TableRows { columns: &["name"], cells: vec![vec![request.name]] };
        self.output.answer(&CliResponse::one(&full_name("DeleteRuleResponse"), &gone), &rows)
    }
}

/// The full name of a message of the rule service.
fn full_name(message: &str) -> String {
    format!("tallystone.rule.v1.{message}")
}

fn threshold_text(rule: &pb::Rule) -> String {
    match rule.threshold {
        Some(Threshold::At(count)) => format!("at {count}"),
        Some(Threshold::Every(step)) => format!("every {step}"),
        None => String::new(),
    }
}

/// A row for each field of a rule.
fn rows_of_rule(rule: &pb::Rule) -> TableRows {
    let message = rule.message.clone().unwrap_or_default();
    let mut metadata: Vec<_> = message.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    metadata.sort();
    let pending = rule
        .pending
        .as_ref()
        .map(|pending| format!("{} to {}, as {}", pending.crossed_from + 1, pending.crossing, pending.message_id));
    let fields = [
        ("name", rule.name.clone()),
        ("namespace", rule.namespace.clone()),
        ("counter_name", rule.counter_name.clone()),
        ("threshold", threshold_text(rule)),
        ("queue", rule.queue.clone()),
        ("payload", String::from_utf8_lossy(&message.payload).into_owned()),
        ("metadata", metadata.join(" ")),
        ("priority", message.priority.map(|priority| priority.to_string()).unwrap_or_default()),
        ("type", message.r#type.clone()),
        ("shard_key", message.shard_key.clone()),
        ("max_per_minute", rule.max_per_minute().to_string()),
        ("fired_through", rule.fired_through.to_string()),
        ("generation", rule.generation.to_string()),
        ("last_message_id", rule.last_message_id.clone()),
        ("last_fired_time", time_cell(rule.last_fired_time.as_ref())),
        ("uncertain", rule.uncertain.to_string()),
        ("pending", pending.unwrap_or_default()),
        ("problem", rule.problem.clone()),
        ("create_time", time_cell(rule.create_time.as_ref())),
    ];
    let cells = fields.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    TableRows { columns: &["setting", "value"], cells }
}
