//! Refusals and explanations say what to do next, as a call and as a command.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::with_mail;

fn text(refused: &Value) -> String {
    refused["message"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn the_nearest_shape_is_there_for_programs_where_there_is_one() {
    let server = with_mail().await;
    let by = |queue: &str, filter: Value| json!({"queue": queue, "filter": filter});
    let none = server.refused("GetDepth", by("mail", json!({"a": "x"})), Reason::FilterNotDeclared).await;
    assert_eq!(none["details"][0]["metadata"].get("nearest"), None, "{none}");
    assert!(text(&none).contains("queue update --filter-shape"), "{none}");
    let shapes = json!([{"keys": ["size", "colour"]}, {"keys": ["team"]}]);
    server.done("CreateQueue", json!({"queue": {"name": "shop", "filter_shapes": shapes}})).await;
    let colour = server.refused("GetDepth", by("shop", json!({"colour": "x"})), Reason::FilterNotDeclared).await;
    assert_eq!(colour["details"][0]["metadata"]["nearest"], "colour,size", "{colour}");
    assert!(text(&colour).contains("the nearest is colour, size: ask with that one"), "{colour}");
}
