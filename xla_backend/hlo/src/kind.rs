//! The kinds of collectives, what each moves, and what that costs a device.

use std::fmt;

use serde::{Serialize, Serializer};

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// Every device gets the reduction of all devices' operands.
    AllReduce,
    /// Every device gets all devices' operands, one after the other.
    AllGather,
    /// Every device gets its part of the reduction of all devices' operands.
    ReduceScatter,
    /// Every device sends a different part of its operand to each device.
    AllToAll,
    /// Devices send their operand to one other device.
    CollectivePermute,
    /// The first device of a group sends its operand to the others.
    CollectiveBroadcast,
    /// An all-to-all with parts of unequal size.
    RaggedAllToAll,
}

impl CollectiveKind {
    /// Every kind, in the order in which reports list them.
    pub const ALL: [CollectiveKind; 7] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::CollectivePermute,
        CollectiveKind::CollectiveBroadcast,
        CollectiveKind::RaggedAllToAll,
    ];

    /// The HLO opcode, `all-reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::CollectivePermute => "collective-permute",
            CollectiveKind::CollectiveBroadcast => "collective-broadcast",
            CollectiveKind::RaggedAllToAll => "ragged-all-to-all",
        }
    }

    /// The kind of an instruction, and whether it is the start of an asynchronous one. `None` for every
    /// other instruction, the `-done` of an asynchronous collective among them.
    pub(super) fn of_opcode(opcode: &str) -> Option<(Self, bool)> {
        let (name, starts) = match opcode.strip_suffix("-start") {
            Some(name) => (name, true),
            None => (opcode, false),
        };
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .map(|kind| (kind, starts))
    }

    /// Whether the instruction has the attribute `use_global_device_ids`.
    pub(super) const fn knows_global_device_ids(self) -> bool {
        matches!(
            self,
            Self::AllReduce | Self::AllGather | Self::ReduceScatter
        )
    }

    /// Bytes that the busiest device sends in one execution, when `payload` bytes are moved in groups of
    /// `group` devices by the algorithm that sends least (a ring). Rounded up.
    pub fn bytes_sent(self, payload: u64, group: usize) -> u64 {
        if group < 2 {
            return 0;
        }
        let (n, payload) = (group as u128, u128::from(payload));
        let sent = match self {
            // A reduce-scatter and an all-gather.
            CollectiveKind::AllReduce => (2 * (n - 1) * payload).div_ceil(n),
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::AllToAll
            | CollectiveKind::RaggedAllToAll => ((n - 1) * payload).div_ceil(n),
            CollectiveKind::CollectivePermute | CollectiveKind::CollectiveBroadcast => payload,
        };
        u64::try_from(sent).unwrap_or(u64::MAX)
    }

    /// The rounds of messages of that algorithm, one after the other, in groups of `group` devices: what
    /// is to be multiplied by the latency of a link.
    pub fn ring_steps(self, group: usize) -> u64 {
        let n = group as u64;
        if n < 2 {
            return 0;
        }
        match self {
            CollectiveKind::AllReduce => 2 * (n - 1),
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::AllToAll
            | CollectiveKind::RaggedAllToAll
            | CollectiveKind::CollectiveBroadcast => n - 1,
            CollectiveKind::CollectivePermute => 1,
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// As the HLO opcode.
impl Serialize for CollectiveKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_counts_and_a_done_does_not() {
        let of = CollectiveKind::of_opcode;
        assert_eq!(of("all-reduce"), Some((CollectiveKind::AllReduce, false)));
        assert_eq!(
            of("all-reduce-start"),
            Some((CollectiveKind::AllReduce, true))
        );
        assert_eq!(
            of("ragged-all-to-all"),
            Some((CollectiveKind::RaggedAllToAll, false))
        );
        assert_eq!(of("all-reduce-done"), None);
        assert_eq!(of("async-start"), None);
        assert_eq!(of("reduce"), None);
    }

    #[test]
    fn a_ring_sends_what_it_must() {
        use CollectiveKind::*;
        assert_eq!(AllReduce.bytes_sent(800, 8), 1400);
        assert_eq!(AllReduce.bytes_sent(800, 2), 800);
        assert_eq!(AllGather.bytes_sent(800, 8), 700);
        assert_eq!(ReduceScatter.bytes_sent(800, 8), 700);
        assert_eq!(AllToAll.bytes_sent(800, 4), 600);
        assert_eq!(CollectivePermute.bytes_sent(800, 8), 800);
        assert_eq!(AllReduce.bytes_sent(10, 3), 14);
        assert_eq!(AllReduce.bytes_sent(u64::MAX, 8), u64::MAX);
        for kind in CollectiveKind::ALL {
            assert_eq!(kind.bytes_sent(800, 1), 0);
            assert_eq!(kind.ring_steps(1), 0);
        }
        assert_eq!(AllReduce.ring_steps(8), 14);
        assert_eq!(AllGather.ring_steps(8), 7);
        assert_eq!(CollectivePermute.ring_steps(2), 1);
    }
}
