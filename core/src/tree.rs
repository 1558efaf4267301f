//! Trees: nested structures of leaves, generic over what a leaf is.
//!
//! A model is a struct whose leaves are [`Tensor`](crate::Tensor)s while it is traced and arrays
//! while it runs; an optimizer keeps the same struct of moments; a layout wants the same struct of
//! partition specs. [`Tree`] maps one to the other and tells each leaf its path and the dimension
//! names it was annotated with. `#[derive(Module)]` writes the implementation.

use std::fmt;
use std::panic::Location;

use shardax_sharding::{Dim, PartitionSpec, Role};

use crate::error::Source;

/// What may stand at the leaves of a [`Tree`].
///
/// Implement it for your own leaf type to map models to it:
///
/// ```
/// use shardax_core::Leaf;
///
/// #[derive(Clone)]
/// struct ByteCount(usize);
/// impl Leaf for ByteCount {}
/// ```
pub trait Leaf: Clone + 'static {}

impl Leaf for PartitionSpec {}

/// A structure with leaves of type `L`.
///
/// Implemented for leaves themselves, `()`, tuples of up to twelve, arrays, `Vec`, `Option`, and for
/// structs that derive `Module`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree with leaves `{L}`",
    label = "not a tree of `{L}`",
    note = "trees are leaves, tuples of up to twelve trees, arrays, `Vec`, `Option`, and structs with `#[derive(Module)]`",
    note = "to make a struct of yours one, put `#[derive(Module)]` on it, give it the parameter `<L = Tensor>`, and write `L` for each tensor in it"
)]
pub trait Tree<L: Leaf>: Sized + 'static {
    /// The same structure with other leaves.
    type With<M: Leaf>: Tree<M, With<L> = Self>;

    /// Maps every leaf, in declaration order, to a leaf of a new structure. Static configuration
    /// is cloned.
    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M>;

    /// Calls `f` with every leaf, in the order of [`Tree::map_leaves`].
    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L));

    /// Whether another tree has the same structure: as many elements, the same options, equal
    /// static configuration.
    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool;

    /// The leaves, in the order of [`Tree::map_leaves`].
    fn leaves(&self) -> Vec<L> {
        let mut leaves = Vec::new();
        self.visit_leaves(&mut Path::root(), &mut |_, leaf| leaves.push(leaf.clone()));
        leaves
    }

    /// The same structure with these leaves; where there are too few the old ones stay.
    fn with_leaves(&self, leaves: &[L]) -> Self {
        let mut next = leaves.iter();
        self.replace_leaves(&mut |_, leaf| next.next().unwrap_or(leaf).clone())
    }

    /// Maps every leaf to another of the same kind.
    fn replace_leaves(&self, f: &mut dyn FnMut(&mut Path, &L) -> L) -> Self {
        // There and back: the compiler knows the way back to be `Self`.
        let there = self.map_leaves(&mut Path::root(), &mut |path, leaf| Replaced(f(path, leaf)));
        there.map_leaves(&mut Path::root(), &mut |_, leaf| leaf.0.clone())
    }
}

#[derive(Clone)]
struct Replaced<L>(L);

impl<L: Leaf> Leaf for Replaced<L> {}

impl<L: Leaf> Tree<L> for L {
    type With<M: Leaf> = M;

    fn map_leaves<M: Leaf>(&self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &L) -> M) -> M {
        f(path, self)
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        f(path, self);
    }

    fn same_structure<M: Leaf>(&self, _: &M) -> bool {
        true
    }
}

impl<L: Leaf> Tree<L> for () {
    type With<M: Leaf> = ();

    fn map_leaves<M: Leaf>(&self, _: &mut Path, _: &mut dyn FnMut(&mut Path, &L) -> M) {}

    fn visit_leaves<'a>(&'a self, _: &mut Path, _: &mut dyn FnMut(&mut Path, &'a L)) {}

    fn same_structure<M: Leaf>(&self, (): &()) -> bool {
        true
    }
}

impl<L: Leaf, T: Tree<L>> Tree<L> for Vec<T> {
    type With<M: Leaf> = Vec<T::With<M>>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M> {
        let items = self.iter().enumerate();
        items
            .map(|(i, item)| path.index(i, |path| item.map_leaves(path, f)))
            .collect()
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        for (i, item) in self.iter().enumerate() {
            path.index(i, |path| item.visit_leaves(path, f));
        }
    }

    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.same_structure(b))
    }
}

impl<L: Leaf, T: Tree<L>, const N: usize> Tree<L> for [T; N] {
    type With<M: Leaf> = [T::With<M>; N];

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M> {
        std::array::from_fn(|i| path.index(i, |path| self[i].map_leaves(path, f)))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        for (i, item) in self.iter().enumerate() {
            path.index(i, |path| item.visit_leaves(path, f));
        }
    }

    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool {
        self.iter().zip(other).all(|(a, b)| a.same_structure(b))
    }
}

impl<L: Leaf, T: Tree<L>> Tree<L> for Option<T> {
    type With<M: Leaf> = Option<T::With<M>>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M> {
        self.as_ref().map(|item| item.map_leaves(path, f))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        if let Some(item) = self {
            item.visit_leaves(path, f);
        }
    }

    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool {
        match (self, other) {
            (Some(a), Some(b)) => a.same_structure(b),
            (None, None) => true,
            _ => false,
        }
    }
}

macro_rules! tuple {
    ($($T:ident $i:tt),+) => {
        impl<Leaf_: Leaf, $($T: Tree<Leaf_>),+> Tree<Leaf_> for ($($T,)+) {
            type With<M_: Leaf> = ($($T::With<M_>,)+);

            fn map_leaves<M_: Leaf>(
                &self,
                path: &mut Path,
                f: &mut dyn FnMut(&mut Path, &Leaf_) -> M_,
            ) -> Self::With<M_> {
                ($(path.index($i, |path| self.$i.map_leaves(path, f)),)+)
            }

            fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a Leaf_)) {
                $(path.index($i, |path| self.$i.visit_leaves(path, f));)+
            }

            fn same_structure<M_: Leaf>(&self, other: &Self::With<M_>) -> bool {
                true $(&& self.$i.same_structure(&other.$i))+
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, N 11);

/// Where a leaf stands in its tree, and what its annotation says of its dimensions.
///
/// A path is made while a tree is walked: [`Tree`] implementations push a segment, walk the part,
/// and pop it again.
#[derive(Clone, Debug, Default)]
pub struct Path {
    segments: Vec<Segment>,
    /// Dimensions that a container puts before those of its leaves (`layers` in a stack).
    leading: Vec<Dim>,
    annotation: Option<&'static [Dim]>,
    declaration: Option<Declaration>,
    is_state: bool,
}

/// Where the annotation of a module's field is written, for messages about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The struct's name.
    pub module: &'static str,
    /// The field's.
    pub field: &'static str,
    /// The line of the annotation.
    pub source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Field(&'static str),
    Index(usize),
}

impl Path {
    /// The path of a whole tree.
    pub fn root() -> Self {
        Self::default()
    }

    /// Walks the field `name`.
    pub fn field<R>(&mut self, name: &'static str, walk: impl FnOnce(&mut Self) -> R) -> R {
        self.within(Segment::Field(name), walk)
    }

    /// Walks element `index` of a sequence.
    pub fn index<R>(&mut self, index: usize, walk: impl FnOnce(&mut Self) -> R) -> R {
        self.within(Segment::Index(index), walk)
    }

    /// Walks the field `name`, whose leaves are annotated with `dims`.
    pub fn annotated<R>(
        &mut self,
        name: &'static str,
        dims: &'static [Dim],
        walk: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.with_annotation(name, dims, None, walk)
    }

    /// [`Path::annotated`] for a field of the struct `module` whose annotation stands on the caller's line;
    /// `#[derive(Module)]` writes this.
    #[track_caller]
    pub fn declared<R>(
        &mut self,
        name: &'static str,
        module: &'static str,
        dims: &'static [Dim],
        walk: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let declaration = Declaration {
            module,
            field: name,
            source: Location::caller(),
        };
        self.with_annotation(name, dims, Some(declaration), walk)
    }

    fn with_annotation<R>(
        &mut self,
        name: &'static str,
        dims: &'static [Dim],
        declaration: Option<Declaration>,
        walk: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let outer = (self.annotation, self.declaration);
        (self.annotation, self.declaration) = (Some(dims), declaration);
        let result = self.within(Segment::Field(name), walk);
        (self.annotation, self.declaration) = outer;
        result
    }

    /// Walks a container that puts `dim` before the dimensions of each of its leaves.
    pub fn leading<R>(&mut self, dim: Dim, walk: impl FnOnce(&mut Self) -> R) -> R {
        self.leading.push(dim);
        let result = walk(self);
        self.leading.pop();
        result
    }

    /// Walks a part that an optimizer keeps of the parameters; `#[module(state)]` on a field writes this.
    pub fn state<R>(&mut self, walk: impl FnOnce(&mut Self) -> R) -> R {
        let outer = std::mem::replace(&mut self.is_state, true);
        let result = walk(self);
        self.is_state = outer;
        result
    }

    fn within<R>(&mut self, segment: Segment, walk: impl FnOnce(&mut Self) -> R) -> R {
        self.segments.push(segment);
        let result = walk(self);
        self.segments.pop();
        result
    }

    /// The leaf's dimension names, leading ones first; `None` where nothing is annotated.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        let own = self.annotation?;
        Some(self.leading.iter().chain(own).copied().collect())
    }

    /// Where the leaf's annotation is written, if that is a field of a struct.
    pub fn declaration(&self) -> Option<Declaration> {
        self.declaration
    }

    /// What the leaf is where it rests, to a layout: [`Role::State`] within [`Path::state`], else
    /// [`Role::Parameter`].
    pub fn role(&self) -> Role {
        match self.is_state {
            true => Role::State,
            false => Role::Parameter,
        }
    }

    /// The outermost segment, where that is an index: which argument of several it is.
    pub fn first_index(&self) -> Option<usize> {
        match self.segments.first() {
            Some(Segment::Index(index)) => Some(*index),
            _ => None,
        }
    }

    /// The leaf in a message: "argument `blocks.mlp.up`", or "the argument" where the path is that of
    /// the whole tree.
    pub(crate) fn leaf_of(&self, what: &str) -> String {
        match self.segments.as_slice() {
            [] => format!("the {what}"),
            _ => format!("{what} `{self}`"),
        }
    }

    /// Whether a container puts dimensions before those of the leaf.
    pub fn is_stacked(&self) -> bool {
        !self.leading.is_empty()
    }

    /// The number of dimensions that are the leaf's own, of `rank` that it has: as many as its annotation names, else all
    /// but those that containers put before them. A gain in a stack of layers has one, whatever stacks that is in.
    pub fn own_rank(&self, rank: usize) -> usize {
        match self.annotation {
            Some(own) => own.len(),
            None => rank.saturating_sub(self.leading.len()),
        }
    }
}

/// `blocks.mlp.up`, `layers.3.bias`; empty for a tree that is a leaf.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.segments.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            match segment {
                Segment::Field(name) => f.write_str(name)?,
                Segment::Index(index) => write!(f, "{index}")?,
            }
        }
        Ok(())
    }
}
