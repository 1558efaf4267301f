//! `#[derive(Module)]` and `#[shard]`.
//!
//! Each macro is one file that reads from top to bottom: what the user wrote is *parsed*, checked into
//! a *model*, and *expanded*. Mistakes are collected in `errors::Errors` on the way, each at its own
//! token, so that one compile shows all of them.

#![forbid(unsafe_code)]

mod dims;
mod errors;
mod module;
mod root;
mod shard;

use proc_macro::TokenStream;

#[doc = include_str!("../docs/module.md")]
#[proc_macro_derive(Module, attributes(shard, module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    module::derive(input.into(), &root::path()).into()
}

#[doc = include_str!("../docs/shard.md")]
#[proc_macro_attribute]
pub fn shard(dims: TokenStream, item: TokenStream) -> TokenStream {
    shard::attribute(dims.into(), item.into(), &root::path()).into()
}
