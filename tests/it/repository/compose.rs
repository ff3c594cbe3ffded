//! `docker-compose.yml`, `Dockerfile` and what they mount, as far as they can be held to the truth without Docker: the
//! profiles are there, every service has a health check and a fixed version, commands are ones that this binary takes,
//! settings and metrics that are named exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tallystone::app::{cli, config};
use yaml_rust2::{Yaml, YamlLoader};

const PROFILES: [&str; 8] = ["cassandra", "core", "fleet", "memcached", "observability", "redis", "scylla", "valkey"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(documents.len(), 1, "{path} is one document");
    documents.remove(0)
}

fn words(list: &Yaml) -> Vec<String> {
    let items = list.as_vec().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
}

fn services() -> BTreeMap<String, Yaml> {
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_hash().expect("there are services");
    services.iter().map(|(name, service)| (name.as_str().expect("a name").to_owned(), service.clone())).collect()
}

#[test]
fn every_profile_is_there_and_every_service_has_one() {
    let mut found = BTreeSet::new();
    for (name, service) in services() {
        let profiles = words(&service["profiles"]);
        assert!(!profiles.is_empty(), "{name} would start with every profile");
        found.extend(profiles);
    }
    assert_eq!(found, PROFILES.map(str::to_owned).into());
}

#[test]
fn every_service_has_a_health_check_a_version_and_ports_of_this_machine_only() {
    for (name, service) in services() {
        let test = words(&service["healthcheck"]["test"]);
        assert!(["CMD", "CMD-SHELL"].contains(&test[0].as_str()) && test.len() > 1, "{name}: {test:?}");
        for key in ["interval", "timeout", "retries"] {
            assert!(!service["healthcheck"][key].is_badvalue(), "{name} has no healthcheck.{key}");
        }
        let image = service["image"].as_str().unwrap_or_else(|| panic!("{name} has an image"));
        let version = image.rsplit_once(':').map(|(_, version)| version);
        assert!(version.is_some_and(|version| version.contains('.') && version != "latest"), "{name}: {image}");
        for port in words(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name} is open to everybody at {port}");
        }
    }
}

#[test]
fn what_is_mounted_and_kept_exists() {
    let compose = yaml("docker-compose.yml");
    let declared: BTreeSet<&str> =
        compose["volumes"].as_hash().expect("there are volumes").keys().filter_map(Yaml::as_str).collect();
    let mut used = BTreeSet::new();
    for (name, service) in services() {
        for volume in words(&service["volumes"]) {
            let source = volume.split(':').next().expect("a source").to_owned();
            match source.strip_prefix("./") {
                Some(path) => assert!(root().join(path).is_file(), "{name} mounts {path}"),
                None => assert!(declared.contains(source.as_str()), "{name} keeps {source}"),
            }
            used.insert(source);
        }
    }
    assert!(declared.iter().all(|volume| used.contains(*volume)), "every volume is used");
}

/// Whether this binary takes the words as they stand.
fn check_command(words: &[String]) {
    let taken = cli::command().try_get_matches_from(words);
    assert!(taken.is_ok(), "{words:?}: {}", taken.expect_err("it is refused"));
}

#[test]
fn the_commands_of_the_server_are_ones_that_it_takes_and_so_are_its_settings() {
    let services = services();
    let server = &services["tallystone"];
    check_command(&[vec!["tallystone".to_owned()], words(&server["command"])].concat());
    check_command(&words(&server["healthcheck"]["test"])[1..]);
    let variables = server["environment"].as_hash().expect("it has settings");
    let environment = variables.iter().map(|(name, value)| {
        // An unset variable of the host leaves its default, which is empty.
        let value = value.as_str().expect("a text").replace("${TALLYSTONE_OTLP_ENDPOINT:-}", "");
        (name.as_str().expect("a text").to_owned(), value)
    });
    let sources = config::ConfigSources { environment: environment.collect(), ..config::ConfigSources::default() };
    config::load(&sources).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_servers_of_the_fleet_take_their_settings_and_run_on_services_of_their_profile() {
    let services = services();
    let server = &services["tallystone-fleet"];
    assert_eq!(words(&server["entrypoint"]), ["/bin/sh", "-c"]);
    let steps = words(&server["command"]);
    for step in steps[0].split("&&") {
        let step: Vec<String> = step.trim().trim_start_matches("exec ").split(' ').map(str::to_owned).collect();
        check_command(&step);
    }
    let mounted = words(&server["volumes"])[0].clone();
    let (source, target) = mounted.trim_end_matches(":ro").split_once(':').expect("a source and a target");
    assert_eq!(server["environment"]["TALLYSTONE_CONFIG"].as_str(), Some(target));
    let sources =
        config::ConfigSources { file: Some((root().join(source), text(source))), ..config::ConfigSources::default() };
    let config = config::load(&sources).unwrap_or_else(|error| panic!("{error}")).config;
    let in_profile =
        |name: &str| services.get(name).is_some_and(|found| words(&found["profiles"]).contains(&"fleet".into()));
    let config::Config { counters, queues, cache, best_effort, .. } = &config;
    for cluster in [&counters.cluster, &queues.cluster, &cache.cluster, &best_effort.cluster] {
        let host = config.clusters[cluster].servers.to_string();
        let host = host.split(':').next().expect("a host").to_owned();
        assert!(in_profile(&host), "{cluster}: no service {host} starts with the fleet");
        assert!(!server["depends_on"][host.as_str()].is_badvalue(), "the server would start before {host}");
    }
    let second = &services["tallystone-fleet-2"];
    check_command(&[vec!["tallystone".to_owned()], words(&second["command"])].concat());
    assert_eq!(words(&second["volumes"]), words(&server["volumes"]), "both have the same settings");
    assert!(!second["depends_on"]["tallystone-fleet"].is_badvalue(), "the first one makes the keyspace");
    for (name, service) in [("tallystone-fleet", server), ("tallystone-fleet-2", second)] {
        let advertised = service["environment"]["TALLYSTONE__SERVER__ADVERTISE"].as_str();
        assert_eq!(advertised, Some(format!("{name}:7450").as_str()), "each is reached under its own name");
    }
}

#[test]
fn the_metrics_of_each_server_are_read() {
    let settings = yaml("docs/observability/prometheus.yml");
    let found = &settings["scrape_configs"][0]["dns_sd_configs"][0];
    let read: BTreeSet<String> = words(&found["names"]).into_iter().collect();
    let servers = services().into_iter().filter(|(_, service)| service["build"].as_str() == Some("."));
    let servers: BTreeMap<String, Yaml> = servers.collect();
    assert_eq!(read, servers.keys().cloned().collect());
    let port = found["port"].as_i64().expect("an address has no port");
    for (name, server) in servers {
        let published = words(&server["ports"]);
        assert!(published.iter().all(|one| one.ends_with(&format!(":{port}"))), "{name} listens at {published:?}");
    }
}

/// The arguments of an instruction of the Dockerfile in its list form.
fn list(instruction: &str) -> Vec<String> {
    let begin = instruction.find('[').unwrap_or_else(|| panic!("{instruction} is no list"));
    serde_json::from_str(&instruction[begin..]).expect("a list of texts")
}

#[test]
fn the_image_is_built_from_what_is_there_and_runs_what_the_binary_takes() {
    let dockerfile = text("Dockerfile");
    let instructions: Vec<&str> =
        dockerfile.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let of = |name: &str| instructions.iter().copied().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
    let manifest = text("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("a version of Rust");
    assert!(of("FROM")[0].contains(&format!("rust:{}-", version.trim_matches('"'))), "{:?}", of("FROM"));
    // Cargo refuses a manifest whose tests or members are missing, so everything is copied that is not left out by name.
    assert!(of("COPY").contains(&"COPY . ."), "{:?}", of("COPY"));
    for left_out in text(".dockerignore").lines().filter(|line| !line.is_empty()) {
        assert!([".git", "target", "tallystone-data"].contains(&left_out), "{left_out} may be needed to build");
    }
    let begin = list(of("ENTRYPOINT")[0]);
    check_command(&[begin, list(of("CMD")[0])].concat());
    check_command(&list(of("HEALTHCHECK")[0]));
    assert_eq!(of("USER"), ["USER 10001"], "Kubernetes knows a numeric user for one that is not root");
}

#[test]
fn dashboards_and_alerts_name_metrics_that_are_documented() {
    let documented = text("docs/operating.md");
    let folder = root().join("docs/observability");
    let mut named = 0;
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a text");
        named += check_metrics(&path, &text, &documented);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => drop(serde_json::from_str::<serde_json::Value>(&text).expect("JSON")),
            Some("yml") => drop(YamlLoader::load_from_str(&text).expect("YAML")),
            other => panic!("{}: what is a {other:?}?", path.display()),
        }
    }
    assert!(named > 20, "metrics are found: {named}");
}

/// Checks every metric of a text; answers how many there are.
fn check_metrics(path: &Path, text: &str, documented: &str) -> usize {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let names = text.split(|character: char| !is_part(character)).filter(|word| word.starts_with("tallystone_"));
    let names: BTreeSet<&str> = names.collect();
    for name in &names {
        // A histogram is documented by its own name.
        let base = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        assert!(documented.contains(&format!("`{base}`")), "{}: {name} is not documented", path.display());
    }
    names.len()
}

/// The settings that the manual asks for: each with its value, which is a word in backquotes, or none where it depends.
fn settings_of_redis() -> Vec<(String, Option<String>)> {
    let manual = text("docs/operating.md");
    let table = manual.split("Settings of Redis itself:").nth(1).expect("there is a table");
    let rows = table.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    let word = |cell: &str| cell.split('`').nth(1).map(str::to_owned);
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        (word(cells[0]).expect("a setting"), word(cells[1]))
    })
    .collect()
}

#[test]
fn redis_and_valkey_have_the_settings_that_the_manual_asks_for() {
    let (services, settings) = (services(), settings_of_redis());
    assert!(settings.len() >= 5, "{settings:?}");
    for name in ["redis", "valkey"] {
        let command = words(&services[name]["command"]);
        for (setting, value) in &settings {
            let given = command.iter().position(|word| *word == format!("--{setting}")).map(|at| &command[at + 1]);
            let given = given.unwrap_or_else(|| panic!("{name} lacks {setting}"));
            assert!(value.as_ref().is_none_or(|value| value == given), "{name}: {setting} {given}");
        }
    }
}
