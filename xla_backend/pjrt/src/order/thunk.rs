//! The protocol buffers of thunks, as far as their order needs them.

use prost::Message;

/// Fields of a sequence and of a thunk.
pub(super) const THUNKS: u32 = 1;
const KIND: u32 = 1;
pub(super) const INFO: u32 = 2;
const CALL: u32 = 3;
const CONDITIONAL: u32 = 4;
const WHILE: u32 = 10;
pub(super) const COLLECTIVE: u32 = 18;

/// What a thunk does: the field that says it, and the name that the thunk also has for it. Infeeds and outfeeds are not
/// here, as the tokens that order them are made anew on loading too.
const KINDS: [(u32, &str); 17] = [
    (CALL, "call"),
    (CONDITIONAL, "conditional"),
    (5, "sort"),
    (6, "xnn-fusion"),
    (7, "dot"),
    (8, "rng-get-and-update-state"),
    (9, "topk"),
    (WHILE, "while"),
    (11, "kernel"),
    (12, "copy"),
    (13, "fft"),
    (16, "custom-call"),
    (17, "convolution"),
    (COLLECTIVE, "collective"),
    (19, "partition-id"),
    (20, "replica-id"),
    (21, "ynn-fusion"),
];

/// The fields of a thunk of this kind that are sequences, if it has such.
pub(super) fn sequences_of(kind: u32) -> Option<&'static [u32]> {
    match kind {
        CALL | CONDITIONAL => Some(&[1]),
        WHILE => Some(&[1, 2]),
        _ => None,
    }
}

/// Whether this field of a thunk with this name is known, and thus what it holds.
pub(super) fn is_known(field: u32, name: &str) -> bool {
    [KIND, INFO].contains(&field) || KINDS.contains(&(field, name))
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sequence {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) thunks: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<ResourceUsers>,
}

impl Sequence {
    /// Whether two thunks use the same communicator when the sequence is loaded.
    pub(super) fn share_communicator(&self, first: usize, second: usize) -> bool {
        let (first, second) = (first as i64, second as i64);
        self.resources.iter().any(|users| {
            let kind = users.resource.map(|resource| resource.kind);
            kind == Some(COMMUNICATOR)
                && users.thunks.contains(&first)
                && users.thunks.contains(&second)
        })
    }
}

/// The thunks, by their positions, that share a resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceUsers {
    #[prost(int64, repeated, tag = "1")]
    pub(super) thunks: Vec<i64>,
    #[prost(message, optional, tag = "2")]
    pub(super) resource: Option<Resource>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
}

/// The kind of a [`Resource`].
pub(super) const COMMUNICATOR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Thunk {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) info: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub(super) call: Option<Call>,
    #[prost(message, optional, tag = "4")]
    pub(super) conditional: Option<Conditional>,
    #[prost(message, optional, tag = "10")]
    pub(super) repeated: Option<While>,
    #[prost(message, optional, tag = "18")]
    pub(super) collective: Option<Collective>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Call {
    #[prost(message, optional, tag = "1")]
    pub(super) called: Option<Sequence>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Conditional {
    #[prost(message, repeated, tag = "1")]
    pub(super) branches: Vec<Sequence>,
    #[prost(message, optional, tag = "2")]
    pub(super) branch_index: Option<Slice>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct While {
    #[prost(message, optional, tag = "2")]
    pub(super) body: Option<Sequence>,
    #[prost(message, optional, tag = "3")]
    pub(super) trip_count: Option<TripCount>,
    #[prost(message, optional, tag = "4")]
    pub(super) condition: Option<Slice>,
}

/// The number of turns, if it was known to the compiler.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct TripCount {
    #[prost(int64, tag = "1")]
    pub(super) value: i64,
    #[prost(bool, tag = "2")]
    pub(super) is_known: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Collective {
    #[prost(message, optional, tag = "2")]
    pub(super) buffers: Option<Buffers>,
}

impl Collective {
    /// Memory that it writes.
    pub(super) fn writes(&self) -> Option<Slice> {
        let results = self.buffers.iter().flat_map(|buffers| &buffers.results);
        let mut slices = results.filter_map(|result| result.slice);
        slices.find(|slice| slice.size > 0)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Buffers {
    #[prost(message, repeated, tag = "2")]
    pub(super) results: Vec<ShapedSlice>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ShapedSlice {
    #[prost(message, optional, tag = "2")]
    pub(super) slice: Option<Slice>,
}

/// A part of a device's memory.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Slice {
    #[prost(int64, tag = "1")]
    pub(super) offset: i64,
    /// In bytes.
    #[prost(int64, tag = "2")]
    pub(super) size: i64,
    #[prost(int64, tag = "3")]
    pub(super) allocation: i64,
    #[prost(int32, tag = "4")]
    pub(super) element_type: i32,
}

/// The element type of booleans.
const PRED: i32 = 1;

impl Slice {
    pub(super) fn first_byte(&self) -> Slice {
        Slice {
            size: 1,
            element_type: PRED,
            ..*self
        }
    }
}
