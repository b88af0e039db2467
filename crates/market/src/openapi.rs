//! The machine-readable description of the API, `docs/reference/market.openapi.json`. Its schemas are those of
//! [`messages`](crate::messages), exactly as the server reads and writes them.
//!
//! `FAIRWEIR_WRITE=1 cargo test -p fairweir-market --lib openapi` writes the file.

use std::path::Path;
use std::{env, fs};

use fairweir_core::market::ledger;
use fairweir_core::market::rates::{self, Mode};
use fairweir_core::units::Rate;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::messages::{Account, BidBody, Bids, Clock, EnrolBody, Enrolled, Leased, Left, Prices};

/// `application/problem+json`.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "a schema only")]
struct Problem {
    /// The HTTP status.
    status: u16,
    /// What is wrong, and what is allowed.
    title: String,
    /// The invalid part of the request.
    field: Option<String>,
    /// The kind of error: `slot_closed` for a late bid.
    #[schemars(default)]
    kind: Option<String>,
    /// The slot that takes bids now; only with `slot_closed`.
    #[schemars(default)]
    open_slot: Option<u64>,
}

struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// Whether only gateways may send this request.
    is_private: bool,
    body: Option<Schema>,
    answer: Schema,
}

fn operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let operation = |method, path, id, summary, body: Option<Schema>, answer| Operation {
        method,
        path,
        id,
        summary,
        is_private: !matches!(id, "clock" | "enrol"),
        body,
        answer,
    };
    vec![
        operation(
            "get",
            "/v1/clock",
            "clock",
            "The server's time, the open slot, when its bids end, the rules",
            None,
            schemas.subschema_for::<Clock>(),
        ),
        operation(
            "post",
            "/v1/enrolments",
            "enrol",
            "Enrol with a one-time code",
            Some(schemas.subschema_for::<EnrolBody>()),
            schemas.subschema_for::<Enrolled>(),
        ),
        operation(
            "put",
            "/v1/gateways/{name}/bids/{slot}",
            "bid",
            "Bid for a slot; the same once more changes nothing, else the higher sequence counts",
            Some(schemas.subschema_for::<BidBody>()),
            schemas.subschema_for::<crate::messages::Bid>(),
        ),
        operation(
            "put",
            "/v1/gateways/{name}/bids",
            "bids",
            "Bid for up to 48 slots, all or none",
            Some(schemas.subschema_for::<Bids>()),
            schemas.subschema_for::<Bids>(),
        ),
        operation(
            "get",
            "/v1/gateways/{name}/statements",
            "statements",
            "Balance, bids, and the last 48 statements",
            None,
            schemas.subschema_for::<Account>(),
        ),
        operation(
            "get",
            "/v1/gateways/{name}/lease",
            "lease",
            "The rate of the last closed slot, and its end",
            None,
            schemas.subschema_for::<Leased>(),
        ),
        operation(
            "get",
            "/v1/prices",
            "prices",
            "Prices and roots of the last 48 slots; none below 8 gateways",
            None,
            schemas.subschema_for::<Prices>(),
        ),
        operation(
            "post",
            "/v1/leave",
            "leave",
            "Leave the market",
            None,
            schemas.subschema_for::<Left>(),
        ),
    ]
}

fn parameters(path: &str) -> Vec<Value> {
    let parameter = |name: &str, schema: Value| {
        let is_there = path.contains(&format!("{{{name}}}"));
        is_there.then(|| json!({ "name": name, "in": "path", "required": true, "schema": schema }))
    };
    let name = parameter("name", json!({ "type": "string", "pattern": "^gw-[0-9]{1,20}$" }));
    let slot = parameter("slot", json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }));
    name.into_iter().chain(slot).collect()
}

fn described(operation: Operation, problem: &Schema) -> Value {
    let json_of = |schema: &Schema| json!({ "application/json": { "schema": schema } });
    let failed = json!({
        "description": "Nothing was changed",
        "content": { "application/problem+json": { "schema": problem } },
    });
    let away = json!({
        "description": "The database is away or full; whether it was done is not known, so ask again",
        "content": { "application/problem+json": { "schema": problem } },
    });
    let mut value = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters(operation.path),
        "responses": {
            "200": { "description": "Done", "content": json_of(&operation.answer) },
            "4XX": failed,
            "503": away,
        },
        "security": if operation.is_private { json!([{ "certificate": [] }]) } else { json!([]) },
    });
    if let Some(body) = &operation.body {
        value["requestBody"] = json!({ "required": true, "content": json_of(body) });
    }
    value
}

/// The whole document.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let problem = schemas.subschema_for::<Problem>();
    let mut paths = Map::new();
    for operation in operations(&mut schemas) {
        let (path, method) = (operation.path, operation.method);
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[method] = described(operation, &problem);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "fairweir market",
            "version": "1",
            "description": "The credit market's server: HTTP/1.1 over TLS 1.3.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "https://market.example.net:7443" }],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": { "certificate": { "type": "mutualTLS" } },
        },
    })
}

#[test]
fn the_description_in_the_documents_is_that_of_the_server() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/market.openapi.json");
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if env::var_os("FAIRWEIR_WRITE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/market.openapi.json is not of this version; \
         `FAIRWEIR_WRITE=1 cargo test -p fairweir-market --lib openapi` writes it"
    );
}

#[test]
fn schemas_of_other_crates_have_their_keys() {
    let terms = rates::Terms { mode: Mode::Float, capacity: Rate::mbit(1), floor_percent: 10 };
    let schemas = &document()["components"]["schemas"];
    for (name, value) in [
        ("Terms", serde_json::to_value(terms).unwrap()),
        ("Statement", serde_json::to_value(ledger::Statement::default()).unwrap()),
    ] {
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), keys(&schemas[name]["properties"]), "{name}");
    }
}
