//! Requests and replies: one JSON object per line, each with a tag that names its kind.
//!
//! A request has the key `request`. Those of [`Request`] are understood by every daemon; the others
//! belong to the service. A reply has the key `reply`: see [`Reply`].

use serde::{Deserialize, Serialize};

/// A request that every daemon understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The reply is a value: the service's status.
    Status,
    /// Reads the configuration again.
    Reload {
        /// Only check it and report what would change.
        #[serde(default)]
        dry_run: bool,
        /// Apply it even if it looks like a mistake, such as a file that lost much of its contents.
        #[serde(default)]
        force: bool,
    },
    /// Removes everything from the kernel and exits.
    Off,
    /// The reply is a value: OpenMetrics text.
    Metrics {
        /// Include this many of the busiest members (subscribers, connections), by name.
        #[serde(default)]
        top: usize,
    },
}

impl Request {
    /// The tags that distinguish these requests from those of a service.
    pub(crate) const TAGS: [&str; 4] = ["status", "reload", "off", "metrics"];

    /// Whether the request changes something, so that clients with read access may not send it.
    pub(crate) fn changes_something(self) -> bool {
        match self {
            Request::Status | Request::Metrics { .. } | Request::Reload { dry_run: true, .. } => {
                false
            }
            Request::Reload { dry_run: false, .. } | Request::Off => true,
        }
    }
}

/// A reply as the client reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply<T> {
    /// The requested value.
    Value {
        /// The value; the service documents its schema.
        value: T,
    },
    /// The request was carried out.
    Done {
        /// A description of what was done.
        message: String,
    },
    /// The request was refused or failed; nothing was changed.
    Error {
        /// The reason.
        message: String,
    },
    /// The request takes long; the reply follows.
    Progress {
        /// The number of items that are done.
        done: usize,
        /// The number of all items.
        of: usize,
    },
}

/// A reply as the daemon writes it: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(String);

impl Answer {
    /// A reply with a value.
    pub fn value(value: &impl Serialize) -> Answer {
        Answer::of(&Reply::Value { value })
    }

    /// A reply that something was done, or failed.
    pub fn outcome(outcome: Result<String, String>) -> Answer {
        match outcome {
            Ok(message) => Answer::of(&Reply::<()>::Done { message }),
            Err(message) => Answer::error(message),
        }
    }

    /// A reply that refuses a request.
    pub fn error(message: impl Into<String>) -> Answer {
        Answer::of(&Reply::<()>::Error { message: message.into() })
    }

    pub(crate) fn progress(done: usize, of: usize) -> Answer {
        Answer::of(&Reply::<()>::Progress { done, of })
    }

    /// The line, including its end.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn of<T: Serialize>(reply: &Reply<T>) -> Answer {
        Answer(as_line(reply))
    }
}

/// `value` as one line of JSON.
///
/// # Panics
/// If `value` has map keys other than strings.
pub fn as_line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value)
        .expect("invariant: what is sent over the socket has string keys");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_as_they_are_written() {
        let read =
            |answer: &Answer| serde_json::from_slice::<Reply<u32>>(answer.as_bytes()).unwrap();
        assert_eq!(read(&Answer::value(&7)), Reply::Value { value: 7 });
        assert_eq!(
            read(&Answer::outcome(Ok("added".into()))),
            Reply::Done { message: "added".into() }
        );
        assert_eq!(read(&Answer::outcome(Err("no".into()))), Reply::Error { message: "no".into() });
        assert_eq!(read(&Answer::progress(1, 2)), Reply::Progress { done: 1, of: 2 });
        assert!(Answer::value(&"two\nlines").as_bytes().ends_with(b"lines\"}\n"));
    }

    #[test]
    fn tags_are_those_of_the_requests() {
        let all = [
            Request::Status,
            Request::Reload { dry_run: false, force: true },
            Request::Off,
            Request::Metrics { top: 0 },
        ];
        let tags = all.map(|r| serde_json::to_value(r).unwrap()["request"].clone());
        assert_eq!(tags, Request::TAGS);
        let bare: Request = serde_json::from_str(r#"{"request":"reload"}"#).unwrap();
        assert_eq!(bare, Request::Reload { dry_run: false, force: false });
    }
}
