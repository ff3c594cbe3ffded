//! The console: pages for people under `/console/`, rendered here, working without scripts.
//!
//! Every number comes from a call that others may make too, through `in_process_client`. `view` has the parts of pages,
//! `render` writes it as HTML, `pages` has one file for each question, `session` finds out who asks. Names are in
//! queries and links are relative, so any proxy prefix works. Invariant: each answer has the policy that forbids
//! foreign scripts, and no request of a foreign origin or host is answered.

mod action;
mod assets;
mod form_body;
mod format;
mod in_process_client;
mod live;
mod operation_end;
mod pages;
mod payload;
mod query;
mod render;
mod session;
mod shell;
mod view;

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;

use crate::http::audit;
use crate::http::buffers::Caller;
use crate::http::call::CallContext;
use crate::http::health::ServerHealth;
use crate::http::hosts::AllowedHosts;
use crate::http::identity::IdentityCheck;
use crate::http::metered_body::ByteMeter;
use crate::http::methods::Methods;
use crate::http::response_body::with_type;
use crate::time;
use tallystone_domain::Reason;
use tallystone_domain::limits::CONSOLE_STREAMS_MAX;

use action::PostedForms;
use form_body::{form_of, with_whole_form};
use in_process_client::InProcessClient;
use pages::messages::MessageOffers;
use query::{PageQuery, link};
use view::{Page, PageFailure};

/// The path of the pages.
pub const CONSOLE_ROOT: &str = "/console/";
/// The path at which a key is shown, as the audit names it.
const SIGN_IN: &str = "/console/sign-in";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The places that take forms.
const FORMS: [&str; 4] = ["act", "payload", "sign-in", "sign-out"];
const READ_ONLY: &str = "The console is read-only: console.read_only is set. Nothing was done.";
const NO_PAYLOADS: &str = "The console shows no payloads: console.show_payloads is not set.";

/// The settings of the console, which an operator may change.
#[derive(Clone, Debug)]
pub struct ConsoleSettings {
    /// Whether there is a console.
    pub enabled: bool,
    /// Whether its actions are refused.
    pub read_only: bool,
    /// Whether payloads of messages may be shown.
    pub show_payloads: bool,
    /// The host names under which it answers, beside addresses and localhost.
    pub hosts: AllowedHosts,
}

/// The console of a server.
pub struct Console {
    settings: ConsoleSettings,
    streams: Arc<Semaphore>,
    forms: PostedForms,
}

/// The parts of the server that a request of the console needs.
#[derive(Clone)]
pub struct ConsoleContext {
    pub methods: Arc<Methods>,
    pub calls: Arc<CallContext>,
    pub health: Arc<ServerHealth>,
    pub identity: Arc<IdentityCheck>,
}

impl Default for Console {
    fn default() -> Self {
        let hosts = AllowedHosts::only([]);
        Self::new(ConsoleSettings { enabled: false, read_only: true, show_payloads: false, hosts })
    }
}

impl Console {
    pub fn new(settings: ConsoleSettings) -> Self {
        Self { settings, streams: Arc::new(Semaphore::new(CONSOLE_STREAMS_MAX)), forms: PostedForms::default() }
    }

    /// Whether the console answers a path.
    pub fn owns(&self, path: &str) -> bool {
        self.settings.enabled && (path == CONSOLE_ROOT.trim_end_matches('/') || path.starts_with(CONSOLE_ROOT))
    }

    /// Whether the server shows a console.
    pub fn is_on(&self) -> bool {
        self.settings.enabled
    }

    /// The redirect of a browser from the front page; none if the page shows its text.
    pub fn front<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let is_front = request.uri().path() == "/" && [Method::GET, Method::HEAD].contains(request.method());
        (self.settings.enabled && is_front && accept.contains("text/html")).then(|| guarded(see_other("console/")))
    }

    /// Answers a request that it owns.
    pub async fn answer(
        &self,
        context: ConsoleContext,
        request: Request<Body>,
        caller: &Arc<Caller>,
    ) -> Response<Body> {
        let request = with_whole_form(request).await;
        guarded(match self.refused_origin(&request) {
            Some(refusal) => text(StatusCode::FORBIDDEN, refusal),
            None => self.route(context, request, caller).await,
        })
    }

    async fn route(&self, context: ConsoleContext, request: Request<Body>, caller: &Arc<Caller>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let Some(place) = path.strip_prefix(CONSOLE_ROOT) else { return see_other("console/") };
        if let Some(file) = place.strip_prefix("assets/") {
            return assets::answer(file);
        }
        let is_post = request.method() == Method::POST;
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        if !(is_read || is_post && FORMS.contains(&place)) {
            let allowed = if FORMS.contains(&place) { "GET, HEAD, POST" } else { "GET, HEAD" };
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "this page is read with GET\n".to_owned());
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
            return refused;
        }
        // No page lies in a folder, whoever asks. Links of this one lead back.
        if place.contains('/') {
            let up = "../".repeat(place.matches('/').count());
            return html(&Page { up, ..PageFailure::no_page(place).page() });
        }
        let query = PageQuery::of(request.uri().query());
        if is_post
            && place.starts_with("sign-")
            && let Some(refused) = refused_form(&request)
        {
            return refused;
        }
        match (is_post, place) {
            (true, "sign-in") => return sign_in(&context, request, caller).await,
            (true, "sign-out") => return sign_out(&request),
            (false, "sign-in") => return html(&session::page(query.text("to"), None)),
            (_, _) => {} // each other place wants to know who asks
        }
        let found = session::caller(&context.identity, request.headers(), caller.certificate.as_ref()).await;
        let admitted = found.and_then(|found| {
            found.as_ref().map_or(Ok(()), |identity| context.calls.admit(identity, caller)).map(|()| found)
        });
        let identity = match admitted {
            Ok(identity) => identity,
            Err(refusal) if refusal.reason == Reason::Unauthenticated => {
                note_stranger(&context, CONSOLE_ROOT, caller).await;
                return unknown_caller(&request, place);
            }
            Err(refusal) => return html(&PageFailure::from(Status::from(refusal)).page()),
        };
        let is_live = place == "live";
        let meter = identity.as_ref().and_then(|known| ByteMeter::of_caller(known, is_live, &context.calls.clock));
        let calls = InProcessClient::new(context, identity, &request, caller);
        let Some(meter) = meter else { return self.answer_known(calls, place, query, request).await };
        let request = request.map(|body| meter.clone().count_request(body, false));
        self.answer_known(calls, place, query, request).await.map(|body| meter.count_answer(body))
    }

    /// Answers a caller that may call.
    async fn answer_known(
        &self,
        calls: InProcessClient,
        place: &str,
        query: PageQuery,
        request: Request<Body>,
    ) -> Response<Body> {
        if place == "live" {
            return live::answer(calls, query, self.settings.read_only, &self.streams);
        }
        if request.method() == Method::POST {
            return match refused_form(&request) {
                Some(refused) => refused,
                None => self.post(&calls, place, request).await,
            };
        }
        shown(self.page(&calls, place, &query).await, &calls)
    }

    async fn page(&self, calls: &InProcessClient, place: &str, query: &PageQuery) -> Result<Page, PageFailure> {
        let ConsoleSettings { read_only, show_payloads, .. } = self.settings;
        match place {
            "" => pages::overview::page(calls, query).await,
            "queue" => pages::queue::page(calls, query, read_only).await,
            "messages" => pages::messages::list(calls, query, (&self.forms, read_only)).await,
            "message" => {
                let offers = MessageOffers { may_cancel: !read_only, may_show: show_payloads };
                pages::messages::one(calls, query, offers).await
            }
            "counters" => pages::counters::list(calls, query).await,
            "counter" => pages::counters::one(calls, query).await,
            "experiments" => pages::experiments::page(calls, query).await,
            "experiment" => pages::experiment::page(calls, query).await,
            "health" => pages::health::page(calls).await,
            "control" => pages::control::page(calls, query).await,
            "runbook" => pages::runbook::page(query),
            "audit" => pages::audit::page(calls, query).await,
            "act" if read_only => Err(refused_by(READ_ONLY)),
            "act" => action::confirm(calls, query, &self.forms).await,
            "payload" if !show_payloads => Err(refused_by(NO_PAYLOADS)),
            "payload" => Ok(payload::confirm(calls, query, &self.forms)),
            _ => Err(PageFailure::no_page(place)),
        }
    }

    /// Does what a form says.
    async fn post(&self, calls: &InProcessClient, place: &str, request: Request<Body>) -> Response<Body> {
        let is_payload = place == "payload";
        let is_refused = if is_payload { !self.settings.show_payloads } else { self.settings.read_only };
        if is_refused {
            return shown(Err(refused_by(if is_payload { NO_PAYLOADS } else { READ_ONLY })), calls);
        }
        if let Some(why) = calls.queues_away() {
            return shown(Err(Status::unavailable(format!("Nothing was done: {why}")).into()), calls);
        }
        let Some(form) = form_of(request).await else { return no_form() };
        if is_payload {
            return shown(payload::reveal(&calls.anew(), &form).await, calls);
        }
        match action::perform(calls, &form, &self.forms).await {
            Ok(place) => see_other(&place),
            Err(failure) => shown(Ok(failure.of_action(&form)), calls),
        }
    }

    /// The reason to refuse a request that another site may have sent; none if it is not refused.
    fn refused_origin<B>(&self, request: &Request<B>) -> Option<String> {
        let shown = |text: &str| text.chars().take(200).collect::<String>();
        if let Some(host) = self.settings.hosts.rejected_host(request) {
            return Some(format!(
                "the console does not answer under the host name {:?}; use the server's address, or add the name to console.hosts\n",
                shown(host)
            ));
        }
        foreign_page(request, header::ORIGIN).map(|page| format!("{page} may not call the console\n"))
    }
}

/// The refusal of a form that a page of another site may have sent; none for any other form. A link of another site may
/// lead here, but only pages of the console send forms to it. Asked after the caller is known: a form of another site
/// has no caller by a certificate.
fn refused_form<B>(request: &Request<B>) -> Option<Response<Body>> {
    let other = foreign_page(request, header::REFERER)
        .or_else(|| session::is_of_other_site(request.headers()).then(|| "a page of another site".to_owned()));
    other.map(|other| text(StatusCode::FORBIDDEN, format!("{other} may not send forms to the console\n")))
}

/// The page that a header names, if it is none of this console.
fn foreign_page<B>(request: &Request<B>, name: HeaderName) -> Option<String> {
    let named = |name| request.headers().get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let page = named(name)?;
    let host = request.uri().authority().map(http::uri::Authority::as_str).or_else(|| named(header::HOST));
    let own = page.parse::<Uri>().ok().and_then(|page| page.authority().map(|own| own.as_str().to_owned()));
    let is_own = own.is_some_and(|own| host.is_some_and(|host| own.eq_ignore_ascii_case(host)));
    (!is_own).then(|| format!("a page of {:?}", page.chars().take(200).collect::<String>()))
}

/// An answer with the policy and what else keeps other sites away from it.
fn guarded(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn no_form() -> Response<Body> {
    text(StatusCode::BAD_REQUEST, "the form did not arrive in full\n".to_owned())
}

/// Keeps the key of a form in a cookie, and leads to the page that was wanted.
async fn sign_in(context: &ConsoleContext, request: Request<Body>, caller: &Caller) -> Response<Body> {
    let headers = request.headers().clone();
    let Some(form) = form_of(request).await else { return no_form() };
    match session::sign_in(&context.identity, &form, &headers).await {
        Ok(cookie) => with_cookie(see_other(&session::place_of(form.text("to"))), cookie),
        Err(refusal) if refusal.reason == Reason::Unauthenticated => {
            note_stranger(context, SIGN_IN, caller).await;
            let mut page = session::page(form.text("to"), Some("This key is not valid."));
            page.status = StatusCode::UNAUTHORIZED;
            html(&page)
        }
        Err(refusal) => html(&PageFailure::from(Status::from(refusal)).page()),
    }
}

/// Notes in the audit that somebody without a valid key was refused. No text of a stranger gets into it.
async fn note_stranger(context: &ConsoleContext, place: &str, caller: &Caller) {
    let actor = caller.peer.ip().to_string();
    Box::pin(audit::record_refusal(context.calls.audit.get(), actor, place, Reason::Unauthenticated)).await;
}

fn sign_out(request: &Request<Body>) -> Response<Body> {
    with_cookie(see_other("sign-in"), session::sign_out(request.headers()))
}

fn with_cookie(mut response: Response<Body>, cookie: Option<HeaderValue>) -> Response<Body> {
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The answer to a form of a caller whose key has ended. The browser still has what was typed into the form.
const SIGNED_OUT: &str = "sign in first; nothing was done\n\nSign in at /console/sign-in in another tab, then come back to this one, go \
                          back to the form and send it again.\n";

/// Leads a caller without a valid key to the page that asks for one. A key that has ended is forgotten, so that a
/// certificate counts from the next request on.
fn unknown_caller(request: &Request<Body>, place: &str) -> Response<Body> {
    let forgotten = session::has_cookie(request.headers()).then(|| session::sign_out(request.headers())).flatten();
    if place == "live" || request.method() == Method::POST {
        let refusal = text(StatusCode::UNAUTHORIZED, SIGNED_OUT.to_owned());
        return with_cookie(refusal, forgotten);
    }
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    with_cookie(see_other(&link("sign-in", &[("to", &format!("{place}{query}"))])), forgotten)
}

fn refused_by(why: &str) -> PageFailure {
    Status::permission_denied(why).into()
}

/// The page that was asked for, or the one that says why there is none.
fn shown(page: Result<Page, PageFailure>, calls: &InProcessClient) -> Response<Body> {
    let mut page = page.unwrap_or_else(PageFailure::page);
    page.user = calls.user();
    page.now = Some(format::millis(&time::write(calls.context.calls.clock.now())));
    html(&page)
}

fn html(page: &Page) -> Response<Body> {
    with_type(page.status, "text/html; charset=utf-8", render::page(page))
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text)
}

fn see_other(place: &str) -> Response<Body> {
    let mut response = text(StatusCode::SEE_OTHER, String::new());
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}
