//! The crate that expanded code names.
//!
//! Users depend on the facade and know nothing of the crates behind it. The crates that the facade
//! itself is made of cannot name it, so there the same items are taken from `shardax_core`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;

/// The packages below the facade in which the macros are used, this one's own examples included.
const BELOW_THE_FACADE: [&str; 5] = [
    "shardax-core",
    "shardax-macros",
    "shardax-nn",
    "shardax-train",
    "shardax-xla",
];

/// `::shardax`, or `::shardax_core` while a crate below the facade is compiled.
pub(crate) fn path() -> TokenStream {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    match BELOW_THE_FACADE.contains(&package.as_str()) {
        true => quote!(::shardax_core),
        false => quote!(::shardax),
    }
}

/// The path with another span, so that what goes wrong with an item of it is reported there.
pub(crate) fn at(path: &TokenStream, span: Span) -> TokenStream {
    let with_span = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    path.clone().into_iter().map(with_span).collect()
}
