//! The list of dimensions in `#[shard(embed, "data", ("data", "model"), _)]`, the same in every place
//! where the attribute may stand.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, Lit, LitStr, Meta, Token};

use crate::errors::Errors;

/// A checked list of dimensions.
pub(crate) struct Dims {
    entries: Vec<Entry>,
    /// Where the annotation stands: calls are emitted with this span, so that what goes wrong in them
    /// is reported there.
    pub(crate) span: Span,
}

enum Entry {
    Unsharded,
    Logical(Ident),
    Mesh(Vec<LitStr>),
}

const EXPECTED: &str = "expected a logical name such as `embed`, a mesh axis such as `\"data\"`, a \
                        tuple of mesh axes such as `(\"data\", \"model\")`, or `_`";

/// Whether this is `#[shard]` in any form, with or without a path before it.
pub(crate) fn is_shard(attribute: &Attribute) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|segment| segment.ident == "shard")
}

/// Takes the `#[shard(...)]` out of `attributes`; a second one is a mistake.
pub(crate) fn take(attributes: &mut Vec<Attribute>, errors: &mut Errors) -> Option<Attribute> {
    let mut taken = attributes.extract_if(.., |attribute| is_shard(attribute));
    let first = taken.next();
    for again in taken {
        errors.at(
            again,
            "`#[shard]` is here twice: write one list of dimensions",
        );
    }
    first
}

impl Dims {
    /// The dimensions of an attribute that must have a list.
    pub(crate) fn of(attribute: &Attribute, errors: &mut Errors) -> Option<Self> {
        match &attribute.meta {
            Meta::List(list) => {
                let span = attribute.path().span();
                Self::parse(list.tokens.clone(), span, errors)
            }
            Meta::Path(_) | Meta::NameValue(_) => {
                errors.at(
                    &attribute.meta,
                    "write the dimensions in parentheses: `#[shard(embed, mlp)]`, `#[shard()]` for \
                     a scalar",
                );
                None
            }
        }
    }

    /// The dimensions listed; `None` if something is wrong with one of them.
    pub(crate) fn parse(list: TokenStream, span: Span, errors: &mut Errors) -> Option<Self> {
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        let expressions = match parser.parse2(list) {
            Ok(expressions) => expressions,
            Err(error) => {
                errors.push(error);
                return None;
            }
        };
        let read: Vec<Option<Entry>> = expressions
            .iter()
            .map(|expression| Entry::read(expression, errors))
            .collect();
        let is_distinct = check_distinct(read.iter().flatten(), errors);
        let entries: Option<Vec<Entry>> = read.into_iter().collect();
        entries
            .filter(|_| is_distinct)
            .map(|entries| Dims { entries, span })
    }

    /// `&[Dim::Logical("embed"), ...]`.
    pub(crate) fn expand(&self, root: &TokenStream) -> TokenStream {
        let span = self.span;
        let entries = self.entries.iter().map(|entry| match entry {
            Entry::Unsharded => quote_spanned!(span=> #root::Dim::Unsharded),
            Entry::Logical(name) => {
                let name = name.unraw().to_string();
                quote_spanned!(span=> #root::Dim::Logical(#name))
            }
            Entry::Mesh(axes) => quote_spanned!(span=> #root::Dim::Mesh(&[#(#axes),*])),
        });
        quote_spanned!(span=> &[#(#entries),*])
    }
}

impl Entry {
    fn read(expression: &Expr, errors: &mut Errors) -> Option<Self> {
        match expression {
            Expr::Infer(_) => Some(Entry::Unsharded),
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => Some(Entry::Logical(name.clone())),
                None => {
                    errors.at(
                        path,
                        "a logical name is a single identifier, such as `embed`",
                    );
                    None
                }
            },
            Expr::Tuple(tuple) if tuple.elems.is_empty() => {
                errors.at(
                    tuple,
                    "no mesh axes: write `_` for a dimension that is not split",
                );
                None
            }
            Expr::Tuple(tuple) => {
                let axes: Vec<_> = tuple
                    .elems
                    .iter()
                    .map(|axis| axis_name(axis, errors))
                    .collect();
                let axes: Option<Vec<LitStr>> = axes.into_iter().collect();
                axes.map(Entry::Mesh)
            }
            Expr::Paren(inner) => {
                axis_name(&inner.expr, errors).map(|axis| Entry::Mesh(vec![axis]))
            }
            Expr::Lit(ExprLit {
                lit: Lit::Str(_), ..
            }) => axis_name(expression, errors).map(|axis| Entry::Mesh(vec![axis])),
            other => {
                errors.at(other, EXPECTED);
                None
            }
        }
    }
}

/// A string literal that can name a mesh axis.
fn axis_name(expression: &Expr, errors: &mut Errors) -> Option<LitStr> {
    let Expr::Lit(ExprLit {
        lit: Lit::Str(axis),
        ..
    }) = expression
    else {
        errors.at(
            expression,
            "expected a mesh axis, a string literal such as `\"data\"`",
        );
        return None;
    };
    let name = axis.value();
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_inner) {
        errors.at(
            axis,
            "no mesh axis has such a name: it is a letter, then letters, digits, `_` or `-`",
        );
        return None;
    }
    Some(axis.clone())
}

/// Reports logical names and mesh axes that are there more than once.
fn check_distinct<'a>(entries: impl Iterator<Item = &'a Entry>, errors: &mut Errors) -> bool {
    let (mut names, mut axes) = (Vec::new(), Vec::new());
    let mut is_distinct = true;
    for entry in entries {
        match entry {
            Entry::Unsharded => {}
            Entry::Logical(name) => {
                if names.contains(&name) {
                    errors.at(
                        name,
                        format!(
                            "`{name}` names two dimensions, and a mesh axis splits only one: give \
                             one of them another name, or `_`"
                        ),
                    );
                    is_distinct = false;
                }
                names.push(name);
            }
            Entry::Mesh(literals) => {
                for axis in literals {
                    let name = axis.value();
                    if axes.contains(&name) {
                        errors.at(
                            axis,
                            format!(
                                "mesh axis \"{name}\" is here twice: an axis splits one dimension"
                            ),
                        );
                        is_distinct = false;
                    }
                    axes.push(name);
                }
            }
        }
    }
    is_distinct
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn expanded(list: TokenStream) -> String {
        let mut errors = Errors::default();
        match Dims::parse(list, Span::call_site(), &mut errors) {
            Some(dims) => dims.expand(&quote!(root)).to_string(),
            None => errors.into_tokens().to_string(),
        }
    }

    #[test]
    fn reads_every_form_of_a_dimension() {
        assert_eq!(
            expanded(quote!(embed, r#type, "data", ("data-2", "model"), ("x"), _)),
            quote!(&[
                root::Dim::Logical("embed"),
                root::Dim::Logical("type"),
                root::Dim::Mesh(&["data"]),
                root::Dim::Mesh(&["data-2", "model"]),
                root::Dim::Mesh(&["x"]),
                root::Dim::Unsharded
            ])
            .to_string()
        );
        assert_eq!(expanded(quote!()), quote!(&[]).to_string());
        assert_eq!(expanded(quote!(embed,)), expanded(quote!(embed)));
    }

    #[test]
    fn reports_every_wrong_entry() {
        let list = quote!(
            1,
            a::b,
            (),
            ("x", y),
            "",
            "a b",
            embed,
            embed,
            "x",
            ("y", "x")
        );
        let errors = expanded(list);
        assert_eq!(errors.matches("compile_error").count(), 8, "{errors}");
        for message in [
            "expected a logical name",
            "a single identifier",
            "no mesh axes",
            "expected a mesh axis",
            "no mesh axis has such a name",
            "`embed` names two dimensions",
            "is here twice",
        ] {
            assert!(errors.contains(message), "{message} is not in {errors}");
        }
    }
}
