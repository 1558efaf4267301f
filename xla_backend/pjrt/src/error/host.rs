//! The error of a closure, on its way through the plugin and back.

/// What went wrong in a closure that a program called.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the host function `{name}` called at {line} failed: {message}")]
pub struct HostFault {
    /// What the closure is called.
    pub name: String,
    /// The user's line of the call, `src/model.rs:12:5`.
    pub line: String,
    /// The closure's own message, or what is wrong with what it returned.
    pub message: String,
}

impl HostFault {
    /// Before, between and after the parts, in the plugin's message: control characters, which messages do not have.
    const MARKS: [char; 3] = ['\u{1}', '\u{2}', '\u{3}'];

    /// The fault as text for the plugin, which gives it back inside of a message of its own.
    pub(crate) fn encode(&self) -> String {
        let [start, middle, end] = Self::MARKS;
        let clean = |text: &str| text.replace(Self::MARKS, " ");
        let parts = [&self.name, &self.line, &self.message].map(|part| clean(part));
        format!(
            "host function {start}{}{end}",
            parts.join(&middle.to_string())
        )
    }

    /// The fault that a message of the plugin's carries.
    pub(crate) fn decode(message: &str) -> Option<Self> {
        let [start, middle, end] = Self::MARKS;
        let (_, text) = message.split_once(start)?;
        let (text, _) = text.split_once(end)?;
        let (name, text) = text.split_once(middle)?;
        let (line, message) = text.split_once(middle)?;
        Some(HostFault {
            name: name.to_owned(),
            line: line.to_owned(),
            message: message.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_back_from_the_message_of_a_plugin() {
        let fault = HostFault {
            name: "sort".to_owned(),
            line: "src/model.rs:12:5".to_owned(),
            message: "key `\u{e9}`: not found\n(of 3)".to_owned(),
        };
        let message = format!("INTERNAL: call failed: {} [device 3]", fault.encode());
        assert_eq!(HostFault::decode(&message), Some(fault));
        assert_eq!(HostFault::decode("INTERNAL: out of memory"), None);
    }

    #[test]
    fn marks_in_a_message_do_no_harm() {
        let fault = HostFault {
            name: "a\u{1}b".to_owned(),
            line: "c\u{2}d".to_owned(),
            message: "e\u{3}f".to_owned(),
        };
        let decoded = HostFault::decode(&fault.encode()).map(|f| (f.name, f.line, f.message));
        let expected = ["a b", "c d", "e f"].map(str::to_owned);
        assert_eq!(decoded, Some(expected.into()));
    }
}
