//! The table of all methods with their descriptors, services and metrics, built once from the descriptors.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use prost_reflect::prost_types::method_options::IdempotencyLevel;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};
use tonic::body::Body;
use tonic::codegen::Service;

use crate::errors::ApiError;
use crate::http::list_limits::ListLimits;
use crate::http::metrics::{CallMetrics, MethodMetrics};
use tallystone_domain::Reason;
use tallystone_domain::access::AccessRole;
use tallystone_domain::call_limit::CallClass;
use tallystone_domain::limits::{ANSWER_LIST_BYTES, ANSWER_PAYLOADS_BYTES, SIMILAR_NAME_BYTES_MAX};
use tallystone_engine::call_limiter::CallTiming;
use tallystone_proto::admin::v1::namespace_service_server;
use tallystone_proto::counter::v1::counter_service_server;
use tallystone_proto::experiment::v1::experiment_service_server;
use tallystone_proto::history::v1::history_service_server;
use tallystone_proto::queue::v1::queue_service_server;
use tallystone_proto::rule::v1::rule_service_server;
use tallystone_proto::{AUDITED_METHODS, SHARE_TAKING_METHODS, TIMED_METHODS, WAITING_METHODS};

/// The service of counters.
pub const COUNTERS: &str = counter_service_server::SERVICE_NAME;
/// The service of namespaces.
pub const NAMESPACES: &str = namespace_service_server::SERVICE_NAME;
/// The service of queues.
pub const QUEUES: &str = queue_service_server::SERVICE_NAME;
/// The service of the history of messages.
pub const HISTORY: &str = history_service_server::SERVICE_NAME;
/// The service of experiments.
pub const EXPERIMENTS: &str = experiment_service_server::SERVICE_NAME;
/// The service of counter rules.
pub const RULES: &str = rule_service_server::SERVICE_NAME;

/// The least similarity at which an existing path is suggested for an unknown one.
const LIKE_MIN: f64 = 0.9;

/// The future of a generated service's answer.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// A generated service, with its type erased.
pub trait GrpcService: Send + Sync {
    /// Starts a call.
    fn call(&self, request: http::Request<Body>) -> ResponseFuture;
}

impl<S> GrpcService for S
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = ResponseFuture>
        + Clone
        + Send
        + Sync,
{
    fn call(&self, request: http::Request<Body>) -> ResponseFuture {
        // Generated services are always ready; a clone is one reference count.
        Service::call(&mut self.clone(), request)
    }
}

/// A service that the first call of it builds, because it takes long to build and few servers are asked for it.
pub struct BuiltByFirstCall(LazyLock<Box<dyn GrpcService>>);

impl BuiltByFirstCall {
    /// A service that is not built yet.
    pub const fn new(build: fn() -> Box<dyn GrpcService>) -> Self {
        Self(LazyLock::new(build))
    }
}

impl GrpcService for BuiltByFirstCall {
    fn call(&self, request: http::Request<Body>) -> ResponseFuture {
        self.0.call(request)
    }
}

/// The descriptors of all services of this build, decoded once in a process.
static DESCRIPTORS: LazyLock<[DescriptorPool; 4]> = LazyLock::new(|| {
    let sets = [
        tallystone_proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    sets.map(|set| DescriptorPool::decode(set).expect("descriptors of this build decode"))
});

/// The slot of a service; empty until the service is mounted.
pub type ServiceSlot = Arc<OnceLock<Box<dyn GrpcService>>>;

pub struct Method {
    /// The descriptor, with the input and output types.
    pub descriptor: MethodDescriptor,
    /// The slot of the method's service.
    pub service: ServiceSlot,
    pub metrics: MethodMetrics,
    /// The limits of lists in its requests, if it has lists.
    pub lists: Option<Arc<ListLimits>>,
    /// The bytes reserved for an answer before it is built; 0 for answers that are always small.
    pub answer_bytes: u32,
    /// Whether either side is a stream.
    pub streaming: bool,
    /// Whether it belongs to this service, not to health or reflection.
    pub own: bool,
    /// The role that a caller needs. None: any caller with a valid key may call it.
    pub role: Option<AccessRole>,
    /// Its class, by which it is refused while calls take too long. None: it is never refused for that, and does not
    /// count.
    pub class: Option<CallClass>,
    /// Whether the time of its calls says how busy the server is.
    pub timing: CallTiming,
    /// Whether it may change state: true unless its descriptor declares no side effects.
    pub changes: bool,
    /// Whether calls are recorded as acts of operators.
    pub audited: bool,
    /// Whether its service needs the caller's address: to record who made a change, or for the share of a caller.
    pub wants_peer: bool,
    /// Whether a call may wait inside the server for an event.
    pub waits: bool,
}

/// All methods by path.
pub struct Methods {
    by_path: HashMap<Box<str>, Arc<Method>>,
    mounts: HashMap<Box<str>, ServiceSlot>,
    /// Calls of methods that do not exist.
    unknown: MethodMetrics,
}

impl Methods {
    /// Builds the table from all descriptors.
    pub fn new(metrics: &CallMetrics) -> Self {
        let mut methods = Self { by_path: HashMap::new(), mounts: HashMap::new(), unknown: metrics.method("unknown") };
        for service in DESCRIPTORS.iter().flat_map(DescriptorPool::services) {
            methods.add(&service, metrics);
        }
        methods
    }

    fn add(&mut self, service: &prost_reflect::ServiceDescriptor, metrics: &CallMetrics) {
        let mount = ServiceSlot::default();
        let own = service.full_name().starts_with("tallystone.");
        for descriptor in service.methods() {
            let name = format!("{}/{}", service.full_name(), descriptor.name());
            let declares = |names: &[&str]| names.binary_search(&descriptor.full_name()).is_ok();
            let method = Method {
                streaming: descriptor.is_client_streaming() || descriptor.is_server_streaming(),
                service: Arc::clone(&mount),
                metrics: metrics.method(&name),
                answer_bytes: if own { answer_bytes(&descriptor.output()) } else { ANSWER_LIST_BYTES },
                lists: Some(descriptor.input()).filter(|_| own).and_then(|input| ListLimits::of(&input)).map(Arc::new),
                own,
                role: role_of(descriptor.full_name()),
                class: class_of(descriptor.full_name()),
                timing: if declares(TIMED_METHODS) { CallTiming::Timed } else { CallTiming::Untimed },
                audited: declares(AUDITED_METHODS),
                changes: own && !is_without_side_effects(&descriptor),
                wants_peer: declares(AUDITED_METHODS) || declares(SHARE_TAKING_METHODS),
                waits: declares(WAITING_METHODS),
                descriptor,
            };
            self.by_path.insert(format!("/{name}").into(), Arc::new(method));
        }
        self.mounts.insert(service.full_name().into(), mount);
    }

    /// Fills the slot of a service.
    pub fn mount(&self, name: &str, service: impl GrpcService + 'static) {
        let mount = self.mounts.get(name).expect("every service of this build has descriptors");
        assert!(mount.set(Box::new(service)).is_ok(), "service {name} is mounted once");
    }

    /// A method that every caller may call, by its path. O(1).
    pub fn known(&self, path: &str) -> Option<&Arc<Method>> {
        self.by_path.get(path).filter(|_| !Self::is_internal(path))
    }

    /// Finds a method that every caller may call, by its path, or says which one may be meant.
    pub fn public(&self, path: &str) -> Result<&Arc<Method>, ApiError> {
        self.known(path).ok_or_else(|| self.no_method(path))
    }

    /// Finds a method by its path; those between servers only where they are served.
    pub fn served(&self, path: &str) -> Result<&Arc<Method>, ApiError> {
        let is_served = |method: &&Arc<Method>| !Self::is_internal(path) || method.service.get().is_some();
        self.by_path.get(path).filter(is_served).ok_or_else(|| self.no_method(path))
    }

    /// The error of a call of a method that is not there. Counts the call, and looks for a method that may be meant.
    fn no_method(&self, path: &str) -> ApiError {
        let shown: String = path.chars().take(200).collect();
        let what = match self.closest_match(path) {
            Some(known) => format!("there is no {shown}; did you mean {known}?"),
            None => {
                format!("there is no {shown}; call POST /package.Service/Method, for example /{COUNTERS}/GetCount")
            }
        };
        let refusal = ApiError::new(Reason::UnknownMethod, what);
        self.unknown.record(refusal.code(), Duration::ZERO);
        refusal
    }

    /// Whether a path belongs to the protocol between servers.
    pub fn is_internal(path: &str) -> bool {
        path.starts_with("/tallystone.internal.")
    }

    /// Finds the existing path most similar to an unknown one: a method of the same service, else any.
    fn closest_match(&self, path: &str) -> Option<&str> {
        if path.len() > SIMILAR_NAME_BYTES_MAX {
            return None;
        }
        let service = path.rsplit_once('/').map_or("", |(service, _)| service);
        let known_service = service.strip_prefix('/').is_some_and(|service| self.mounts.contains_key(service));
        let alike =
            |left: &str, right: &str| strsim::jaro_winkler(&left.to_ascii_lowercase(), &right.to_ascii_lowercase());
        let similar = |known: &str| match known.strip_prefix(service) {
            Some(method) if known_service => alike(method, &path[service.len()..]),
            None if known_service => 0.0,
            Some(_) | None => alike(known, path),
        };
        let public = self.by_path.keys().filter(|known| !Self::is_internal(known));
        let paths = public.map(|known| (similar(known), &**known));
        paths
            .filter(|(score, _)| *score >= LIKE_MIN)
            .max_by(|left, right| left.0.total_cmp(&right.0))
            .map(|(_, known)| known)
    }
}

/// The bytes that an answer may take: most for lists of messages with payloads, less for other lists or one payload.
fn answer_bytes(output: &MessageDescriptor) -> u32 {
    let is_many = |field: &FieldDescriptor| field.is_list() || field.is_map();
    let inner = |field: &FieldDescriptor| match field.kind() {
        Kind::Message(message) => Some(message),
        _ => None, // no other kind holds fields
    };
    let has_payload = |message: &MessageDescriptor| {
        let below = message.fields().filter_map(|field| inner(&field));
        message
            .fields()
            .chain(below.flat_map(|below| below.fields().collect::<Vec<_>>()))
            .any(|field| field.kind() == Kind::Bytes)
    };
    let fields: Vec<FieldDescriptor> = output.fields().collect();
    match () {
        () if fields.iter().filter(|field| is_many(field)).filter_map(inner).any(|item| has_payload(&item)) => {
            ANSWER_PAYLOADS_BYTES
        }
        () if fields.iter().any(is_many) || has_payload(output) => ANSWER_LIST_BYTES,
        () => 0,
    }
}

/// Whether the method has no side effects.
fn is_without_side_effects(method: &MethodDescriptor) -> bool {
    let options = method.method_descriptor_proto().options.as_ref();
    options.is_some_and(|options| options.idempotency_level() == IdempotencyLevel::NoSideEffects)
}

/// The role that a method of ours needs, as its proto declares it.
fn role_of(name: &str) -> Option<AccessRole> {
    let (_, number) = tallystone_proto::METHOD_ROLES.iter().find(|(method, _)| *method == name)?;
    Some(AccessRole::from_number(*number).expect("the protos declare roles of this build"))
}

/// The class of a method of ours, as its proto declares it.
fn class_of(name: &str) -> Option<CallClass> {
    let (_, number) = tallystone_proto::METHOD_CLASSES.iter().find(|(method, _)| *method == name)?;
    Some(CallClass::from_number(*number).expect("the protos declare classes of this build"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn a_typo_is_answered_with_the_method_that_was_meant() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let service = "/tallystone.counter.v1.CounterService";
        let meant = |path: &str| methods.closest_match(path).map(str::to_owned);
        assert_eq!(meant(&format!("{service}/GetCounts")), Some(format!("{service}/GetCount")));
        assert_eq!(meant(&format!("{service}/addcount")), Some(format!("{service}/AddCount")));
        assert_eq!(meant("/tallystone.counter.v1.CounterServices/AddCount"), Some(format!("{service}/AddCount")));
        for unlike in [format!("{service}/Nothing"), format!("{service}/"), "/".to_owned(), String::new()] {
            assert_eq!(meant(&unlike), None, "{unlike}");
        }
    }

    #[test]
    fn every_method_has_a_class_and_timed_ones_are_quick() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let all = || methods.by_path.values();
        assert!(all().all(|method| method.class.is_some() == method.own));
        let named = |name: &str| all().find(|method| method.own && method.descriptor.name() == name);
        for method in all().filter(|method| method.timing == CallTiming::Timed) {
            let is_quick = method.class <= Some(CallClass::Enqueue) && !method.streaming && !method.waits;
            assert!(is_quick, "{}", method.descriptor.full_name());
        }
        let class = |name: &str| named(name).and_then(|method| method.class).expect("the method exists");
        let classes =
            ["Complete", "Heartbeat", "Dequeue", "AddCount", "Enqueue", "GetCount", "RecountCounter"].map(class);
        let [settle, work] = [CallClass::Settle, CallClass::Work];
        assert_eq!(classes, [settle, settle, work, work, CallClass::Enqueue, CallClass::Read, CallClass::List]);
    }

    #[test]
    fn every_audited_call_names_its_target() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let audited: Vec<_> = methods.by_path.values().filter(|method| method.audited).collect();
        assert_eq!(audited.len(), AUDITED_METHODS.len());
        for method in audited {
            let (name, input) = (method.descriptor.full_name(), method.descriptor.input());
            let fields = ["queue", "namespace", "name", "rule", "operation_id", "dry_run", "document", "experiment"];
            let is_of_all = name.ends_with("CreateBackup");
            assert!(is_of_all || fields.iter().any(|field| input.get_field_by_name(field).is_some()), "{name}");
        }
    }

    #[test]
    fn every_call_that_destroys_or_copies_everything_is_audited() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let words =
            ["Delete", "Purge", "Discard", "Clear", "CancelMessage", "Reset", "CreateBackup", "Rotate", "Export"];
        let is_such =
            |method: &&Arc<Method>| method.own && words.iter().any(|word| method.descriptor.name().starts_with(word));
        let such: Vec<_> = methods.by_path.values().filter(is_such).collect();
        assert!(such.len() >= 12, "{} calls", such.len());
        for method in such {
            assert!(method.audited && method.wants_peer, "{}", method.descriptor.full_name());
        }
    }

    #[test]
    fn answers_with_lists_and_payloads_need_room_and_small_ones_none() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let room = |name: &str| {
            let found = methods.by_path.values().find(|method| method.own && method.descriptor.name() == name);
            found.expect("the method exists").answer_bytes
        };
        for name in ["PeekMessages", "ListMessages", "Dequeue"] {
            assert_eq!(room(name), ANSWER_PAYLOADS_BYTES, "{name}");
        }
        for name in ["BatchAddCounts", "BatchGetCounts", "BatchEnqueue", "GetMessage", "ListQueues", "TopCounters"] {
            assert_eq!(room(name), ANSWER_LIST_BYTES, "{name}");
        }
        for name in ["GetMessageTrace", "SearchMessages", "ListFindings"] {
            assert_eq!(room(name), ANSWER_LIST_BYTES, "{name}");
        }
        for name in ["AddCount", "GetCount", "Enqueue", "Complete"] {
            assert_eq!(room(name), 0, "{name}");
        }
    }

    #[test]
    fn methods_that_only_read_are_known_as_such() {
        let methods = Methods::new(&CallMetrics::register(&mut Registry::default()));
        let reads = |method: &Method| {
            let name = method.descriptor.name();
            // A backup is created for its caller; the server stores nothing of it.
            ["Get", "BatchGet", "List", "Search", "Top", "Watch", "Peek", "Explain", "Plan", "Compare", "CreateBackup"]
                .iter()
                .any(|verb| name.starts_with(verb))
        };
        for (path, method) in methods.by_path.iter().filter(|(_, method)| method.own) {
            assert_eq!(method.changes, !reads(method), "{path}");
        }
    }
}
