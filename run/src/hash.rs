//! A hash of integers, for choices that are to depend on a seed and nothing else.

/// One step of SplitMix64 from `x`: all bits of the result depend on all bits of `x`.
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.)
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn is_splitmix64() {
        // The generator's first two outputs for the seed 0, as published with it.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }
}
