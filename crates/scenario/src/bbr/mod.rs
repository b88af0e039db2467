//! Parts of BBR version 1 that the simulator's TCP and the lab's QUIC share.

mod filter;
mod pipe;

pub use filter::MaxFilter;
pub use pipe::Pipe;
