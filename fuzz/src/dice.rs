//! Random numbers that are the same in every run.

/// A generator (splitmix64) of numbers for the choices that make a program.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
    /// Sizes that dimensions have more often than others; at least one.
    pub favored: Vec<usize>,
}

impl Dice {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Dice {
            state: seed,
            favored: vec![2, 3, 4],
        }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `sides`, which is at least 1.
    pub fn roll(&mut self, sides: usize) -> usize {
        (self.bits() >> 33) as usize % sides.max(1)
    }

    /// A number of `low..=high`.
    pub fn within(&mut self, low: isize, high: isize) -> isize {
        low + self.roll((high - low + 1).max(1) as usize) as isize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }

    /// A number of `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of several; there is at least one.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.roll(all.len())]
    }

    /// All in another order.
    pub fn shuffled<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let mut all = all.to_vec();
        for i in (1..all.len()).rev() {
            all.swap(i, self.roll(i + 1));
        }
        all
    }
}

/// The seed of program `number` in the run of a seed.
pub fn seed_of(run: u64, number: u64) -> u64 {
    Dice::new(run.wrapping_mul(0xd134_2543_de82_ef95) ^ number).bits()
}
