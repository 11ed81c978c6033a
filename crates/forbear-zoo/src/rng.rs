//! Chance from a seed: the same seed gives the same faults in the same order.

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): small, fast and good enough to roll dice.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// The next number in `[0, 1)`.
    pub fn next_f64(&mut self) -> f64 {
        // 53 bits are what an f64 can hold without rounding up to 1.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The finisher of `SplitMix64`: spreads every bit of `value` over all 64.
pub(crate) fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash that is the same in every process, for keys and labels (FNV-1a, then mixed).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_first_numbers_of_seed_1234567() {
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn rolls_stay_below_one_and_have_the_right_mean() {
        let mut rng = SplitMix64::new(7);
        let rolls: Vec<f64> = (0..10_000).map(|_| rng.next_f64()).collect();
        assert!(rolls.iter().all(|roll| (0.0..1.0).contains(roll)));
        let mean = rolls.iter().sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
