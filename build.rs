//! Compiles the protos without `protoc`, so that a fresh machine needs the Rust toolchain only. Also makes the table of the
//! roles that methods need; a method that declares none fails the build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::Compiler;
use protox::prost_reflect::DescriptorPool;

/// The option of a method that declares its role.
const ROLE: &str = "tallystone.access.v1.role";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut compiler = Compiler::new([root])?;
    compiler.include_source_info(true).include_imports(true).open_files(&files)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("method_roles.rs"), roles(&compiler.descriptor_pool())?)?;
    let descriptors = compiler.file_descriptor_set();
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure().build_client(true).build_server(true).compile_fds(descriptors)?;
    Ok(())
}

/// The full name of each method of ours with the number of its role, in the order of names, as an array of Rust.
fn roles(pool: &DescriptorPool) -> Result<String, Box<dyn std::error::Error>> {
    let option = pool.get_extension_by_name(ROLE).ok_or("the protos define no roles")?;
    let mut rows = BTreeMap::new();
    for service in pool.services() {
        for method in service.methods() {
            let role = method.options().get_extension(&option).as_enum_number().unwrap_or_default();
            if role == 0 {
                return Err(format!("{} declares no role: add option ({ROLE})", method.full_name()).into());
            }
            rows.insert(method.full_name().to_owned(), role);
        }
    }
    let rows: String = rows.iter().map(|(method, role)| format!("    ({method:?}, {role}),\n")).collect();
    Ok(format!("&[\n{rows}]\n"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
