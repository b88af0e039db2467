use super::*;
use crate::table::Source;

fn read(text: &str) -> Result<(Share, Sharing<'_>), ConfigError> {
    let mut table = Source::new(text, "isp.toml", &[]).top()?;
    let sharing = sharing(&mut table, &mut ByMatch)?;
    table.finish()?;
    Ok((sharing.share.clone(), sharing))
}

fn error(text: &str) -> String {
    match read(text) {
        Ok(_) => panic!("{text} was read"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn an_empty_table_is_sixteen_fair_queues_with_soft_signals() {
    let (share, sharing) = read("").unwrap();
    assert_eq!(share, Share::Flows(16));
    assert_eq!((sharing.signal, sharing.rtt_max), (Signal::Soft, Span::millis(100)));
}

#[test]
fn classes_nest_and_say_what_belongs_to_them() {
    let text = r#"
        rtt_max = "50ms"
        signal = "hard"
        share = "priority"
        [[class]]
        name = "voice"
        match = ["dscp:ef", "port:udp/5060", "ip:203.0.113.0/24"]
        [[class]]
        name = "rest"
        share = "weighted"
        [[class.class]]
        name = "work"
        weight = 3
        queues = 8
        match = ["dscp:af21"]
        [[class.class]]
        name = "play"
    "#;
    let (share, sharing) = read(text).unwrap();
    let Share::Priority(classes) = share else { panic!("{share:?}") };
    assert_eq!(classes[0].matches.len(), 3);
    assert_eq!(classes[0].matches[0], Criterion::Dscp(46));
    let Share::Weighted(inside) = &classes[1].share else { panic!("{classes:?}") };
    assert_eq!((inside[0].weight, &inside[0].share), (3, &Share::Flows(8)));
    assert_eq!((inside[1].weight, &inside[1].share), (1, &Share::Flows(1)));
    assert_eq!(inside[0].matches, [Criterion::Dscp(18)]);
    assert_eq!(sharing.spec(Rate::mbit(10)).rtt_max, Span::millis(50));
}

#[test]
fn errors_name_line_and_key_and_what_is_allowed() {
    for (text, wanted) in [
        (
            "queues = 0",
            "isp.toml:1: queues: found the number 0, expected a whole number from 1 to 64",
        ),
        ("signal = \"sofd\"", "did you mean `soft`?"),
        ("share = \"weighted\"", "isp.toml:1: share: `share` without classes"),
        ("[[class]]\nname = \"a\"", "isp.toml:1: class: classes without `share` above them"),
        ("share = \"weighted\"\nqueues = 3\n[[class]]\nname = \"a\"", "isp.toml:2: queues: "),
        (
            "share = \"weighted\"\n[[class]]\nname = \"a\"\nweight = -1",
            "isp.toml:4: class.weight: found the number -1, expected a whole number from 1 to 256",
        ),
        (
            "share = \"priority\"\n[[class]]\nname = \"a\"\nweight = 2",
            "isp.toml:4: class.weight: `weight` of a class under `share = \"priority\"`",
        ),
        ("share = \"weighted\"\n[[class]]\nwieght = 2", "class.name: missing"),
        (
            "share = \"weighted\"\n[[class]]\nname = \"a\"\nwieght = 2",
            "isp.toml:4: class.wieght: unknown key (did you mean `weight`?); allowed: name",
        ),
        (
            "share = \"weighted\"\n[[class]]\nname = \"a\"\nmatch = [\"dspc:ef\"]",
            "did you mean `dscp:`?",
        ),
        (
            "share = \"weighted\"\n[[class]]\nname = \"a\"\nmatch = [\"dscp:64\"]",
            "isp.toml:4: class.match: `64` is not a DSCP",
        ),
    ] {
        let found = error(text);
        assert!(found.contains(wanted), "{text}\n{found}\nwanted {wanted}");
    }
}

#[test]
fn dscps_have_their_names() {
    let known = [("df", 0), ("cs6", 48), ("af41", 34), ("EF", 46), ("le", 1), ("63", 63)];
    for (text, number) in known {
        assert_eq!(dscp(text), Ok(number));
    }
    for wrong in ["", "64", "cs8", "af14", "af51", "cs", "af", "-1", "expedited"] {
        assert!(dscp(wrong).is_err(), "{wrong}");
    }
}
