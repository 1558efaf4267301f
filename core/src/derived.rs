//! What `#[derive(Module)]` writes calls of, for fields that are configuration.
//!
//! A field is configuration when its type does not mention the leaf. A module in such a field, `a: Inner` where
//! `a: Inner<L>` was meant, would keep the tensors of the trace that made it. So the derived code asks whether a field's
//! type is a tree, and the compiler answers with the field's name.

use std::marker::PhantomData;

use crate::tensor::Tensor;
use crate::tree::Tree;

/// What configuration can be: it is cloned with its module, and compared.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is configuration of a module, and cannot be cloned and compared",
    label = "configuration, for the type does not mention the leaf",
    note = "put `#[derive(Clone, PartialEq)]` on `{Self}`"
)]
pub trait Configuration: Clone + PartialEq {}

#[diagnostic::do_not_recommend]
impl<T: Clone + PartialEq> Configuration for T {}

/// A field of type `T` whose type does not mention the leaf.
///
/// The items of its own exist where `T` is a tree, and hide those of [`ConfigurationField`], which exist always: the
/// compiler looks for an item of the type before one of a trait.
pub struct Field<T>(PhantomData<T>);

impl<T: Tree<Tensor>> Field<T> {
    /// Whether the field has leaves all the same.
    pub const HAS_LEAVES: bool = true;

    /// The same leaves.
    pub fn cloned(field: &T) -> T {
        field.replace_leaves(&mut |_, leaf| *leaf)
    }

    /// Whether the leaves are the same.
    pub fn equal(field: &T, other: &T) -> bool {
        field.leaves() == other.leaves()
    }
}

/// See [`Field`].
pub trait ConfigurationField<T> {
    /// Whether the field has leaves all the same.
    const HAS_LEAVES: bool = false;

    /// A clone.
    fn cloned(field: &T) -> T
    where
        T: Configuration,
    {
        field.clone()
    }

    /// Whether the values are equal.
    fn equal(field: &T, other: &T) -> bool
    where
        T: Configuration,
    {
        field == other
    }
}

impl<T> ConfigurationField<T> for Field<T> {}
