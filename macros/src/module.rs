//! `#[derive(Module)]`: writes `Tree` for a struct that is generic over its leaf.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Data, DeriveInput, Field, Fields, GenericArgument, GenericParam, Generics, Member,
    PathArguments, PathSegment, Type, TypeParam, TypePath, parse_quote,
};

use crate::dims::{self, Dims};
use crate::errors::Errors;
use crate::root;

/// Expands the derive.
pub(crate) fn derive(input: TokenStream, root: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let expanded = match syn::parse2(input) {
        Ok(input) => Module::read(input, &mut errors).map(|module| module.expand(root)),
        Err(error) => {
            errors.push(error);
            None
        }
    };
    let mut tokens = errors.into_tokens();
    tokens.extend(expanded);
    tokens
}

/// The struct as the macro understands it.
struct Module {
    name: Ident,
    generics: Generics,
    /// The type parameter that is the leaf; `None` where all leaves lie in `trees`.
    leaf: Option<Ident>,
    /// The type parameters that are trees themselves.
    trees: Vec<Ident>,
    parts: Vec<Part>,
}

/// A field of the struct.
struct Part {
    /// The struct's name.
    module: String,
    member: Member,
    ty: Type,
    /// Whether it mentions a leaf; otherwise it is configuration, which is cloned.
    is_walked: bool,
    dims: Option<Dims>,
    /// Whether an optimizer keeps it of the parameters.
    is_state: bool,
}

impl Module {
    /// Checks the struct. A wrong annotation is reported and left out, so that the impl is still
    /// written and nothing else fails for want of it.
    fn read(input: DeriveInput, errors: &mut Errors) -> Option<Self> {
        for attribute in input
            .attrs
            .iter()
            .filter(|attribute| dims::is_shard(attribute))
        {
            errors.at(
                attribute,
                "`#[shard]` annotates the fields of a module, one by one",
            );
        }
        for attribute in input.attrs.iter().filter(|a| a.path().is_ident("module")) {
            errors.at(
                attribute,
                "`#[module(state)]` marks fields of a module, one by one",
            );
        }
        let fields = match input.data {
            Data::Struct(data) => data.fields,
            Data::Enum(data) => {
                errors.at(
                    data.enum_token,
                    "a module is a struct: an enum cannot derive `Module`",
                );
                return None;
            }
            Data::Union(data) => {
                errors.at(
                    data.union_token,
                    "a module is a struct: a union cannot derive `Module`",
                );
                return None;
            }
        };
        for lifetime in input.generics.lifetimes() {
            errors.at(
                lifetime,
                "a module owns its parts: it has no lifetime parameters",
            );
        }
        let leaf = leaf_of(&input.generics, errors);
        let trees: Vec<Ident> = input
            .generics
            .type_params()
            .map(|parameter| parameter.ident.clone())
            .filter(|ident| leaf.as_ref() != Some(ident))
            .collect();
        if leaf.is_none() && trees.is_empty() {
            let name = &input.ident;
            let message = format!(
                "a module is generic over its leaf: write `struct {name}<L = Tensor>`, with `L` for \
                 each tensor"
            );
            errors.at(name, message);
        }
        if input.generics.lifetimes().next().is_some() || (leaf.is_none() && trees.is_empty()) {
            return None;
        }
        let mut module = Module {
            name: input.ident,
            generics: input.generics,
            leaf,
            trees,
            parts: Vec::new(),
        };
        for (index, field) in fields_of(fields).enumerate() {
            let part = module.part(index, field, errors);
            module.parts.push(part);
        }
        Some(module)
    }

    fn part(&self, index: usize, mut field: Field, errors: &mut Errors) -> Part {
        let member = match field.ident {
            Some(ident) => Member::Named(ident),
            None => Member::Unnamed(index.into()),
        };
        let annotation = dims::take(&mut field.attrs, errors);
        let is_walked = self.mentions_leaves(field.ty.to_token_stream());
        let is_state = is_state(&field.attrs, is_walked, errors);
        let may_annotate = self.is_of_leaves(&field.ty);
        let dims = annotation.and_then(|annotation| {
            let dims = Dims::of(&annotation, errors);
            if may_annotate {
                return dims;
            }
            let message = match is_walked {
                true => {
                    "only a leaf can be annotated, as `L`, `Option<L>`, `Vec<L>`, `[L; N]` or \
                     `Stack<L>`: the fields of a nested module are annotated where it is defined"
                }
                false => {
                    "this field has no dimensions: its type does not mention the leaf, so it is \
                     configuration"
                }
            };
            errors.at(annotation, message);
            None
        });
        Part {
            module: self.name.unraw().to_string(),
            member,
            ty: field.ty,
            is_walked,
            dims,
            is_state,
        }
    }

    fn mentions_leaves(&self, tokens: TokenStream) -> bool {
        let mut leaves = self.leaf.iter().chain(&self.trees);
        leaves.any(|leaf| mentions(tokens.clone(), leaf))
    }

    /// Whether this is `L`, `[L; N]`, or one of the [`CONTAINERS`] with `L` in it.
    fn is_of_leaves(&self, ty: &Type) -> bool {
        let is_leaf = |ty: &Type| match (ty, &self.leaf) {
            (Type::Path(path), Some(leaf)) => path.path.is_ident(leaf),
            _ => false,
        };
        let content = match ty {
            Type::Array(array) => Some(&*array.elem),
            Type::Path(path) => path.path.segments.last().and_then(content_of),
            _ => None,
        };
        is_leaf(ty) || content.is_some_and(is_leaf)
    }

    fn expand(&self, root: &TokenStream) -> TokenStream {
        let name = &self.name;
        let leaf = self
            .leaf
            .clone()
            .unwrap_or_else(|| Ident::new("__L", Span::mixed_site()));
        let other = Ident::new("__M", Span::mixed_site());

        let generics = self.impl_generics(&leaf, root);
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        let (_, own_arguments, _) = self.generics.split_for_impl();
        let other_arguments = self.arguments_with(&leaf, &other, root);

        let members: Vec<_> = self.parts.iter().map(|part| &part.member).collect();
        let mapped = self.parts.iter().map(|part| part.map(&leaf, root));
        let visited = self.parts.iter().filter_map(|part| part.visit(&leaf, root));
        let compared = self.parts.iter().map(|part| part.same(&leaf, root));
        // A module without leaves uses neither argument.
        let unused = match self.parts.iter().any(|part| part.is_walked) {
            true => TokenStream::new(),
            false => quote!(let _ = (__path, __f);),
        };
        let checks = self.parts.iter().filter_map(|part| self.check(part, root));

        quote! {
            #(#checks)*

            #[automatically_derived]
            impl #impl_generics #root::Tree<#leaf> for #name #own_arguments #where_clause {
                type With<#other: #root::Leaf> = #name<#(#other_arguments),*>;

                fn map_leaves<#other: #root::Leaf>(
                    &self,
                    __path: &mut #root::Path,
                    __f: &mut dyn ::core::ops::FnMut(&mut #root::Path, &#leaf) -> #other,
                ) -> Self::With<#other> {
                    #unused
                    #name { #(#members: #mapped),* }
                }

                fn visit_leaves<'__a>(
                    &'__a self,
                    __path: &mut #root::Path,
                    __f: &mut dyn ::core::ops::FnMut(&mut #root::Path, &'__a #leaf),
                ) {
                    #unused
                    #(#visited;)*
                }

                fn same_structure<#other: #root::Leaf>(&self, __other: &Self::With<#other>) -> bool {
                    true #(&& #compared)*
                }
            }
        }
    }

    /// The check that a field taken for configuration is no tree of tensors. A type that depends on a constant of the
    /// struct cannot be asked outside of the impl, and is not.
    fn check(&self, part: &Part, root: &TokenStream) -> Option<TokenStream> {
        let mut constants = self.generics.const_params();
        let ty = &part.ty;
        let is_unit = matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty());
        let depends = constants.any(|c| mentions(ty.to_token_stream(), &c.ident));
        if part.is_walked || is_unit || depends {
            return None;
        }
        let leaf = self.leaf.clone();
        let leaf = leaf.unwrap_or_else(|| Ident::new("L", Span::call_site()));
        let mut wanted = ty.clone();
        WithLeaf(&leaf).visit_type_mut(&mut wanted);
        let message = format!(
            "field `{}` of `{}` is a module or a tensor, and its type does not mention the leaf: write `{}`",
            part.name(),
            self.name,
            spaceless(&wanted.to_token_stream()),
        );
        let message = match self.leaf {
            Some(_) => message,
            None => format!("{message}, and `struct {}<{leaf} = Tensor, ..>`", self.name),
        };
        let span = ty.span();
        let (at_type, import) = (root::at(root, span), import(root));
        Some(quote_spanned! {span=>
            const _: () = {
                #import
                ::core::assert!(!#at_type::derived::Field::<#ty>::HAS_LEAVES, #message)
            };
        })
    }

    /// The struct's parameters, with the bounds that make its parts trees.
    fn impl_generics(&self, leaf: &Ident, root: &TokenStream) -> Generics {
        let mut generics = self.generics.clone();
        for parameter in generics.type_params_mut() {
            parameter.default = None;
            parameter.eq_token = None;
            parameter.bounds.push(match parameter.ident == *leaf {
                true => parse_quote!(#root::Leaf),
                false => parse_quote!(#root::Tree<#leaf>),
            });
        }
        if self.leaf.is_none() {
            generics.params.insert(0, parse_quote!(#leaf: #root::Leaf));
        }
        generics
    }

    /// The struct's arguments once its leaves are `other`.
    fn arguments_with(&self, leaf: &Ident, other: &Ident, root: &TokenStream) -> Vec<TokenStream> {
        let argument = |parameter: &GenericParam| match parameter {
            GenericParam::Type(TypeParam { ident, .. }) if ident == leaf => quote!(#other),
            GenericParam::Type(TypeParam { ident, .. }) => {
                quote!(<#ident as #root::Tree<#leaf>>::With<#other>)
            }
            GenericParam::Const(parameter) => parameter.ident.to_token_stream(),
            GenericParam::Lifetime(parameter) => parameter.lifetime.to_token_stream(),
        };
        self.generics.params.iter().map(argument).collect()
    }
}

impl Part {
    /// The part with other leaves. Calls are emitted at the field's type, where a missing impl is
    /// reported then.
    fn map(&self, leaf: &Ident, root: &TokenStream) -> TokenStream {
        let part = self.reference();
        let span = self.ty.span();
        if !self.is_walked {
            return self.ask(quote_spanned!(span=> cloned(#part)), root);
        }
        let at_type = root::at(root, span);
        self.walk(
            quote_spanned!(span=> #at_type::Tree::<#leaf>::map_leaves(#part, __path, __f)),
            root,
        )
    }

    /// The line that visits the part's leaves, unless it is configuration.
    fn visit(&self, leaf: &Ident, root: &TokenStream) -> Option<TokenStream> {
        let part = self.reference();
        let span = self.ty.span();
        let at_type = root::at(root, span);
        let visit =
            quote_spanned!(span=> #at_type::Tree::<#leaf>::visit_leaves(#part, __path, __f));
        self.is_walked.then(|| self.walk(visit, root))
    }

    /// Whether the part has the structure of another module's; configuration must be equal.
    fn same(&self, leaf: &Ident, root: &TokenStream) -> TokenStream {
        let span = self.ty.span();
        let part = self.reference();
        let member = &self.member;
        let other = quote_spanned!(span=> &__other.#member);
        if !self.is_walked {
            return self.ask(quote_spanned!(span=> equal(#part, #other)), root);
        }
        let at_type = root::at(root, span);
        quote_spanned!(span=> #at_type::Tree::<#leaf>::same_structure(#part, #other))
    }

    /// A call of one of the functions for configuration.
    fn ask(&self, call: TokenStream, root: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        let (at_type, import) = (root::at(root, ty.span()), import(root));
        quote_spanned!(ty.span()=> {
            #import
            #at_type::derived::Field::<#ty>::#call
        })
    }

    fn reference(&self) -> TokenStream {
        let span = self.ty.span();
        let mut member = self.member.clone();
        match &mut member {
            Member::Named(ident) => ident.set_span(span.resolved_at(ident.span())),
            Member::Unnamed(index) => index.span = span,
        }
        quote_spanned!(span=> &self.#member)
    }

    /// What a path calls the part.
    fn name(&self) -> String {
        match &self.member {
            Member::Named(ident) => ident.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }

    /// Walks the part by `walk`, under its name and its annotation.
    fn walk(&self, walk: TokenStream, root: &TokenStream) -> TokenStream {
        let (name, module) = (self.name(), &self.module);
        let walk = match self.is_state {
            true => quote!(__path.state(|__path| #walk)),
            false => walk,
        };
        match &self.dims {
            Some(dims) => {
                // At the annotation, whose line a message about it names.
                let (span, list) = (dims.span, dims.expand(root));
                let at_annotation = root::at(root, span);
                let path = Ident::new("__path", Span::call_site());
                quote_spanned!(span=>
                    #at_annotation::Path::declared(#path, #name, #module, #list, |#path| #walk))
            }
            None => quote!(__path.field(#name, |__path| #walk)),
        }
    }
}

/// Brings the functions for configuration into scope. Not at the field's type: where that is a tree they are not used, and
/// the compiler would say so there.
fn import(root: &TokenStream) -> TokenStream {
    quote!(use #root::derived::ConfigurationField as _;)
}

/// Writes the leaf into a type that lacks it: `Inner` becomes `Inner<L>`, `Vec<Tensor>` becomes `Vec<L>`.
struct WithLeaf<'a>(&'a Ident);

impl VisitMut for WithLeaf<'_> {
    fn visit_type_path_mut(&mut self, ty: &mut TypePath) {
        visit_mut::visit_type_path_mut(self, ty);
        let leaf = self.0;
        let Some(last) = ty.path.segments.last_mut() else {
            return;
        };
        if last.ident == "Tensor" {
            *ty = parse_quote!(#leaf);
        } else if last.arguments.is_none() {
            last.arguments = PathArguments::AngleBracketed(parse_quote!(<#leaf>));
        }
    }
}

/// A type as a user writes it: its tokens, without the spaces between them.
fn spaceless(tokens: &TokenStream) -> String {
    let text = tokens.to_string().replace(' ', "");
    text.replace(',', ", ").replace(';', "; ")
}

/// Whether an identifier is among tokens, at any depth.
fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Whether a field is marked `#[module(state)]`. There is nothing else to say of it so far.
fn is_state(attributes: &[Attribute], is_walked: bool, errors: &mut Errors) -> bool {
    let mut is_state = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        let marks = attribute
            .parse_args::<Ident>()
            .is_ok_and(|ident| ident == "state");
        if !marks {
            errors.at(
                attribute,
                "write `#[module(state)]`, for what an optimizer keeps of the parameters",
            );
        } else if is_state {
            errors.at(attribute, "`#[module(state)]` is here twice");
        } else if !is_walked {
            errors.at(
                attribute,
                "this field has no leaves to be state: its type does not mention the leaf, so it is \
                 configuration",
            );
        }
        is_state |= marks;
    }
    is_state
}

/// The containers whose leaves an annotation can be of.
const CONTAINERS: [&str; 3] = ["Option", "Vec", "Stack"];

/// The `T` of `Vec<T>` and other [`CONTAINERS`].
fn content_of(container: &PathSegment) -> Option<&Type> {
    let is_known = CONTAINERS.iter().any(|known| container.ident == known);
    match &container.arguments {
        PathArguments::AngleBracketed(arguments) if is_known => match arguments.args.first() {
            Some(GenericArgument::Type(content)) => Some(content),
            _ => None,
        },
        _ => None,
    }
}

/// The parameter whose default is `Tensor`; without one, the parameter called `L`.
fn leaf_of(generics: &Generics, errors: &mut Errors) -> Option<Ident> {
    let mut by_default = generics
        .type_params()
        .filter(|parameter| match &parameter.default {
            Some(Type::Path(path)) => path
                .path
                .segments
                .last()
                .is_some_and(|segment| segment.ident == "Tensor"),
            _ => false,
        });
    let leaf = by_default.next();
    for again in by_default {
        errors.at(
            again,
            "a module has one leaf parameter: two parameters have the default `Tensor`",
        );
    }
    let named = || {
        generics
            .type_params()
            .find(|parameter| parameter.ident == "L")
    };
    leaf.or_else(named).map(|parameter| parameter.ident.clone())
}

fn fields_of(fields: Fields) -> impl Iterator<Item = Field> {
    match fields {
        Fields::Named(fields) => fields.named,
        Fields::Unnamed(fields) => fields.unnamed,
        Fields::Unit => Default::default(),
    }
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(input: TokenStream) -> String {
        spaceless(&derive(input, &quote!(root)))
    }

    /// Tokens that were parsed are not spaced like those that were quoted.
    fn spaceless(tokens: &TokenStream) -> String {
        tokens.to_string().replace(' ', "")
    }

    #[track_caller]
    fn check(input: TokenStream, expected: TokenStream) {
        assert_eq!(expanded(input), spaceless(&expected));
    }

    #[test]
    fn parts_are_walked_and_configuration_is_cloned() {
        check(
            quote! {
                struct Block<const N: usize, L: Debug = Tensor> where L: Copy {
                    #[shard(embed, _)]
                    up: L,
                    r#type: [Norm<L>; N],
                    eps: f64,
                }
            },
            quote! {
                const _: () = {
                    use root::derived::ConfigurationField as _;
                    ::core::assert!(
                        !root::derived::Field::<f64>::HAS_LEAVES,
                        "field `eps` of `Block` is a module or a tensor, and its type does not mention the leaf: write `f64<L>`"
                    )
                };

                #[automatically_derived]
                impl<const N: usize, L: Debug + root::Leaf> root::Tree<L> for Block<N, L>
                where
                    L: Copy
                {
                    type With<__M: root::Leaf> = Block<N, __M>;

                    fn map_leaves<__M: root::Leaf>(
                        &self,
                        __path: &mut root::Path,
                        __f: &mut dyn ::core::ops::FnMut(&mut root::Path, &L) -> __M,
                    ) -> Self::With<__M> {
                        Block {
                            up: root::Path::declared(
                                __path,
                                "up",
                                "Block",
                                &[root::Dim::Logical("embed"), root::Dim::Unsharded],
                                |__path| root::Tree::<L>::map_leaves(&self.up, __path, __f)
                            ),
                            r#type: __path.field(
                                "type",
                                |__path| root::Tree::<L>::map_leaves(&self.r#type, __path, __f)
                            ),
                            eps: {
                                use root::derived::ConfigurationField as _;
                                root::derived::Field::<f64>::cloned(&self.eps)
                            }
                        }
                    }

                    fn visit_leaves<'__a>(
                        &'__a self,
                        __path: &mut root::Path,
                        __f: &mut dyn ::core::ops::FnMut(&mut root::Path, &'__a L),
                    ) {
                        root::Path::declared(
                            __path,
                            "up",
                            "Block",
                            &[root::Dim::Logical("embed"), root::Dim::Unsharded],
                            |__path| root::Tree::<L>::visit_leaves(&self.up, __path, __f)
                        );
                        __path.field(
                            "type",
                            |__path| root::Tree::<L>::visit_leaves(&self.r#type, __path, __f)
                        );
                    }

                    fn same_structure<__M: root::Leaf>(&self, __other: &Self::With<__M>) -> bool {
                        true
                            && root::Tree::<L>::same_structure(&self.up, &__other.up)
                            && root::Tree::<L>::same_structure(&self.r#type, &__other.r#type)
                            && {
                                use root::derived::ConfigurationField as _;
                                root::derived::Field::<f64>::equal(&self.eps, &__other.eps)
                            }
                    }
                }
            },
        );
    }

    #[test]
    fn other_type_parameters_are_trees() {
        let both = expanded(quote!(
            struct State<P, L = Tensor>(P, L);
        ));
        for part in [
            quote!(impl<P: root::Tree<L>, L: root::Leaf> root::Tree<L> for State<P, L>),
            quote!(
                type With<__M: root::Leaf> = State<<P as root::Tree<L>>::With<__M>, __M>;
            ),
            quote!(0: __path.field("0", |__path| root::Tree::<L>::map_leaves(&self.0, __path, __f))),
        ] {
            assert!(both.contains(&spaceless(&part)), "{part} is not in {both}");
        }
        let only = expanded(quote!(
            struct Adam<M> {
                m: M,
            }
        ));
        let header = quote!(impl<__L: root::Leaf, M: root::Tree<__L>> root::Tree<__L> for Adam<M>);
        assert!(
            only.contains(&spaceless(&header)),
            "{header} is not in {only}"
        );
    }

    #[test]
    fn state_is_marked() {
        let adam = expanded(quote!(
            struct Adam<P> {
                #[module(state)]
                first: P,
            }
        ));
        let leaf = quote!(root::Tree::<__L>::map_leaves(&self.first, __path, __f));
        let walk = quote!(__path.field("first", |__path| __path.state(|__path| #leaf)));
        assert!(adam.contains(&spaceless(&walk)), "{walk} is not in {adam}");
        let wrong = expanded(quote!(
            #[module(state)]
            struct Adam<P> {
                #[module(stat)]
                first: P,
                #[module]
                second: P,
                #[module(state)]
                rate: f64,
                #[module(state)]
                #[module(state)]
                third: P,
            }
        ));
        assert_eq!(wrong.matches("compile_error").count(), 5, "{wrong}");
    }

    #[test]
    fn a_unit_struct_uses_neither_argument() {
        let unit = expanded(quote!(
            struct Nothing<L>;
        ));
        let body = spaceless(&quote!(let _ = (__path, __f); Nothing {}));
        assert!(unit.contains(&body), "{unit}");
    }

    #[test]
    fn the_leaf_is_written_into_types_that_lack_it() {
        let advice = |ty: TokenStream| {
            let text = expanded(quote!(struct A<L = Tensor> { w: L, x: #ty }));
            let (_, rest) = text.split_once("write`").unwrap_or_default();
            rest.split('`').next().unwrap_or_default().to_owned()
        };
        for (ty, wanted) in [
            (quote!(Tensor), "L"),
            (quote!(Inner), "Inner<L>"),
            (quote!(nets::Inner), "nets::Inner<L>"),
            (quote!(Vec<Option<Inner>>), "Vec<Option<Inner<L>>>"),
            (quote!([(Tensor, Inner<Tensor>); 2]), "[(L,Inner<L>);2]"),
        ] {
            assert_eq!(advice(ty), wanted);
        }
        assert_eq!(advice(quote!(())), "");
    }

    #[test]
    fn leaves_in_containers_can_be_annotated() {
        for ty in [
            quote!(Vec<L>),
            quote!([L; 2]),
            quote!(Stack<L>),
            quote!(std::option::Option<L>),
        ] {
            let tokens = expanded(quote!(struct A<L = Tensor> { #[shard(a)] x: #ty }));
            assert!(!tokens.contains("compile_error"), "{tokens}");
        }
        for ty in [
            quote!(Norm<L>),
            quote!((L, L)),
            quote!(Vec<Norm<L>>),
            quote!(usize),
        ] {
            let tokens = expanded(quote!(struct A<L = Tensor> { #[shard(a)] x: #ty }));
            assert_eq!(tokens.matches("compile_error").count(), 1, "{tokens}");
            // The impl is there all the same, so that nothing else fails for want of it.
            assert!(tokens.contains("automatically_derived"), "{tokens}");
        }
    }
}
