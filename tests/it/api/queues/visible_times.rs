//! Messages that are sent for a time of the calendar.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::{Reason, Timestamp};
use tallystone::ports::Clock as _;

use super::on_stores::{mail, on_every_store_at};
use super::refusals::violations;
use super::{Wire, at, lease, settle, with_mail};

/// The id of the one message that is there, which is completed.
async fn taken(server: &Wire) -> Value {
    let lease = lease(server).await;
    server.done("Complete", settle(&lease)).await;
    lease["message"]["messageId"].clone()
}

#[tokio::test]
async fn a_message_that_is_sent_for_a_time_is_invisible_until_then() {
    on_every_store_at(mail(), async |server, clock| {
        let after = |seconds: i64| at_of(clock, seconds);
        let sent = |time: &str| json!({"queue": "mail", "message": {"message_id": "later", "visible_time": time}});
        let first = server.done("Enqueue", sent(&after(3_600))).await;
        assert_eq!((&first["state"], &first["alreadyEnqueued"]), (&json!("MESSAGE_STATE_INVISIBLE"), &json!(false)));
        let messages = json!([
            {"message_id": "soon", "visible_time": after(60)},
            {"message_id": "past", "visible_time": after(-60)},
            {"message_id": "both", "visible_time": after(60), "invisibility": "60s"},
            {"message_id": "far", "visible_time": after(11 * 366 * 86_400)},
        ]);
        let results =
            server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await["results"].clone();
        assert_eq!(results[0]["state"], "MESSAGE_STATE_INVISIBLE");
        assert_eq!(results[1]["state"], "MESSAGE_STATE_PENDING", "a time in the past means at once");
        assert_eq!(results[2]["error"]["reason"], "INVALID_ARGUMENT", "{results}");
        assert_eq!(results[3]["error"]["reason"], "INVALID_RANGE", "{results}");
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "later"})).await;
        assert_eq!(found["message"]["visibleTime"], json!(after(3_600)));
        assert_eq!(taken(server).await, "past");
        clock.advance(Duration::from_secs(61));
        assert_eq!(taken(server).await, "soon");
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(taken(server).await, "later");
        let again = server.done("Enqueue", sent(&at_of(clock, -61))).await;
        assert_eq!(again["state"], "MESSAGE_STATE_COMPLETED", "a repeat is known, and says what came between");
        assert_eq!((&again["alreadyEnqueued"], &again["messageKey"]), (&json!(true), &first["messageKey"]));
        server.refused("Enqueue", sent(&after(1)), Reason::TokenReused).await;
    })
    .await;
}

#[tokio::test]
async fn a_time_and_an_invisibility_together_are_refused_by_both_names() {
    let server = with_mail().await;
    let both = json!({"visible_time": at(60.0).to_string(), "invisibility": "60s"});
    let refused = server.refused("Enqueue", json!({"queue": "mail", "message": both}), Reason::InvalidArgument).await;
    assert_eq!(violations(&refused), ["message.invisibility", "message.visible_time"], "{refused}");
    let far = json!({"queue": "mail", "message": {"visible_time": "9999-01-01T00:00:00Z"}});
    let refused = server.refused("Enqueue", far, Reason::InvalidRange).await;
    assert_eq!(violations(&refused), ["message.visible_time"], "{refused}");
}

/// A time this long after that of a clock.
pub(super) fn at_of(clock: &ManualClock, seconds: i64) -> String {
    let micros = clock.now().micros() + seconds * 1_000_000;
    tallystone::api::time::text(Timestamp::from_micros(micros))
}
