//! Floats of eight bits, as elements of arrays.
//!
//! A number is rounded to the nearest, halves to the even one. Above the largest, `E5M2` has
//! infinities and `E4M3FN` only NaN. (Micikevicius and others: "FP8 formats for deep learning", 2022.)

use std::fmt;

/// How the bits are divided.
struct Format {
    mantissa: u32,
    bias: i32,
    /// The least code that is not a finite number.
    limit: u8,
    /// What is too large becomes this.
    overflow: u8,
    nan: u8,
}

const E4M3FN: Format = Format {
    mantissa: 3,
    bias: 7,
    limit: 0x7f,
    overflow: 0x7f,
    nan: 0x7f,
};

const E5M2: Format = Format {
    mantissa: 2,
    bias: 15,
    limit: 0x7c,
    overflow: 0x7c,
    nan: 0x7e,
};

impl Format {
    fn encode(&self, value: f64) -> u8 {
        let sign = u8::from(value.is_sign_negative()) << 7;
        let size = value.abs();
        if value.is_nan() {
            return sign | self.nan;
        }
        if size == 0.0 {
            return sign;
        }
        // No type has an exponent outside of this range.
        let exponent = size.log2().floor().clamp(-100.0, 100.0) as i32;
        let exponent = exponent.max(1 - self.bias);
        let unit = 2f64.powi(exponent - self.mantissa as i32);
        let steps = (size / unit).round_ties_even().min(1e6) as i32;
        // A subnormal number has an exponent field of 0, one too small; so has its mantissa no
        // leading one to take away. Rounding up to the next power of two carries over.
        let code = ((exponent + self.bias) << self.mantissa) + steps - (1 << self.mantissa);
        match u8::try_from(code) {
            Ok(code) if code < self.limit => sign | code,
            _ => sign | self.overflow,
        }
    }

    fn decode(&self, bits: u8) -> f64 {
        let code = bits & 0x7f;
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        if code >= self.limit {
            let infinite = code == self.overflow && self.overflow != self.nan;
            return if infinite {
                sign * f64::INFINITY
            } else {
                f64::NAN
            };
        }
        let field = i32::from(code >> self.mantissa);
        let fraction = i32::from(code) & ((1 << self.mantissa) - 1);
        let leading = if field == 0 { 0 } else { 1 << self.mantissa };
        let unit = 2f64.powi(field.max(1) - self.bias - self.mantissa as i32);
        sign * f64::from(leading + fraction) * unit
    }
}

macro_rules! float8 {
    ($($(#[$doc:meta])* $name:ident $format:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The nearest number.
            pub fn from_f64(value: f64) -> Self {
                $name($format.encode(value))
            }

            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                $name(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The same number.
            pub fn to_f64(self) -> f64 {
                $format.decode(self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f64(), f)
            }
        }
    )*};
}

float8!(
    /// Four exponent and three mantissa bits; up to 448.
    F8E4M3FN E4M3FN,
    /// Five exponent and two mantissa bits; up to 57344, and infinities.
    F8E5M2 E5M2
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_nearest_to_its_number() {
        for bits in 0..=u8::MAX {
            let (a, b) = (F8E4M3FN::from_bits(bits), F8E5M2::from_bits(bits));
            assert!(
                a.to_f64().is_nan() || F8E4M3FN::from_f64(a.to_f64()) == a,
                "{bits:#x}"
            );
            assert!(
                b.to_f64().is_nan() || F8E5M2::from_f64(b.to_f64()) == b,
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn limits_and_rounding() {
        let e4m3 = |v: f64| F8E4M3FN::from_f64(v).to_f64();
        assert_eq!(e4m3(448.0), 448.0);
        assert_eq!(e4m3(464.0), 448.0);
        assert!(e4m3(465.0).is_nan() && e4m3(f64::INFINITY).is_nan());
        assert_eq!(e4m3(1.0625), 1.0);
        assert_eq!(e4m3(1.1875), 1.25);
        assert_eq!(e4m3(2f64.powi(-9)), 2f64.powi(-9));
        assert_eq!(e4m3(2f64.powi(-10)), 0.0);
        assert_eq!(e4m3(-0.0).to_bits(), (-0.0f64).to_bits());
        let e5m2 = |v: f64| F8E5M2::from_f64(v).to_f64();
        assert_eq!(e5m2(57344.0), 57344.0);
        assert_eq!(e5m2(1e300), f64::INFINITY);
        assert_eq!(e5m2(-61440.0), f64::NEG_INFINITY);
        assert_eq!(e5m2(3.0e-5), 2f64.powi(-15));
    }
}
