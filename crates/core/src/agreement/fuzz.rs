//! Fuzz targets: datagrams to a divider, to a client, and among hosts.

use std::net::{IpAddr, SocketAddr};

use super::client::Client;
use super::cookie::Key;
use super::divider::{Divider, Subscribers};
use super::message::{MESSAGE_MAX, Message, Outcome, Seen};
use super::peers::Said;
use super::peers::said::SAID_MAX;
use super::{Classes, LEASE};
use crate::units::{Rate, Span, Time};

/// The only subscriber, and whether its download is divided.
struct One(bool);

impl Subscribers for One {
    type Id = ();

    fn owner(&self, _: IpAddr) -> Option<()> {
        Some(())
    }

    fn offer(&self, (): &()) -> Result<Rate, Outcome> {
        Ok(Rate::mbit(20))
    }

    fn divide(&mut self, (): &(), classes: &Classes) -> bool {
        assert!((1..=16).contains(&classes.weights().len()));
        assert!(classes.weights().iter().all(|weight| (1..=256).contains(weight)));
        self.0 = true;
        true
    }

    fn undivide(&mut self, (): &()) {
        self.0 = false;
    }

    fn is_divided(&self, (): &()) -> bool {
        self.0
    }

    fn seen(&self, (): &(), _: Time) -> Seen {
        Seen::default()
    }
}

/// What is read is written again unchanged; an answer is never longer than what it answers; without the cookie no
/// bytes make a divider divide, and without its nonce no bytes make a client believe.
pub(crate) fn agreement(data: &[u8]) {
    if let Some(network) = data.get(8..16).and_then(|eight| eight.try_into().ok())
        && let Some(said) = Said::read(data, u64::from_be_bytes(network))
    {
        assert!(data.len() <= SAID_MAX && said.bytes(u64::from_be_bytes(network)) == data);
    }
    if let Some(message) = Message::read(data) {
        assert!(data.len() <= MESSAGE_MAX && message.bytes() == data);
    }
    let (now, client): (_, SocketAddr) = (Time::from_nanos(1 << 50), ([192, 0, 2, 1], 7).into());
    let (mut one, mut divider) = (One(false), Divider::new(Key([9; 16]), 1));
    // With the cookie, as sent by a client on the path.
    let mut proven = data.to_vec();
    if let Some(nonce) = data.get(8..16).and_then(|nonce| nonce.try_into().ok()) {
        let cookie = Key([9; 16]).cookie(client, u64::from_be_bytes(nonce), now);
        if let Some(place) = proven.get_mut(16..32) {
            place.copy_from_slice(&cookie);
        }
    }
    let answer = divider.handle_datagram(client, data, now, &mut one);
    assert!(answer.is_none_or(|answer| answer.bytes().len() <= data.len()));
    // The fuzzer sees the value with which the cookie is compared.
    assert!(!one.0 || proven == data, "the cookie is a secret");
    let answer = divider.handle_datagram(client, &proven, now, &mut one);
    assert!(answer.is_none_or(|answer| answer.bytes().len() <= data.len()));
    divider.handle_tick(now + LEASE, &mut one);
    assert!(!one.0, "no lease outlives its time");
    let classes = Classes::new(vec![5, 1], 1).expect("two classes");
    let mut asking = Client::new(classes, 3, now);
    asking.handle_tick(&[], now);
    let Some(Message::Hello { nonce }) = asking.poll_datagram() else { unreachable!("it asks") };
    asking.handle_datagram(data, now + Span::millis(1));
    assert!(asking.agreement().is_none(), "without a cookie first");
    let cookie = Message::Cookie { nonce, cookie: [1; 16] };
    asking.handle_datagram(&cookie.bytes(), now + Span::millis(2));
    assert!(matches!(asking.poll_datagram(), Some(Message::Ask(_))));
    asking.handle_datagram(data, now + Span::millis(3));
    let is_guessed = data.get(8..16) == Some(&nonce.to_be_bytes()[..]);
    assert!(is_guessed || asking.agreement().is_none(), "with another nonce");
}
