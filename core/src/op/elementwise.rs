//! Functions of single elements, and how elements are combined.

/// Declares an enum of operations whose printed names stand beside them.
macro_rules! named {
    ($(#[$doc:meta])* $enum:ident { $($(#[$variant_doc:meta])* $variant:ident $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $enum {
            /// All of them, in alphabetical order of their names.
            pub const ALL: &[$enum] = &[$($enum::$variant),*];

            /// The name that is printed in a graph.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)*
                }
            }
        }
    };
}

named! {
    /// Element-wise functions of one operand.
    Unary {
        /// Absolute value; that of a complex number is real.
        Abs "abs",
        /// Inverse cosine.
        Acos "acos",
        /// Inverse hyperbolic cosine.
        Acosh "acosh",
        /// Inverse sine.
        Asin "asin",
        /// Inverse hyperbolic sine.
        Asinh "asinh",
        /// Inverse tangent.
        Atan "atan",
        /// Inverse hyperbolic tangent.
        Atanh "atanh",
        /// Cube root.
        Cbrt "cbrt",
        /// Smallest integer not below.
        Ceil "ceil",
        /// Leading zero bits.
        CountLeadingZeros "clz",
        /// Cosine.
        Cos "cos",
        /// Hyperbolic cosine.
        Cosh "cosh",
        /// The derivative of the logarithm of the gamma function.
        Digamma "digamma",
        /// Error function.
        Erf "erf",
        /// 1 - erf(x), accurate where that is small.
        Erfc "erfc",
        /// e^x.
        Exp "exp",
        /// e^x - 1, accurate near 0.
        Expm1 "expm1",
        /// Largest integer not above.
        Floor "floor",
        /// The imaginary part of a complex number.
        Imag "imag",
        /// Whether a float is neither infinite nor NaN.
        IsFinite "is_finite",
        /// The logarithm of the absolute value of the gamma function.
        Lgamma "lgamma",
        /// Natural logarithm.
        Log "log",
        /// log(1 + x), accurate near 0.
        Log1p "log1p",
        /// 1 / (1 + e^-x).
        Logistic "logistic",
        /// Negation.
        Neg "neg",
        /// Logical or bitwise complement.
        Not "not",
        /// Number of bits that are set.
        PopulationCount "population_count",
        /// The real part of a complex number.
        Real "real",
        /// The nearest integer, halves away from 0.
        Round "round",
        /// The nearest integer, halves to the even one.
        RoundEven "round_even",
        /// 1 / sqrt(x).
        Rsqrt "rsqrt",
        /// -1, 0 or 1; of a complex number x / |x|.
        Sign "sign",
        /// Sine.
        Sin "sin",
        /// Hyperbolic sine.
        Sinh "sinh",
        /// Square root.
        Sqrt "sqrt",
        /// Tangent.
        Tan "tan",
        /// Hyperbolic tangent.
        Tanh "tanh",
    }
}

named! {
    /// Element-wise functions of two operands.
    Binary {
        /// Sum.
        Add "add",
        /// Logical or bitwise and.
        And "and",
        /// The angle of the point (x, y), given as `y, x`.
        Atan2 "atan2",
        /// A complex number of its real and imaginary parts.
        Complex "complex",
        /// Quotient; rounds towards 0 for integers.
        Div "div",
        /// Quotient, but 0 where the first operand is 0, whatever the second: what the derivative
        /// of a quotient is made of.
        DivOrZero "div_or_zero",
        /// The larger.
        Max "max",
        /// The smaller.
        Min "min",
        /// Product.
        Mul "mul",
        /// Product, but 0 where either operand is 0, even if the other is infinite or NaN: what
        /// derivatives are made of, in which a slope may be infinite where nothing depends on it.
        MulOrZero "mul_or_zero",
        /// The number next to the first operand in the direction of the second.
        NextAfter "next_after",
        /// Logical or bitwise or.
        Or "or",
        /// The polygamma function of an order, given first, and a number.
        Polygamma "polygamma",
        /// Power.
        Pow "pow",
        /// Remainder with the sign of the dividend.
        Rem "rem",
        /// Shift left.
        ShiftLeft "shift_left",
        /// Shift right, filling with the sign bit in signed types and with zeros in unsigned ones.
        ShiftRight "shift_right",
        /// Shift right, filling with zeros.
        ShiftRightLogical "shift_right_logical",
        /// Difference.
        Sub "sub",
        /// Logical or bitwise exclusive or.
        Xor "xor",
    }
}

named! {
    /// Directions of a comparison.
    Comparison {
        /// Equal.
        Eq "eq",
        /// Greater or equal.
        Ge "ge",
        /// Greater.
        Gt "gt",
        /// Less or equal.
        Le "le",
        /// Less.
        Lt "lt",
        /// Not equal.
        Ne "ne",
    }
}

named! {
    /// How a reduction combines elements.
    Reducer {
        /// Whether all are true; bitwise and.
        And "and",
        /// Largest element.
        Max "max",
        /// Smallest element.
        Min "min",
        /// Whether any is true; bitwise or.
        Or "or",
        /// Product.
        Prod "prod",
        /// Sum.
        Sum "sum",
    }
}

named! {
    /// What a scatter does with an element and the update for it.
    Combine {
        /// Adds the update.
        Add "scatter_add",
        /// Takes the larger.
        Max "scatter_max",
        /// Takes the smaller.
        Min "scatter_min",
        /// Multiplies by the update.
        Mul "scatter_mul",
        /// Takes the update.
        Set "scatter",
    }
}

impl Reducer {
    /// What it does with two elements.
    pub const fn binary(self) -> Binary {
        match self {
            Reducer::And => Binary::And,
            Reducer::Max => Binary::Max,
            Reducer::Min => Binary::Min,
            Reducer::Or => Binary::Or,
            Reducer::Prod => Binary::Mul,
            Reducer::Sum => Binary::Add,
        }
    }

    /// The name of a reduction over dimensions.
    pub const fn reduce_name(self) -> &'static str {
        match self {
            Reducer::And => "reduce_and",
            Reducer::Max => "reduce_max",
            Reducer::Min => "reduce_min",
            Reducer::Or => "reduce_or",
            Reducer::Prod => "reduce_prod",
            Reducer::Sum => "reduce_sum",
        }
    }

    /// The name of a reduction of windows.
    pub const fn window_name(self) -> &'static str {
        match self {
            Reducer::And => "reduce_window_and",
            Reducer::Max => "reduce_window_max",
            Reducer::Min => "reduce_window_min",
            Reducer::Or => "reduce_window_or",
            Reducer::Prod => "reduce_window_prod",
            Reducer::Sum => "reduce_window_sum",
        }
    }

    /// The name of a running reduction.
    pub const fn cumulative_name(self) -> &'static str {
        match self {
            Reducer::And => "cumulative_and",
            Reducer::Max => "cumulative_max",
            Reducer::Min => "cumulative_min",
            Reducer::Or => "cumulative_or",
            Reducer::Prod => "cumulative_prod",
            Reducer::Sum => "cumulative_sum",
        }
    }
}
