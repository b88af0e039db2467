//! What each device and application has transferred.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::connection::Connection;
use crate::rules::Rules;

/// Payload bytes by device and application: down, up.
pub type Usage = BTreeMap<(IpAddr, Option<String>), [u64; 2]>;

/// Adds the bytes that the connection has moved.
pub(crate) fn add(usage: &mut Usage, rules: &Rules, connection: &Connection) {
    if connection.moved == [0; 2] {
        return;
    }
    let app = connection.app.map(|app| rules.name_of(app).to_owned());
    let mut key = (connection.from, app);
    if usage.len() >= USAGES_MAX && !usage.contains_key(&key) {
        // Once the table is full, new devices are counted together.
        key = (IpAddr::from([0, 0, 0, 0]), None);
    }
    let sum = usage.entry(key).or_default();
    sum[0] += connection.moved[0];
    sum[1] += connection.moved[1];
}

/// Maximum number of (device, application) entries kept after their connections have ended.
const USAGES_MAX: usize = 4_096;
