
impl crate::mutant::Change for Part {
    fn changed(self, percent: i128) -> Part {
        Part::of((self.numerator * 100).changed(percent), self.denominator * 100)
    }
}
