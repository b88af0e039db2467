//! The thread that talks to the market's server. Meanwhile the daemon can answer its own clients.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use fairweir_market::client::{Client, ClientError};
use fairweir_market::household::Answers;
use fairweir_market::identity::Enrolment;
use fairweir_market::messages::Bid;

/// A request that the thread sends to the server.
pub(super) enum Question {
    Look,
    Bid(Vec<Bid>),
}

/// The server's reply.
pub(super) enum Reply {
    Looked(Result<Answers, ClientError>),
    Placed(Vec<Bid>, Result<(), ClientError>),
}

/// Starts the thread; it ends when the sender drops.
pub(super) fn start(enrolment: Enrolment) -> io::Result<(Sender<Question>, Receiver<Reply>)> {
    let (asks, asked) = channel();
    let (says, said) = channel();
    let ask = move || {
        for question in asked {
            // The address may have changed, so the name is resolved each time.
            let client = Client::of(&enrolment);
            let reply = match question {
                Question::Look => Reply::Looked(client.and_then(|c| c.look(&enrolment.gateway))),
                Question::Bid(bids) => {
                    let placed = client.and_then(|c| c.bid(&enrolment.gateway, bids.clone()));
                    Reply::Placed(bids, placed)
                }
            };
            if says.send(reply).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("market-ask".to_owned()).spawn(ask)?;
    Ok((asks, said))
}
