//! Schemas for types of `fairweir_core`, which define none themselves.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Credits as a decimal string in micro-credits, at most 10^6 credits.
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

/// Mirrors `fairweir_core::market::rates::Terms`; a test compares the two.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "a schema only")]
pub(crate) struct Terms {
    /// How spends become rates: `float`, `even` or `plain`.
    mode: String,
    /// The link's capacity, in bit/s.
    capacity: u64,
    /// The part of the capacity that is divided evenly, in percent.
    floor_percent: u64,
}

/// Mirrors `fairweir_core::market::ledger::Statement`; a test compares the two.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "a schema only")]
pub(crate) struct Statement {
    /// The balance before the slot.
    opening: Amount,
    /// What the gateway paid for the slot.
    spent: Amount,
    /// The gateway's part of what the others paid.
    received: Amount,
    /// Micro-credits that the cap redistributed to the gateway; negative if it took them.
    moved: i64,
    /// The balance after the slot.
    closing: Amount,
}
