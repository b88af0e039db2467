use super::super::tests::{busy_tick, control};
use super::*;
use crate::receiver::{Command, Observation};
use crate::units::Bytes;

const BASE: Span = Span::millis(10);

/// Two downloads whose windows at the sender never change, and the link that they pass.
struct Home {
    control: Fairweir,
    link: Rate,
    /// What each sender keeps in flight at most.
    held: [Bytes; 2],
    /// What the control lets each sender keep in flight at most.
    granted: [Option<Bytes>; 2],
    /// What receivers have promised each sender, which no smaller window takes back.
    promised: [Bytes; 2],
    tick: u64,
    arrived: Bytes,
}

impl Home {
    fn new(link: Rate, held: Bytes) -> Home {
        let control = control(&[4, 1], None);
        let (granted, arrived) = ([None; 2], Bytes::ZERO);
        Home {
            control,
            link,
            held: [held; 2],
            granted,
            promised: [Bytes::ZERO; 2],
            tick: 0,
            arrived,
        }
    }

    fn rtt(&self) -> Span {
        let under_way: Bytes = self.under_way().into_iter().sum();
        BASE.max(self.link.time_to_send(under_way))
    }

    fn under_way(&self) -> [Bytes; 2] {
        let most = |i: usize| self.granted[i].map(|granted| granted.max(self.promised[i]));
        [0, 1].map(|i| most(i).map_or(self.held[i], |most| most.min(self.held[i])))
    }

    fn handle_tick(&mut self) {
        self.tick += 1;
        let rtt = self.rtt();
        let rates = self.under_way().map(|bytes| Rate::from_volume(bytes, rtt));
        for (promised, &rate) in self.promised.iter_mut().zip(&rates) {
            *promised = promised.saturating_sub(rate * TICK);
        }
        self.arrived += rates.iter().map(|&rate| rate * TICK).sum();
        let mut seen: Observation = busy_tick(self.tick, &rates, rtt.saturating_sub(BASE));
        let told = self.granted.into_iter().zip(self.promised);
        for (connection, (granted, promised)) in seen.connections.iter_mut().zip(told) {
            connection.rtt = Some(rtt);
            connection.advertised = promised;
            connection.window = granted.unwrap_or(Bytes::new(3 << 20));
        }
        self.control.handle_observation(&seen);
        while let Some(command) = self.control.poll_command() {
            match command {
                Command::Release => self.granted = [None; 2],
                Command::SetRates(_) => {}
                Command::SetWindows(windows) => {
                    for of in windows.connections {
                        self.granted[of.id as usize] = Some(of.window);
                    }
                }
            }
        }
    }

    fn play(&mut self, seconds: u64) {
        (0..seconds * 5).for_each(|_| self.handle_tick());
    }
}

#[test]
fn a_queue_that_never_changes_is_found_by_draining_it() {
    for held in [Bytes::kb(64), Bytes::kb(100), Bytes::kb(500)] {
        let mut home = Home::new(Rate::mbit(40), held);
        assert!(home.rtt() > BASE, "a queue stands before the control begins");
        home.play(3);
        let capacity = home.control.learned_capacity().expect("the link is full");
        let part = capacity.as_bps() as f64 / Rate::mbit(40).as_bps() as f64;
        // L2 bytes are a twentieth more than payload.
        assert!((0.95..1.1).contains(&part), "{capacity} with {held}");
        home.play(30);
        let [first, second] = home.under_way().map(|bytes| bytes.as_u64() as f64);
        assert!((3.6..4.4).contains(&(first / second)), "{first} : {second} with {held}");
    }
}

/// A receiver that has room for a long time promises it; a drain that ends before that is used shows nothing.
#[test]
fn a_drain_lasts_until_what_was_promised_is_used() {
    for promised in [Bytes::kb(100), Bytes::kb(4_000), Bytes::kb(5_000)] {
        let mut home = Home::new(Rate::mbit(40), Bytes::kb(100));
        home.promised = [promised; 2];
        home.play(3);
        assert!(home.control.learned_capacity().is_some(), "{promised} promised");
    }
}

#[test]
fn a_link_that_is_not_full_is_let_go_and_hardly_loses_anything() {
    let mut home = Home::new(Rate::mbit(40), Bytes::kb(10));
    let free = home.under_way().map(|bytes| Rate::from_volume(bytes, BASE));
    home.play(60);
    assert!(!home.control.decision().enforcing && home.control.learned_capacity().is_none());
    let wanted: Bytes = free.iter().map(|&rate| rate * Span::secs(60)).sum();
    let part = home.arrived.as_u64() as f64 / wanted.as_u64() as f64;
    assert!(part > 0.995, "{part}");
}

#[test]
fn what_has_seen_the_link_idle_makes_no_assumption() {
    let mut home = Home::new(Rate::mbit(40), Bytes::kb(1));
    home.handle_tick();
    home.held = [Bytes::kb(10); 2];
    for _ in 0..300 {
        home.handle_tick();
        assert!(!home.control.decision().enforcing);
    }
}
