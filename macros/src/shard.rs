//! `#[shard]` on functions, methods and impl blocks: adds the constraints that annotations ask for.
//!
//! The user's code is emitted as it was written. Three things are added: a line at the top of the body
//! for each annotated argument, a line after each annotated `let`, and a call around each expression
//! whose value the function returns.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, ExprAsync, ExprClosure, ExprReturn, ExprTry, FnArg, ImplItem, Item,
    ItemImpl, Local, Macro, Pat, PatIdent, ReturnType, Signature, Stmt, Token, Type, parse_quote,
};

use crate::dims::{self, Dims};
use crate::errors::Errors;
use crate::root;

/// Expands the attribute with the list `dims` on `item`.
///
/// After a mistake the item is emitted without the wrong annotations, so that nothing else fails for
/// want of it.
pub(crate) fn attribute(dims: TokenStream, item: TokenStream, root: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let mut sharder = Sharder {
        root,
        errors: &mut errors,
    };
    let item = match syn::parse2::<Item>(item.clone()) {
        Ok(Item::Fn(mut function)) => {
            let result = sharder.result_dims(dims, &mut function.attrs);
            sharder.function(&mut function.sig, &mut function.block, result);
            function.into_token_stream()
        }
        Ok(Item::Impl(mut block)) => {
            sharder.impl_block(dims, &mut block);
            block.into_token_stream()
        }
        Ok(Item::Verbatim(_)) => {
            let message = "`#[shard]` needs a function with a body";
            sharder.errors.at(&item, message);
            item
        }
        Ok(other) => {
            let message = "`#[shard]` stands on a function, a method or an impl block; in a struct \
                           it annotates the fields, below `#[derive(Module)]`";
            sharder.errors.at(&other, message);
            other.into_token_stream()
        }
        Err(error) => return no_item(error, item),
    };
    let mut tokens = errors.into_tokens();
    tokens.extend(item);
    tokens
}

/// An attribute within a function: the one around it would have taken it away, so there is none.
fn no_item(error: syn::Error, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    if let Ok(Stmt::Local(_)) = syn::parse2(item.clone()) {
        let message = "the function around this `let` has no `#[shard]` of its own: write `#[shard]` above the `fn`, or \
                       above the `impl` block that it is in";
        errors.push(syn::Error::new(Span::call_site(), message));
    } else if syn::parse2::<Expr>(item.clone()).is_ok() {
        errors.push(syn::Error::new(Span::call_site(), NOT_ANNOTATED));
        let error = errors.into_tokens();
        return quote!({ #error #item });
    } else {
        errors.push(error);
    }
    let mut tokens = errors.into_tokens();
    tokens.extend(item);
    tokens
}

/// What is said of an annotation that stands on nothing that has a name.
const NOT_ANNOTATED: &str = "`#[shard]` annotates function arguments, results and `let` statements: bind this to a name \
                             with an annotated `let`";

struct Sharder<'a> {
    root: &'a TokenStream,
    errors: &'a mut Errors,
}

impl Sharder<'_> {
    /// The dimensions of a function's result: those of the attribute that is being expanded, unless it
    /// has none.
    fn result_dims(&mut self, list: TokenStream, attributes: &mut Vec<Attribute>) -> Option<Dims> {
        if let Some(again) = dims::take(attributes, self.errors) {
            self.errors.at(
                again,
                "`#[shard]` is here twice: write one list of dimensions",
            );
        }
        let span = first_span(&list)?;
        Dims::parse(list, span, self.errors)
    }

    /// Expands every method; the dimensions of its result stand on the method itself.
    fn impl_block(&mut self, list: TokenStream, block: &mut ItemImpl) {
        if !list.is_empty() {
            let message = "an impl block has no dimensions: write them on its methods";
            self.errors.at(list, message);
        }
        for item in &mut block.items {
            let ImplItem::Fn(method) = item else {
                continue;
            };
            let annotation = dims::take(&mut method.attrs, self.errors);
            let result = annotation.and_then(|annotation| match &annotation.meta {
                syn::Meta::Path(_) => None,
                _ => Dims::of(&annotation, self.errors),
            });
            self.function(&mut method.sig, &mut method.block, result);
        }
    }

    fn function(&mut self, signature: &mut Signature, body: &mut Block, result: Option<Dims>) {
        if let Some(token) = &signature.asyncness {
            self.errors.at(
                token,
                "`#[shard]` traces a plain function: this one is `async`",
            );
        }
        if let Some(token) = &signature.constness {
            self.errors.at(
                token,
                "`#[shard]` traces a plain function: this one is `const`",
            );
        }
        let result = result.filter(|dims| self.check_result_type(signature, dims));
        let arguments = self.arguments(signature);

        let mut walker = BodyWalker {
            sharder: self,
            result: result.as_ref(),
            nesting: 0,
        };
        walker.visit_block_mut(body);
        if let Some(dims) = &result {
            self.shard_tail(body, dims);
        }
        body.stmts.splice(0..0, arguments);
    }

    /// Takes the annotations off the arguments and makes a line of each.
    fn arguments(&mut self, signature: &mut Signature) -> Vec<Stmt> {
        let mut lines = Vec::new();
        for argument in &mut signature.inputs {
            match argument {
                FnArg::Receiver(receiver) => {
                    if let Some(annotation) = dims::take(&mut receiver.attrs, self.errors) {
                        self.errors.at(
                            annotation,
                            "`self` has no dimensions: annotate the fields of the module",
                        );
                    }
                }
                FnArg::Typed(typed) => {
                    if let Some(annotation) = dims::take(&mut typed.attrs, self.errors) {
                        let dims = Dims::of(&annotation, self.errors);
                        lines.extend(self.shard_binding(&typed.pat, dims));
                    }
                }
            }
        }
        lines
    }

    /// The line that constrains what a pattern binds; only a plain name can be annotated.
    fn shard_binding(&mut self, pattern: &Pat, dims: Option<Dims>) -> Option<Stmt> {
        let name = match pattern {
            Pat::Type(typed) => return self.shard_binding(&typed.pat, dims),
            Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => name,
            other => {
                self.errors.at(
                    other,
                    "only a plain name can be annotated: bind the parts to names first, and annotate \
                     a `let` of each",
                );
                return None;
            }
        };
        let dims = dims?;
        let PatIdent {
            ident, mutability, ..
        } = name;
        // At the annotation, so that a value that is no tensor is reported there; resolved as the
        // user's own name.
        let mut ident = ident.clone();
        ident.set_span(dims.span.resolved_at(ident.span()));
        let call = self.call(ident.to_token_stream(), &dims);
        // The statement itself is the macro's, so that no lint speaks of it.
        let span = Span::mixed_site().located_at(dims.span);
        // A second `let` would leave the `mut` of the first one unused.
        let line = match mutability {
            Some(_) => quote_spanned!(span=> #ident = #call),
            None => quote_spanned!(span=> let #ident = #call),
        };
        Some(Stmt::Expr(Expr::Verbatim(line), Some(Token![;](span))))
    }

    /// `Tensor::shard(value, dims)`, at the annotation.
    fn call(&self, value: TokenStream, dims: &Dims) -> TokenStream {
        let span = dims.span;
        let root = root::at(self.root, span);
        let list = dims.expand(&root);
        quote_spanned!(span=> #root::Tensor::shard(#value, #list))
    }

    /// Whether the result can be a tensor, as far as the signature tells.
    fn check_result_type(&mut self, signature: &Signature, dims: &Dims) -> bool {
        let wrong = match &signature.output {
            ReturnType::Default => {
                let message = "there is no result to shard: the function returns nothing";
                self.errors.push(syn::Error::new(dims.span, message));
                return false;
            }
            ReturnType::Type(_, ty) => match &**ty {
                Type::Tuple(_) => Some(
                    "a tuple cannot be annotated as a whole: annotate a `let` of each part instead",
                ),
                Type::Reference(_) => Some("the annotated result is a `Tensor`, by value"),
                Type::Path(path) => path
                    .path
                    .segments
                    .last()
                    .filter(|last| last.ident == "Result" || last.ident == "Option")
                    .map(|_| {
                        "the annotated result is a `Tensor`: model code has no `?`, since a mistake \
                         while tracing ends the trace and comes back from `jit` as an error"
                    }),
                _ => None,
            },
        };
        if let (Some(message), ReturnType::Type(_, ty)) = (wrong, &signature.output) {
            self.errors.at(ty, message);
        }
        wrong.is_none()
    }

    /// Constrains the value of a body's last expression, if it has a value.
    fn shard_tail(&self, body: &mut Block, dims: &Dims) {
        let Some(tail) = body.stmts.last_mut() else {
            return;
        };
        let has_value = match tail {
            Stmt::Expr(Expr::Return(_), None) => false,
            Stmt::Expr(Expr::Loop(endless), None) => {
                !keywords_in(endless.to_token_stream(), "break").is_empty()
            }
            Stmt::Expr(Expr::Macro(call), None) => !diverges(&call.mac),
            Stmt::Expr(_, semicolon) => semicolon.is_none(),
            Stmt::Macro(call) => call.semi_token.is_none() && !diverges(&call.mac),
            Stmt::Local(_) | Stmt::Item(_) => false,
        };
        if has_value {
            let call = self.call(tail.to_token_stream(), dims);
            *tail = Stmt::Expr(Expr::Verbatim(call), None);
        }
    }
}

/// Walks a body: annotated `let`s anywhere in it, `return` and `?` where they leave the function.
struct BodyWalker<'a, 'b> {
    sharder: &'a mut Sharder<'b>,
    result: Option<&'a Dims>,
    /// How many closures and `async` blocks are around.
    nesting: usize,
}

impl BodyWalker<'_, '_> {
    /// The line to put after an annotated `let`.
    fn shard_let(&mut self, local: &mut Local) -> Option<Stmt> {
        let errors = &mut *self.sharder.errors;
        let annotation = dims::take(&mut local.attrs, errors)?;
        let dims = Dims::of(&annotation, errors);
        if local.init.is_none() {
            errors.at(
                &local.pat,
                "give the annotated `let` its value here: there is none to shard",
            );
            return None;
        }
        self.sharder.shard_binding(&local.pat, dims)
    }

    fn nested(&mut self, walk: impl FnOnce(&mut Self)) {
        self.nesting += 1;
        walk(self);
        self.nesting -= 1;
    }
}

impl VisitMut for BodyWalker<'_, '_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let mut statements = Vec::with_capacity(block.stmts.len());
        for mut statement in std::mem::take(&mut block.stmts) {
            let line = match &mut statement {
                Stmt::Local(local) => self.shard_let(local),
                _ => None,
            };
            self.visit_stmt_mut(&mut statement);
            statements.push(statement);
            statements.extend(line);
        }
        block.stmts = statements;
    }

    /// Items are no part of the function: they have annotations of their own.
    fn visit_item_mut(&mut self, _: &mut Item) {}

    fn visit_expr_closure_mut(&mut self, closure: &mut ExprClosure) {
        self.nested(|walker| visit_mut::visit_expr_closure_mut(walker, closure));
    }

    fn visit_expr_async_mut(&mut self, block: &mut ExprAsync) {
        self.nested(|walker| visit_mut::visit_expr_async_mut(walker, block));
    }

    fn visit_expr_return_mut(&mut self, expression: &mut ExprReturn) {
        visit_mut::visit_expr_return_mut(self, expression);
        if let (Some(dims), Some(value), 0) = (self.result, &expression.expr, self.nesting) {
            let call = self.sharder.call(value.to_token_stream(), dims);
            expression.expr = Some(Box::new(Expr::Verbatim(call)));
        }
    }

    fn visit_expr_try_mut(&mut self, expression: &mut ExprTry) {
        visit_mut::visit_expr_try_mut(self, expression);
        if self.result.is_some() && self.nesting == 0 {
            self.sharder.errors.at(
                expression.question_token,
                "model code has no `?`: a mistake while tracing ends the trace and comes back from \
                 `jit` as an error",
            );
        }
    }

    fn visit_macro_mut(&mut self, call: &mut Macro) {
        if self.result.is_some() && self.nesting == 0 {
            for token in keywords_in(call.tokens.clone(), "return") {
                self.sharder.errors.at(
                    token,
                    "`#[shard]` cannot see into a macro: put this `return` outside of it",
                );
            }
        }
    }

    /// Only the annotations that belong to no `let` are still there.
    fn visit_attribute_mut(&mut self, attribute: &mut Attribute) {
        if dims::is_shard(attribute) {
            self.sharder.errors.at(&attribute, NOT_ANNOTATED);
            // Left as it is, it would be reported a second time.
            *attribute = parse_quote!(#[allow()]);
        }
    }
}

/// Whether this is a call of one of the standard macros that do not return: a call around it would
/// never be reached, and the compiler would say so.
fn diverges(call: &Macro) -> bool {
    let diverging = ["panic", "todo", "unimplemented", "unreachable"];
    let name = call.path.segments.last();
    name.is_some_and(|name| diverging.iter().any(|diverging| name.ident == diverging))
}

/// The places of a keyword among tokens, at any depth.
fn keywords_in(tokens: TokenStream, keyword: &str) -> Vec<Ident> {
    let found = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Ident(ident) if ident == keyword => vec![ident],
        TokenTree::Group(group) => keywords_in(group.stream(), keyword),
        TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
    });
    found.collect()
}

fn first_span(tokens: &TokenStream) -> Option<Span> {
    tokens.clone().into_iter().next().map(|token| token.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(dims: TokenStream, item: TokenStream) -> String {
        attribute(dims, item, &quote!(root)).to_string()
    }

    #[track_caller]
    fn check(dims: TokenStream, item: TokenStream, expected: TokenStream) {
        assert_eq!(expanded(dims, item), expected.to_string());
    }

    #[test]
    fn arguments_are_constrained_at_the_top() {
        check(
            quote!(),
            quote! {
                pub fn f(&self, #[shard(batch, "data")] x: Tensor, #[shard()] mut y: Tensor) {
                    x + y;
                }
            },
            quote! {
                pub fn f(&self, x: Tensor, mut y: Tensor) {
                    let x = root::Tensor::shard(
                        x,
                        &[root::Dim::Logical("batch"), root::Dim::Mesh(&["data"])]
                    );
                    y = root::Tensor::shard(y, &[]);
                    x + y;
                }
            },
        );
    }

    #[test]
    fn annotated_lets_are_constrained_wherever_they_are() {
        check(
            quote!(),
            quote! {
                fn f(x: Tensor) -> Tensor {
                    for i in 0..3 {
                        let g = |y: Tensor| {
                            #[shard(_)]
                            let z: Tensor = y;
                            z
                        };
                    }
                    fn nested() {
                        #[other] let x = 1;
                    }
                    x
                }
            },
            quote! {
                fn f(x: Tensor) -> Tensor {
                    for i in 0..3 {
                        let g = |y: Tensor| {
                            let z: Tensor = y;
                            let z = root::Tensor::shard(z, &[root::Dim::Unsharded]);
                            z
                        };
                    }
                    fn nested() {
                        #[other] let x = 1;
                    }
                    x
                }
            },
        );
    }

    #[test]
    fn every_value_that_is_returned_is_constrained() {
        check(
            quote!(_),
            quote! {
                fn f(x: Tensor) -> Tensor {
                    let g = |y: Tensor| return y;
                    if a {
                        return x + x;
                    }
                    if b { x } else { g(x) }
                }
            },
            quote! {
                fn f(x: Tensor) -> Tensor {
                    let g = |y: Tensor| return y;
                    if a {
                        return root::Tensor::shard(x + x, &[root::Dim::Unsharded]);
                    }
                    root::Tensor::shard(if b { x } else { g(x) }, &[root::Dim::Unsharded])
                }
            },
        );
    }

    #[test]
    fn what_never_returns_a_value_is_left_alone() {
        for body in [
            quote!(unreachable!()),
            quote!(loop {
                g()
            }),
            quote!(panic!("no");),
        ] {
            let item = quote!(fn f(x: Tensor) -> Tensor { #body });
            check(quote!(_), item.clone(), item);
        }
        let tail = quote!(
            fn f(x: Tensor) -> Tensor {
                sum!(x)
            }
        );
        assert!(expanded(quote!(_), tail).contains("root :: Tensor :: shard (sum ! (x)"));
    }

    #[test]
    fn the_methods_of_an_impl_are_expanded() {
        check(
            quote!(),
            quote! {
                impl A {
                    const N: usize = 1;
                    #[inline]
                    #[shardax::shard(_)]
                    fn f(self, x: Tensor) -> Tensor { x }
                    #[shard]
                    fn g(self) {}
                }
            },
            quote! {
                impl A {
                    const N: usize = 1;
                    #[inline]
                    fn f(self, x: Tensor) -> Tensor {
                        root::Tensor::shard(x, &[root::Dim::Unsharded])
                    }
                    fn g(self) {}
                }
            },
        );
    }

    #[test]
    fn a_wrong_annotation_is_left_out_of_the_item() {
        let tokens = expanded(
            quote!(1),
            quote!(
                fn f(#[shard(a::b)] x: Tensor) -> Tensor {
                    x
                }
            ),
        );
        assert_eq!(tokens.matches("compile_error").count(), 2, "{tokens}");
        assert!(
            tokens.ends_with("fn f (x : Tensor) -> Tensor { x }"),
            "{tokens}"
        );
    }
}
