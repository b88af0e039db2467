//! Suggestions for misspelt words.

/// The known word that is most similar to `word`, if any is similar.
pub fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    known
        .into_iter()
        .map(|k| (strsim::osa_distance(word, k), k))
        // A word without any letter in common is not similar.
        .filter(|&(slips, k)| slips <= slips_max(word) && slips < k.chars().count())
        .min()
        .map(|(_, k)| k)
}

/// ` (did you mean `weight`?)`, or nothing if no known word is similar.
pub fn did_you_mean<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    let near = nearest(word, known);
    near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// Says that `word` is not one of `words`, and which was probably meant.
pub fn not_one_of(word: &str, words: &[&str]) -> String {
    format!("unknown value `{word}`{}", choices(word, words))
}

/// A list of choices, such as ` (did you mean `a`?); allowed: a, b`.
pub(crate) fn choices(word: &str, words: &[&str]) -> String {
    let listed = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
    format!("{}; allowed: {listed}", did_you_mean(word, words.iter().copied()))
}

/// How many letters of a word may be wrong: one, and one more for every four letters.
pub(crate) fn slips_max(word: &str) -> usize {
    1 + word.chars().count() / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_word_is_found_and_a_different_one_is_not() {
        assert_eq!(nearest("wieght", ["name", "weight"]), Some("weight"));
        assert_eq!(nearest("zzz", ["name", "weight"]), None);
        assert_eq!(nearest("a", ["b"]), None);
        assert_eq!(
            not_one_of("crap", &["crab", "none"]),
            "unknown value `crap` (did you mean `crab`?); allowed: crab, none"
        );
    }
}
