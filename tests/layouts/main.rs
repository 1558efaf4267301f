//! Random programs, models and layouts: under every layout a program computes what it computes on one device, or
//! the layout is refused with a reason.
//!
//! `SHARDAX_ROUNDS=10 cargo test --test layouts` runs ten times as many of them.

mod models;
mod programs;
mod specs;

use std::ops::Range;

/// Random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 33) as usize % sides
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.roll(all.len())]
    }
}

/// The rounds of a test that has so many in a usual run.
fn rounds(usual: usize) -> Range<usize> {
    let times = std::env::var("SHARDAX_ROUNDS").ok();
    let times = times.and_then(|times| times.parse().ok()).unwrap_or(1);
    0..usual * times
}
