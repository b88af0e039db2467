-- Version 1. The same text for SQLite and PostgreSQL.

-- What happened, in order. The book is what these events lead to; nothing is changed here, and only what is
-- older than a closed slot is removed, by `prune`.
create table event (
    number bigint primary key check (number > 0),
    body text not null
);

-- The book after an event, so that a start does not read all of them; also the one before the first event
-- that is kept.
create table snapshot (
    number bigint primary key,
    book text not null
);

-- A closed slot: the pool's side. What is spent is received, and the cap only moves.
create table settlement (
    slot bigint primary key check (slot >= 0),
    gateways bigint not null check (gateways >= 0),
    spent bigint not null check (spent >= 0),
    received bigint not null check (received = spent),
    moved bigint not null check (moved = 0),
    credits bigint not null check (credits >= 0),
    root text not null
);

-- The gateways' side.
create table statement (
    slot bigint not null,
    seat bigint not null check (seat >= 0),
    gateway text not null,
    opening bigint not null check (opening >= 0),
    spent bigint not null check (spent >= 0 and spent <= opening),
    received bigint not null check (received >= 0),
    moved bigint not null,
    closing bigint not null check (closing >= 0),
    primary key (slot, gateway),
    check (closing = opening - spent + received + moved)
);
