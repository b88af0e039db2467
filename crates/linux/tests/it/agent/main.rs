//! A process that the tests start under other names: `agent VERB ADDRESS` waits for a line, acts,
//! prints what it created, and ends when its input ends.
#![allow(clippy::unwrap_used, reason = "it is part of a test")]

use std::io::{BufRead, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use fairweir_core::receiver::{ConnectionSample, ConnectionWindow, Windows};
use fairweir_core::units::{Bytes, Rate};
use fairweir_linux::police::Hook;
use fairweir_linux::{Attached, Host, HostSpec, Mode};

#[path = "../common/specs.rs"]
mod specs;
use specs::{allocation, police, policy};

/// The bound that the verb `bound` gives to all connections.
const BOUND_BYTES: u64 = 50_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    // The parent's end of the pipe closes in whatever way the parent ends.
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    perform(&args[1], &args[2]);
}

fn perform(verb: &str, address: &str) {
    match verb {
        "tcp-connect" => {
            let stream = TcpStream::connect(address).unwrap();
            ready(stream.local_addr().unwrap());
            drain(stream);
        }
        "tcp-listen" => {
            let listener = TcpListener::bind(address).unwrap();
            ready(listener.local_addr().unwrap());
            for stream in listener.incoming() {
                drain(stream.unwrap());
            }
        }
        "udp-bound" => {
            let socket = UdpSocket::bind(address).unwrap();
            ready(socket.local_addr().unwrap());
            while socket.recv(&mut [0; 2_000]).is_ok() {}
        }
        "udp-connected" => {
            let wildcard = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(wildcard).unwrap();
            socket.connect(address).unwrap();
            ready(socket.local_addr().unwrap());
            while socket.recv(&mut [0; 2_000]).is_ok() {}
        }
        "host" | "host-clsact" => {
            let policy = policy(&[("a", &["app:nobody"])]);
            let spec = HostSpec {
                dev: address.into(),
                policy,
                mode: Mode::Shape,
                census: false,
                marks: false,
            };
            let mut host = match verb {
                "host" => Host::attach(&spec).unwrap(),
                _ => Host::attach_by_clsact(&spec).unwrap(),
            };
            host.apply(&allocation(&[Rate::mbit(5); 2])).unwrap();
            assert_eq!(host.limits(), [""; 0]);
            ready(std::process::id());
            loop {
                host.beat().unwrap();
                thread::sleep(Duration::from_millis(200));
            }
        }
        "bound" => {
            let policy = policy(&[]);
            let spec = HostSpec {
                dev: address.into(),
                policy,
                mode: Mode::Count,
                census: false,
                marks: false,
            };
            let mut host = Host::attach(&spec).unwrap();
            ready(std::process::id());
            let window = Bytes::new(BOUND_BYTES);
            loop {
                let samples = host.take_connections().unwrap();
                let bound = |s: &ConnectionSample| ConnectionWindow { id: s.id, window };
                let connections = samples.iter().map(bound).collect();
                host.apply_windows(&Windows { connections, initial: vec![Some(window)] }).unwrap();
                host.beat().unwrap();
                thread::sleep(Duration::from_millis(200));
            }
        }
        "police" => {
            let _police = police(address, Hook::Xdp);
            ready(std::process::id());
            loop {
                thread::park();
            }
        }
        _ => panic!("the agent cannot {verb}"),
    }
}

fn ready(what: impl std::fmt::Display) {
    println!("ready {what}");
}

fn drain(mut stream: TcpStream) {
    let mut buffer = [0; 65_536];
    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
}
