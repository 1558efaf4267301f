//! What is wrong with one argument of a launch.

use std::fmt;

/// What is wrong with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArgumentFault {
    /// The number of arguments is not the program's.
    Count {
        /// Arguments that the program takes.
        expected: usize,
        /// Arguments given.
        actual: usize,
    },
    /// Element type or dimensions differ from what the program was compiled for.
    Type {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
        /// Type of one shard, as compiled.
        expected: String,
        /// Type of the buffer given.
        actual: String,
    },
    /// The buffer lies on another device than the one it is an argument for.
    Device {
        /// Position of the argument.
        argument: usize,
        /// Device that the program expects, by its position in the client's list.
        expected: usize,
        /// Device that the buffer is on.
        actual: usize,
    },
    /// The buffer belongs to another client.
    Client {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// The buffer was donated or deleted before.
    Deleted {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// The buffer is to be donated, but is an argument a second time or is in use by another thread at this moment.
    DonatedInUse {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// An index in `non_donatable_inputs` beyond the arguments.
    NonDonatableIndex {
        /// The index given.
        index: usize,
        /// Arguments that the program takes.
        arguments: usize,
    },
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgumentFault::Count { expected, actual } => {
                write!(f, "it takes {expected} arguments, {actual} were given")
            }
            ArgumentFault::Type {
                argument,
                device,
                expected,
                actual,
            } => write!(
                f,
                "argument {argument} on device {device} must be {expected}, but is {actual}"
            ),
            ArgumentFault::Device {
                argument,
                expected,
                actual,
            } => write!(
                f,
                "argument {argument} must be on device {expected}, but is on device {actual}; copy it there first"
            ),
            ArgumentFault::Client { argument, device } => write!(
                f,
                "argument {argument} on device {device} belongs to another client; move it through host memory"
            ),
            ArgumentFault::Deleted { argument, device } => write!(
                f,
                "argument {argument} on device {device} was donated or deleted before and holds no data any more"
            ),
            ArgumentFault::DonatedInUse { argument, device } => write!(
                f,
                "argument {argument} on device {device} is donated, but the same buffer is also another argument or \
                 another thread uses it at this moment; pass a copy, or do not donate it"
            ),
            ArgumentFault::NonDonatableIndex { index, arguments } => write!(
                f,
                "non-donatable input {index} does not exist, there are {arguments} arguments"
            ),
        }
    }
}
