//! Makes the protocol from the protos in `proto/`, without `protoc`, for the test of this package.
//!
//! Also makes the tables of what methods declare: a method without a role or a class fails. Also makes the bounds of lists, the list
//! of the fields that only the service sets, and their checks.

mod output_only;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::Compiler;
use protox::prost_reflect::{DescriptorPool, ExtensionDescriptor, MethodDescriptor};

/// The package of the options of methods and fields.
const OPTIONS: &str = "tallystone.access.v1";
/// The options of methods that every method declares, with the tables that are made of them.
const NUMBERS: [(&str, &str); 2] = [("role", "method_roles.rs"), ("class", "method_classes.rs")];
/// The options of methods that some declare, with the lists that are made of them.
const FLAGS: [(&str, &str); 4] = [
    ("audited", "audited_methods.rs"),
    ("takes_share", "share_taking_methods.rs"),
    ("timed", "timed_methods.rs"),
    ("waits", "waiting_methods.rs"),
];

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
    for (option, file) in NUMBERS {
        fs::write(out.join(file), declared(&pool, option)?)?;
    }
    for (option, file) in FLAGS {
        fs::write(out.join(file), flagged(&pool, option)?)?;
    }
    fs::write(out.join("list_bounds.rs"), list_bounds(&pool)?)?;
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
    let option = option(pool, name)?;
    let mut rows = BTreeMap::new();
    for method in methods(pool) {
        let number = method.options().get_extension(&option).as_enum_number().unwrap_or_default();
        if number == 0 {
            return Err(format!("{} lacks an option: add option ({OPTIONS}.{name})", method.full_name()).into());
        }
        rows.insert(method.full_name().to_owned(), number);
    }
    Ok(array(rows.iter().map(|(method, number)| format!("({method:?}, {number})"))))
}

/// The full names of the methods that set an option, in the order of names, as an array of Rust.
fn flagged(pool: &DescriptorPool, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let option = option(pool, name)?;
    let is_set = |method: &MethodDescriptor| method.options().get_extension(&option).as_bool() == Some(true);
    let names: BTreeSet<String> = methods(pool).filter(is_set).map(|method| method.full_name().to_owned()).collect();
    Ok(array(names.iter().map(|name| format!("{name:?}"))))
}

/// The full name of each list that has a bound of its own, with the bound, in the order of names, as an array of Rust.
fn list_bounds(pool: &DescriptorPool) -> Result<String, Box<dyn std::error::Error>> {
    let option = option(pool, "items_max")?;
    let fields = pool.all_messages().flat_map(|message| message.fields().collect::<Vec<_>>());
    let bounds: BTreeMap<String, u32> = fields
        .filter_map(|field| Some((field.full_name().to_owned(), field.options().get_extension(&option).as_u32()?)))
        .filter(|(_, most)| *most > 0)
        .collect();
    Ok(array(bounds.iter().map(|(field, most)| format!("({field:?}, {most})"))))
}

fn option(pool: &DescriptorPool, name: &str) -> Result<ExtensionDescriptor, String> {
    let option = pool.get_extension_by_name(&format!("{OPTIONS}.{name}"));
    option.ok_or_else(|| format!("the protos define no option {OPTIONS}.{name}"))
}

fn methods(pool: &DescriptorPool) -> impl Iterator<Item = MethodDescriptor> + use<> {
    pool.services().collect::<Vec<_>>().into_iter().flat_map(|service| service.methods().collect::<Vec<_>>())
}

/// An array of Rust with an item on each line.
fn array(items: impl Iterator<Item = String>) -> String {
    let rows: String = items.map(|item| format!("    {item},\n")).collect();
    format!("&[\n{rows}]\n")
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
