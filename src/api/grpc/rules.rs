//! The gRPC RuleService: counter rules.

use std::num::NonZeroU64;

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{Asked, ListRights, Permitted, Sealed};
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::limits::RULE_MESSAGES_PER_MINUTE;
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_domain::rules::{CrossingClaim, Rule, RuleCondition, RuleMessage, RuleName, RuleSpec};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::rules::{RuleError, Rules};
use tallystone_proto::rule::v1 as wire;
use tallystone_proto::rule::v1::rule::Threshold;
use tallystone_proto::rule::v1::rule_service_server::RuleService;

use super::{rights_of, saturating_i64, settable};

/// The rule service.
pub struct RulesApi(Sealed<Rules>);

impl RulesApi {
    /// Serves these use cases.
    pub fn new(rules: Rules) -> Self {
        Self(Sealed::new(rules))
    }

    /// Reads a rule. It belongs to its queue: where the queue is hidden, the rule does not exist.
    async fn shown(&self, list: &ListRights, name: &RuleName) -> Result<Rule, RuleError> {
        let found = self.0.with(list).get(name).await?;
        match list.shows_about(Some(&found.spec.queue)) {
            true => Ok(found),
            false => Err(RuleError::NotFound { name: name.clone() }),
        }
    }

    /// Creates a rule. What an existing one of the name has in other ways is said to those only who may see it.
    async fn create(&self, list: &ListRights, spec: Permitted<RuleSpec>) -> Result<Rule, RuleError> {
        match self.0.with(&spec).create(spec.into_inner()).await {
            Err(RuleError::Exists { name, .. }) if self.shown(list, &name).await.is_err() => {
                Err(RuleError::Taken { name })
            }
            made => made,
        }
    }

    /// A page of the rules that the caller may see. Reads on until the page is full or the rules end.
    async fn shown_page(
        &self,
        list: &ListRights,
        prefix: &str,
        mut after: Option<RuleName>,
        rows: usize,
    ) -> Result<Vec<Rule>, RuleError> {
        let mut shown = Vec::new();
        loop {
            let found = self.0.with(list).list(prefix, after.as_ref(), rows).await?;
            let is_end = found.len() < rows;
            after = found.last().map(|last| last.spec.name.clone());
            shown.extend(found.into_iter().filter(|rule| list.shows_about(Some(&rule.spec.queue))));
            if is_end || shown.len() >= rows {
                shown.truncate(rows);
                return Ok(shown);
            }
        }
    }
}

fn status(error: RuleError) -> Status {
    ApiError::from(error).into()
}

fn refused(reject: Reject) -> Status {
    ApiError::from(reject).into()
}

#[tonic::async_trait]
impl RuleService for RulesApi {
    async fn create_rule(
        &self,
        request: Request<wire::CreateRuleRequest>,
    ) -> Result<Response<wire::CreateRuleResponse>, Status> {
        let rights = rights_of(&request)?;
        let spec = spec_of(settable(request)?.rule).map_err(refused)?;
        let spec = rights.permit(Asked::new(spec)).map_err(ApiError::from)?;
        let made = self.create(&rights.listing(), spec).await.map_err(status)?;
        Ok(Response::new(wire::CreateRuleResponse { rule: Some(rule_message(&made)) }))
    }

    async fn get_rule(
        &self,
        request: Request<wire::GetRuleRequest>,
    ) -> Result<Response<wire::GetRuleResponse>, Status> {
        let list = rights_of(&request)?.listing();
        let name = RuleName::new(&request.into_inner().name).map_err(refused)?;
        let found = self.shown(&list, &name).await.map_err(status)?;
        Ok(Response::new(wire::GetRuleResponse { rule: Some(rule_message(&found)) }))
    }

    async fn list_rules(
        &self,
        request: Request<wire::ListRulesRequest>,
    ) -> Result<Response<wire::ListRulesResponse>, Status> {
        let list = rights_of(&request)?.listing();
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(refused)?;
        let paged = PagedRequest::new("ListRules", &[request.prefix.as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(refused)?;
        let after = cursor.map(|cursor| name_cursor(&cursor)).transpose().map_err(refused)?;
        let listed = self.shown_page(&list, &request.prefix, after, rows).await.map_err(status)?;
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(Response::new(wire::ListRulesResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            rules: listed.iter().map(rule_message).collect(),
        }))
    }

    async fn delete_rule(
        &self,
        request: Request<wire::DeleteRuleRequest>,
    ) -> Result<Response<wire::DeleteRuleResponse>, Status> {
        let list = rights_of(&request)?.listing();
        let name = RuleName::new(&request.into_inner().name).map_err(refused)?;
        let is_shown = |spec: &RuleSpec| list.shows_about(Some(&spec.queue));
        self.0.with(&list).delete(&name, is_shown).await.map_err(status)?;
        Ok(Response::new(wire::DeleteRuleResponse {}))
    }
}

fn name_cursor(cursor: &[u8]) -> Result<RuleName, Reject> {
    let name = std::str::from_utf8(cursor).ok().and_then(|name| RuleName::new(name).ok());
    name.ok_or_else(paging::refuse)
}

fn invalid(field: &str, what: impl Into<String>) -> Reject {
    let what = what.into();
    Reject::new(Reason::InvalidArgument, what.clone()).at(field, what)
}

/// Decodes the settings of a rule.
fn spec_of(sent: Option<wire::Rule>) -> Result<RuleSpec, Reject> {
    let sent = sent.ok_or_else(|| invalid("rule", "rule is missing; send its name, counter, threshold and queue"))?;
    // A negative number is out of range, as 0 is.
    let max_per_minute = sent.max_per_minute.map_or(RULE_MESSAGES_PER_MINUTE, |rate| u32::try_from(rate).unwrap_or(0));
    Ok(RuleSpec {
        name: RuleName::new(&sent.name)?,
        namespace: NamespaceName::new(&sent.namespace)?,
        counter: CounterName::new(&sent.counter_name)?,
        condition: condition_of(sent.threshold)?,
        queue: QueueName::new(&sent.queue)?,
        message: message_of(sent.message.unwrap_or_default())?,
        max_per_minute,
    })
}

fn condition_of(sent: Option<Threshold>) -> Result<RuleCondition, Reject> {
    let above_zero = |field: &str, number: i64| {
        let number = u64::try_from(number).ok().and_then(NonZeroU64::new);
        number.ok_or_else(|| invalid(&format!("rule.{field}"), format!("{field} must be at least 1")))
    };
    match sent {
        Some(Threshold::At(count)) => above_zero("at", count).map(RuleCondition::At),
        Some(Threshold::Every(step)) => above_zero("every", step).map(RuleCondition::Every),
        None => Err(invalid("rule", "the threshold is missing; send at or every")),
    }
}

fn message_of(sent: wire::RuleMessage) -> Result<RuleMessage, Reject> {
    let pairs = sent.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let metadata = Metadata::new(pairs).map_err(|_| {
        let what = "metadata has at most 2 pairs; a key has 1 to 64 bytes, a value at most 256";
        invalid("rule.message.metadata", what)
    })?;
    let text = |sent: String| (!sent.is_empty()).then(|| sent.into_boxed_str());
    Ok(RuleMessage {
        payload: sent.payload.into(),
        metadata,
        priority: sent.priority,
        kind: text(sent.r#type),
        shard_key: text(sent.shard_key),
    })
}

fn rule_message(rule: &Rule) -> wire::Rule {
    let Rule { spec, home: _, created, stamp: _, progress } = rule;
    let threshold = match spec.condition {
        RuleCondition::At(count) => Threshold::At(saturating_i64(count.get())),
        RuleCondition::Every(step) => Threshold::Every(saturating_i64(step.get())),
    };
    let pending = |claim: &CrossingClaim| wire::PendingCrossings {
        crossing: claim.through,
        crossed_from: claim.from,
        message_id: progress.message_id(&spec.name, claim).to_string(),
        claimed_time: Some(time::write(claim.time)),
    };
    let last = progress.last_message.as_ref();
    wire::Rule {
        name: spec.name.to_string(),
        namespace: spec.namespace.to_string(),
        counter_name: spec.counter.as_str().to_owned(),
        threshold: Some(threshold),
        queue: spec.queue.to_string(),
        message: Some(message_message(&spec.message)),
        max_per_minute: Some(i32::try_from(spec.max_per_minute).unwrap_or(i32::MAX)),
        fired_through: progress.fired_through,
        generation: progress.generation,
        last_message_id: last.map(|message| message.id.to_string()).unwrap_or_default(),
        last_fired_time: last.map(|message| time::write(message.time)),
        uncertain: progress.uncertain,
        pending: progress.pending.as_ref().map(pending),
        problem: progress.problem.as_deref().unwrap_or_default().to_owned(),
        create_time: Some(time::write(*created)),
    }
}

fn message_message(message: &RuleMessage) -> wire::RuleMessage {
    let RuleMessage { payload, metadata, priority, kind, shard_key } = message;
    wire::RuleMessage {
        payload: payload.to_vec(),
        metadata: metadata.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        priority: *priority,
        r#type: kind.as_deref().unwrap_or_default().to_owned(),
        shard_key: shard_key.as_deref().unwrap_or_default().to_owned(),
    }
}
