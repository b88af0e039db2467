//! `fairweir isp`: polices the subscribers of an access network.

mod assemble;
mod csv;
mod journal;
mod plan;
mod read;
mod registry;
