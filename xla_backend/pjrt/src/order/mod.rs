//! The order among the collectives of a serialized program, which XLA's CPU client does not keep whole.
//!
//! The CPU runtime runs a program as a sequence of *thunks*, each as soon as what it waits for is done. Two thunks wait for
//! each other if they touch the same memory, or if both use the *communicator*, a resource that every collective names: so
//! all devices enter a program's collectives in one order. If they did not, each could hold a thread in one collective and
//! wait there for a device that waits in another, until XLA aborts the process. A loop, a branch or a call has a sequence of
//! its own, and uses the communicator if a collective is anywhere inside.
//!
//! A serialized program lists the users of the communicator for each sequence, and loading makes a communicator anew for each
//! of these lists. Within a sequence the collectives keep their order. A loop with collectives inside no longer shares a
//! resource with what stands beside it, and only its data orders it.
//!
//! [`restored`] writes that order into the program, in terms that loading keeps: memory. A nested thunk is replaced by a call
//! of two, itself and a loop of no turns whose body says that it reads a byte of what the collective before it wrote, and of
//! what the one after it will write. That loop never does anything, but the runtime sees the conflict and waits. Declaring
//! more memory can only add to what a thunk waits for, always something earlier in its sequence; so the order is never
//! wrong, and there are no cycles.
//!
//! Field numbers are those of XLA's `executable.proto` and `thunk.proto`. Whatever else a message holds is copied as it
//! stands; a thunk of a kind that is not known here may hold anything, and is refused.

#[cfg(test)]
mod tests;
mod thunk;
mod wire;

use prost::Message;

use crate::error::{Error, Result};
use thunk::{Call, Collective, Conditional, Sequence, Slice, Thunk, TripCount, While};
use wire::rewrite;

/// Where the thunks are: in the executable, which stands beside its compile options.
const EXECUTABLE: u32 = 1;
const THUNK_SEQUENCE: u32 = 6;

/// The program with its collectives in order, from the bytes that XLA's CPU client gave for it.
///
/// # Errors
/// [`Error::Serialize`] for bytes of another form, and for collectives whose order cannot be told.
pub(crate) fn restored(program: &[u8]) -> Result<Vec<u8>> {
    let mut sequences = 0;
    let restored = rewrite(program, |number, executable| {
        if number != EXECUTABLE {
            return Ok(None);
        }
        let executable = rewrite(executable, |number, thunks| {
            if number != THUNK_SEQUENCE {
                return Ok(None);
            }
            sequences += 1;
            Ok(Some(restore_sequence(thunks)?.0))
        })?;
        Ok(Some(executable))
    })?;
    match sequences {
        1 => Ok(restored),
        _ => Err(refused("it has no sequence of thunks")),
    }
}

fn refused(reason: impl Into<String>) -> Error {
    Error::Serialize {
        reason: reason.into(),
    }
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| refused(e.to_string()))
}

/// A thunk whose inside is in order.
struct Part {
    bytes: Vec<u8>,
    /// What the runtime shows of it.
    info: Vec<u8>,
    user: Option<User>,
}

/// What there is to know of a thunk that uses the communicator.
#[derive(Clone, Copy)]
struct User {
    /// It is a loop, a branch or a call, with collectives inside.
    nested: bool,
    /// Memory that it writes. Collectives of empty arrays write none.
    writes: Option<Slice>,
}

impl User {
    fn written(&self) -> Result<Slice> {
        self.writes
            .ok_or_else(|| refused("a collective that writes nothing cannot be ordered"))
    }
}

/// A sequence in order, and its use of the communicator as a whole.
fn restore_sequence(bytes: &[u8]) -> Result<(Vec<u8>, Option<User>)> {
    let sequence = decode::<Sequence>(bytes)?;
    let parts = sequence.thunks.iter().map(|thunk| restore_thunk(thunk));
    let mut parts = parts.collect::<Result<Vec<Part>>>()?;
    let used = |(i, part): (usize, &Part)| part.user.map(|user| (i, user));
    let users: Vec<(usize, User)> = parts.iter().enumerate().filter_map(used).collect();

    // What the nested thunks must say that they read, to come after the user before them and before the one after.
    let mut reads: Vec<Vec<Slice>> = vec![Vec::new(); parts.len()];
    for (&(first, before), &(second, after)) in users.iter().zip(users.iter().skip(1)) {
        if after.nested {
            reads[second].push(before.written()?);
        } else if before.nested {
            reads[first].push(after.written()?);
        } else if !sequence.share_communicator(first, second) {
            return Err(refused("its collectives name no common communicator"));
        }
    }
    for (part, reads) in parts.iter_mut().zip(reads) {
        if let Some(user) = part.user.filter(|_| !reads.is_empty()) {
            part.bytes = beside_reads(part, user.written()?, reads);
        }
    }

    let mut thunks = parts.iter().map(|part| part.bytes.clone());
    let bytes = rewrite(bytes, |number, _| {
        Ok(match number {
            thunk::THUNKS => thunks.next(),
            _ => None,
        })
    })?;
    let whole = User {
        nested: true,
        writes: users.iter().find_map(|(_, user)| user.writes),
    };
    Ok((bytes, Some(whole).filter(|_| !users.is_empty())))
}

fn restore_thunk(bytes: &[u8]) -> Result<Part> {
    let thunk = decode::<Thunk>(bytes)?;
    let mut user: Option<User> = None;
    let restored = rewrite(bytes, |number, value| {
        if !thunk::is_known(number, &thunk.kind) {
            let kind = &thunk.kind;
            return Err(refused(format!(
                "thunks of kind `{kind}` ({number}) are not known"
            )));
        }
        if number == thunk::COLLECTIVE {
            user = Some(User {
                nested: false,
                writes: decode::<Collective>(value)?.writes(),
            });
        }
        let Some(sequences) = thunk::sequences_of(number) else {
            return Ok(None);
        };
        let nested = rewrite(value, |number, bytes| {
            if !sequences.contains(&number) {
                return Ok(None);
            }
            let (bytes, inside) = restore_sequence(bytes)?;
            if user.is_none_or(|user| user.writes.is_none()) {
                user = inside.or(user);
            }
            Ok(Some(bytes))
        })?;
        Ok(Some(nested))
    })?;
    Ok(Part {
        bytes: restored,
        info: thunk.info,
        user,
    })
}

/// A call of a thunk and of a loop of no turns, which reads a byte of each of these.
fn beside_reads(part: &Part, own: Slice, reads: Vec<Slice>) -> Vec<u8> {
    let read = |slice: Slice| {
        // A branch reads its index, of one byte if it is a boolean.
        let branch = Conditional {
            branches: Vec::new(),
            branch_index: Some(slice.first_byte()),
        };
        Thunk {
            kind: "conditional".into(),
            conditional: Some(branch),
            ..Thunk::default()
        }
        .encode_to_vec()
    };
    let order = While {
        body: Some(Sequence {
            thunks: reads.into_iter().map(read).collect(),
            resources: Vec::new(),
        }),
        trip_count: Some(TripCount {
            value: 0,
            is_known: true,
        }),
        // A loop writes its condition: here what the thunk beside it writes anyway.
        condition: Some(own.first_byte()),
    };
    let order = Thunk {
        kind: "while".into(),
        repeated: Some(order),
        ..Thunk::default()
    };
    let called = Sequence {
        thunks: vec![part.bytes.clone(), order.encode_to_vec()],
        resources: Vec::new(),
    };
    Thunk {
        kind: "call".into(),
        info: part.info.clone(),
        call: Some(Call {
            called: Some(called),
        }),
        ..Thunk::default()
    }
    .encode_to_vec()
}
