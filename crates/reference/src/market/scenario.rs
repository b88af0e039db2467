//! The paper's estimate of the others' spends: scenarios with probabilities (Algorithm 2).
//!
//! Each scenario predicts what a gateway will receive; after each slot Bayes' rule weighs scenarios
//! by how close they were. The printed likelihood divides by zero if there is one scenario or all
//! are exact, and a scenario with probability zero never returns: both problems are solved here.

/// The probabilities of scenarios after `observed` was received and each scenario had predicted its
/// value in `predicted`. Probabilities are at least `floor` before they are normalised.
///
/// # Panics
/// If `prior` and `predicted` have different lengths.
pub fn posterior(prior: &[f64], observed: f64, predicted: &[f64], floor: f64) -> Vec<f64> {
    assert_eq!(prior.len(), predicted.len(), "every scenario has a prediction");
    let squares: Vec<f64> = predicted.iter().map(|p| (observed - p) * (observed - p)).collect();
    let all: f64 = squares.iter().sum();
    let others = prior.len().saturating_sub(1);
    // If all predictions are equally good, the scenarios are equally likely.
    let likelihood = |square: f64| match all > 0.0 && others > 0 {
        true => ((1.0 - square / all) / others as f64).max(0.0),
        false => 1.0,
    };
    let products: Vec<f64> = prior.iter().zip(squares).map(|(p, s)| p * likelihood(s)).collect();
    let sum: f64 = products.iter().sum();
    let even = 1.0 / prior.len().max(1) as f64;
    let floored: Vec<f64> =
        products.iter().map(|p| if sum > 0.0 { (p / sum).max(floor) } else { even }).collect();
    let sum: f64 = floored.iter().sum();
    floored.into_iter().map(|p| p / sum).collect()
}
