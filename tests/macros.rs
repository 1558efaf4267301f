//! What the macros say of mistakes: each program in `tests/macros/` fails to compile, with the output
//! that stands beside it. `TRYBUILD=overwrite cargo test --test macros` writes the outputs anew.

#[test]
fn mistakes_are_reported_at_the_token_that_is_wrong() {
    trybuild::TestCases::new().compile_fail("tests/macros/*.rs");
}
