//! `fairweir isp`: polices the subscribers of an access network.

mod csv;
mod plan;
mod read;
mod registry;
