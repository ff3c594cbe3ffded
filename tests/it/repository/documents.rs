//! The page on configuration: every document that it shows can be applied as it stands.

use std::fs;
use std::path::Path;

use tallystone::api::documents::parse;
use tallystone::domain::counter::NamespaceName;

#[test]
fn every_document_of_the_configuration_page_can_be_applied() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = fs::read_to_string(path).expect("the page is there");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let name = NamespaceName::new("views").expect("a valid name");
    let mut documents = 0;
    for block in blocks {
        let (language, text) = block.split_once('\n').expect("a block has a first line");
        if !["toml", "json"].contains(&language) {
            continue;
        }
        let read = parse(text, Some(&name)).unwrap_or_else(|reject| panic!("{}:\n{text}", reject.message));
        assert!(read.iter().all(|one| one.unmapped.is_empty()), "{read:?}");
        documents += 1;
    }
    assert_eq!(documents, 4, "our TOML, a hot counter, our JSON, the published form");
}
