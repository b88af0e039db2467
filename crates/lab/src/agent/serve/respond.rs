//! A server that writes the requested amounts, one request after the other on each connection.

use std::io::{self, Write};
use std::net::TcpStream;

use super::super::request;
use super::{CHUNK, PAYLOAD};
use crate::clock::Clock;
use crate::job::Job;

pub(in super::super) fn respond(mut stream: TcpStream, _: &Job, _: Clock) -> io::Result<()> {
    // The end of an answer must not wait for the ACK of earlier data.
    stream.set_nodelay(true)?;
    loop {
        let mut left = request::read(&mut stream)?;
        while left > 0 {
            let length = left.min(CHUNK as u64);
            stream.write_all(&PAYLOAD[..length as usize])?;
            left -= length;
        }
    }
}
