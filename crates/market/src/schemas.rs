//! Schemas of types that have none because they are `fairweir_core`'s.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Credits as a decimal string of micro-credits, at most 10^6 credits.
pub(crate) struct Amount;

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(0|[1-9][0-9]{0,11}|1000000000000)$",
            "description": "micro-credits, at most 10^12",
        })
    }
}

/// As `fairweir_core::market::rates::Terms`; a test compares them.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "a schema only")]
pub(crate) struct Terms {
    /// How spends become rates: `float`, `even` or `plain`.
    mode: String,
    /// What the link carries, in bit/s.
    capacity: u64,
    /// The part of the capacity that is divided evenly, in percent.
    floor_percent: u64,
}

/// As `fairweir_core::market::ledger::Statement`; a test compares them.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "a schema only")]
pub(crate) struct Statement {
    /// The balance before.
    opening: Amount,
    /// What was paid for the slot.
    spent: Amount,
    /// The part of what the others paid.
    received: Amount,
    /// What the cap gave, or took if negative, in micro-credits.
    moved: i64,
    /// The balance after.
    closing: Amount,
}
