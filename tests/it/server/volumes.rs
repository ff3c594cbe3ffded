//! Volumes as others give them: of another user and shared by a group, open to everybody, too small, and empty.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::harness::{Launch, Server};

/// A user and a group that own nothing.
const STRANGER: u32 = 54_321;

/// A folder that everybody may enter, with this binary in it.
struct Host {
    folder: TempDir,
}

impl Host {
    /// None where this process may not become somebody else.
    fn new() -> Option<Self> {
        if fs::metadata("/proc/self").expect("/proc is mounted").uid() != 0 {
            println!("NOT RUN: only root starts a server as another user");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let (binary, link) = (env!("CARGO_BIN_EXE_tallystone"), folder.path().join("tallystone"));
        fs::hard_link(binary, &link).or_else(|_| fs::copy(binary, &link).map(drop)).expect("the binary is there");
        Some(Self { folder })
    }

    /// A folder of root with a group and a mode.
    fn volume(&self, name: &str, mode: u32) -> PathBuf {
        let volume = self.folder.path().join(name);
        fs::create_dir(&volume).expect("a name of its own");
        chown(&volume, Some(0), Some(STRANGER)).expect("root may");
        fs::set_permissions(&volume, Permissions::from_mode(mode)).expect("root may");
        volume
    }

    /// A server of the stranger on a folder.
    fn server_on(&self, data: &Path) -> Launch {
        let mut command = Command::new(self.folder.path().join("tallystone"));
        command.uid(STRANGER).gid(STRANGER).args(["server", "start", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        command.args(["--set", "auth.mode=off", "--namespace", "default"]);
        Launch::of(command)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

fn add(server: &Server, namespace: &str) -> u16 {
    let body = format!(r#"{{"namespace": "{namespace}", "counterName": "views", "delta": 1}}"#);
    server.post("/tallystone.counter.v1.CounterService/AddCount", &body).status
}

#[test]
fn a_fresh_server_starts_on_a_volume_of_another_user_that_it_shares_by_its_group() {
    let Some(host) = Host::new() else { return };
    let volume = host.volume("shared", 0o2770);
    // A file system has one of these at its root.
    fs::create_dir(volume.join("lost+found")).expect("a name of its own");
    fs::set_permissions(volume.join("lost+found"), Permissions::from_mode(0o700)).expect("root may");
    for _ in 0..2 {
        let server = host.server_on(&volume).start();
        assert_eq!(add(&server, "default"), 200);
        assert!(server.stop().success());
    }
    assert_eq!(mode(&volume), 0o2770, "it is left as it was");
    for path in names(&volume).iter().filter(|path| !path.ends_with("lost+found")) {
        assert_eq!((mode(path) & 0o077, fs::metadata(path).expect("it is there").uid()), (0, STRANGER), "{path:?}");
    }
}

#[test]
fn what_the_server_owns_on_a_volume_of_another_user_is_tightened_and_nothing_else() {
    let Some(host) = Host::new() else { return };
    let volume = host.volume("copied", 0o2770);
    assert!(host.server_on(&volume).start().stop().success());
    let own = volume.join("keyspaces");
    fs::set_permissions(&own, Permissions::from_mode(0o664)).expect("root may");
    let foreign = volume.join("notes");
    fs::write(&foreign, "of root").expect("root may");
    fs::set_permissions(&foreign, Permissions::from_mode(0o664)).expect("root may");
    assert!(host.server_on(&volume).start().stop().success());
    assert_eq!((mode(&own), mode(&foreign)), (0o600, 0o664));
}

#[test]
fn a_volume_of_another_user_that_people_outside_its_group_could_enter_is_refused_in_a_sentence() {
    let Some(host) = Host::new() else { return };
    for (name, open) in [("readable", 0o2775), ("everybody", 0o2777), ("enterable", 0o2771)] {
        let volume = host.volume(name, open);
        let (status, printed) = host.server_on(&volume).try_start().err().expect("it does not start");
        assert_eq!(status.code(), Some(1), "{printed}");
        let said = format!(
            "the data directory {} belongs to another user, and its mode {open:04o} lets people outside its group in",
            volume.display()
        );
        assert!(printed.contains(&said) && printed.contains("chmod o-rwx"), "{printed}");
        assert!(!printed.contains("Operation not permitted"), "{printed}");
        assert_eq!((names(&volume), mode(&volume)), (vec![], open), "nothing was written");
        // As the sentence says: a folder of its own is closed to all others.
        let own = volume.join("own");
        let server = host.server_on(&own).start();
        assert_eq!((add(&server, "default"), mode(&own) & 0o777), (200, 0o700));
        assert!(server.stop().success());
    }
}

#[test]
fn a_volume_smaller_than_the_reserve_says_so_before_anything_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let start = |reserve: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off", "--data"]).arg(&data);
        command.args(["--set", &format!("storage.reserve_bytes={reserve}")]);
        Launch::of(command)
    };
    let (status, printed) = start("1000000TiB").try_start().err().expect("it does not start");
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("the volume of") && printed.contains(&data.display().to_string()), "{printed}");
    assert!(printed.contains("lower storage.reserve_bytes"), "{printed}");
    assert!(!data.exists(), "nothing was written");
    assert!(start("1MiB").start().stop().success());
    // What a store holds can be read, however much has to be free.
    let server = start("1000000TiB").start();
    let list = server.post("/tallystone.queue.v1.QueueService/ListQueues", "{}");
    assert_eq!(list.status, 200, "{}", list.body);
}

#[test]
fn a_start_makes_the_namespaces_that_it_names_where_they_are_absent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = |names: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off", "--data"]);
        command.arg(folder.path()).args(names.iter().flat_map(|name| ["--namespace", name]));
        Launch::of(command)
    };
    let server = start(&["default"]).start();
    assert_eq!((add(&server, "default"), add(&server, "shop")), (200, 404));
    let described = r#"{"namespace": {"name": "default", "description": "ours"}}"#;
    let changed = server.post("/tallystone.admin.v1.NamespaceService/UpdateNamespace", described);
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert!(server.stop().success());
    let server = start(&["default", "shop", "default"]).start();
    assert_eq!((add(&server, "default"), add(&server, "shop")), (200, 200));
    let kept = server.post("/tallystone.admin.v1.NamespaceService/GetNamespace", r#"{"name": "default"}"#).json();
    assert!(kept.to_string().contains("\"description\":\"ours\""), "one that exists is left as it is: {kept}");
    assert!(server.stop().success());
    for (name, why) in [("tallystone.queues", "choose another name"), ("No Name", "namespace")] {
        let (status, printed) = start(&[name]).try_start().err().expect("it does not start");
        assert!(!status.success() && printed.contains(why), "{name}: {printed}");
    }
}
