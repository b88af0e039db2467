//! Operating systems, kinds of devices, and sets of them.

use std::marker::PhantomData;

/// An operating system, with what its devices have in common on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Os {
    /// Android.
    Android,
    /// ChromeOS.
    Chromeos,
    /// FreeBSD.
    Freebsd,
    /// iOS, and the systems of Apple's tablets, televisions, speakers and watches.
    Ios,
    /// Other systems with the kernel Linux, also those of televisions and appliances.
    Linux,
    /// macOS.
    Macos,
    /// Nintendo's consoles.
    Nintendo,
    /// Sony's consoles.
    Playstation,
    /// Windows, also on the Xbox.
    Windows,
}

/// What a device is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A desktop or a laptop.
    Computer,
    /// A console for games.
    Console,
    /// A phone.
    Phone,
    /// A printer.
    Printer,
    /// A tablet.
    Tablet,
    /// A television, or a box at one.
    Television,
    /// Anything else: speakers, cameras, lamps.
    Appliance,
}

/// A closed list of words.
pub trait Word: Copy + Eq + 'static {
    /// Each with its name in files; at most 16.
    const ALL: &'static [(&'static str, Self)];

    /// The name in files.
    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, word)| *word == self);
        found.map(|(name, _)| *name).expect("invariant: each word is in the list")
    }
}

impl Word for Os {
    const ALL: &'static [(&'static str, Os)] = &[
        ("android", Os::Android),
        ("chromeos", Os::Chromeos),
        ("freebsd", Os::Freebsd),
        ("ios", Os::Ios),
        ("linux", Os::Linux),
        ("macos", Os::Macos),
        ("nintendo", Os::Nintendo),
        ("playstation", Os::Playstation),
        ("windows", Os::Windows),
    ];
}

impl Word for Kind {
    const ALL: &'static [(&'static str, Kind)] = &[
        ("computer", Kind::Computer),
        ("console", Kind::Console),
        ("phone", Kind::Phone),
        ("printer", Kind::Printer),
        ("tablet", Kind::Tablet),
        ("television", Kind::Television),
        ("appliance", Kind::Appliance),
    ];
}

/// The word of this name.
///
/// # Errors
/// The words that are allowed.
pub(super) fn parse<W: Word>(name: &str) -> Result<W, String> {
    let found = W::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, word)| *word).ok_or_else(|| {
        let names: Vec<_> = W::ALL.iter().map(|(name, _)| *name).collect();
        let shown: String = name.chars().take(40).collect();
        format!("unknown word `{shown}`; expected one of {}", names.join(", "))
    })
}

/// Some words of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<W>(u16, PhantomData<W>);

impl<W: Word> Set<W> {
    /// All words.
    pub fn all() -> Set<W> {
        Set((1 << W::ALL.len()) - 1, PhantomData)
    }

    /// The set of these words.
    pub fn of(words: &[W]) -> Set<W> {
        let place = |word: &W| W::ALL.iter().position(|(_, known)| known == word);
        let bits = words.iter().filter_map(place).fold(0, |bits, at| bits | 1 << at);
        Set(bits, PhantomData)
    }

    /// The words that are in both sets.
    pub fn and(self, other: Set<W>) -> Set<W> {
        Set(self.0 & other.0, PhantomData)
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The word, if the set has exactly one.
    pub fn only(self) -> Option<W> {
        let mut words = self.words();
        words.next().filter(|_| words.next().is_none())
    }

    /// The words in the order of the list.
    pub fn words(self) -> impl Iterator<Item = W> {
        let all = W::ALL.iter().enumerate();
        all.filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, (_, word))| *word)
    }
}
