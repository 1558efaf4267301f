//! Errors whose `Debug` form is their message: it is what a `main` that returns an error prints.

/// Writes `Debug` for errors as their message, for the crates that build on this one.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_the_message {
    ($($error:ty),+ $(,)?) => {$(
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
