//! Makes the protocol from the protos in `proto/`, without `protoc`, for the test of this package.
//!
//! Also makes the tables of the roles that methods need and of their classes; a method that does not declare both fails. Also
//! makes the list of the fields that only the service sets, and their checks.

mod output_only;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::Compiler;
use protox::prost_reflect::DescriptorPool;

/// The option of a method that declares its role.
const ROLE: &str = "tallystone.access.v1.role";
/// The option of a method that declares its class.
const CLASS: &str = "tallystone.access.v1.class";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", protos.display());
    let made = PathBuf::from(env::var("OUT_DIR")?).join("protocol");
    if made.exists() {
        fs::remove_dir_all(&made)?;
    }
    fs::create_dir_all(&made)?;
    generate(&protos, &made)
}

/// Compiles the protos into files of a folder.
fn generate(protos: &Path, out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    collect(protos, &mut files)?;
    files.sort();
    let mut compiler = Compiler::new([protos])?;
    compiler.include_source_info(true).include_imports(true).open_files(&files)?;
    let pool = compiler.descriptor_pool();
    fs::write(out.join("method_roles.rs"), declared(&pool, ROLE)?)?;
    fs::write(out.join("method_classes.rs"), declared(&pool, CLASS)?)?;
    fs::write(out.join("output_only_fields.rs"), output_only::fields(&pool))?;
    fs::write(out.join("output_only_checks.rs"), output_only::checks(&pool)?)?;
    let descriptors = compiler.file_descriptor_set();
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let services = tonic_prost_build::configure().build_client(true).build_server(true);
    services.out_dir(out).compile_fds(descriptors)?;
    Ok(())
}

/// The full name of each method of ours with the number that it declares by an option, in the order of names, as an array of
/// Rust.
fn declared(pool: &DescriptorPool, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let option = pool.get_extension_by_name(name).ok_or_else(|| format!("the protos define no option {name}"))?;
    let mut rows = BTreeMap::new();
    for service in pool.services() {
        for method in service.methods() {
            let number = method.options().get_extension(&option).as_enum_number().unwrap_or_default();
            if number == 0 {
                return Err(format!("{} lacks an option: add option ({name})", method.full_name()).into());
            }
            rows.insert(method.full_name().to_owned(), number);
        }
    }
    let rows: String = rows.iter().map(|(method, number)| format!("    ({method:?}, {number}),\n")).collect();
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
