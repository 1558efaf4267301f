//! How parts of a compiled program are called in a line of text.

use std::path::Path;

use super::module::SourceLine;

/// The scope that a tracer puts around the operations of a backward pass.
pub const BACKWARD: &str = "backward";

/// The longest text of groups that are no axes.
const LONGEST_GROUPS: usize = 24;
/// Scopes that say how the program is built, and not which operation this is.
const STRUCTURE: [&str; 7] = [
    "while",
    "body",
    "cond",
    "closed_call",
    "shard_map",
    BACKWARD,
    "",
];

/// A number of bytes for people: `512 B`, `1.5 KiB`, `80.0 GiB`. Units are powers of 1024.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would print as 1024.0 is 1.0 of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// With a loop of unknown length around it, a number is a multiple of an unknown one.
pub fn times_text(times: u64, known: bool) -> String {
    if known {
        times.to_string()
    } else {
        format!("{times} x ?")
    }
}

/// The axes, or the groups of devices if they are no axes.
pub fn axes_text(axes: Option<&[String]>, groups: &[Vec<usize>]) -> String {
    match axes {
        Some([]) => "-".to_owned(),
        Some(axes) => axes.join("+"),
        None if groups.is_empty() => "no axes".to_owned(),
        None => {
            let mut text = String::new();
            for group in groups {
                let devices: Vec<String> = group.iter().map(usize::to_string).collect();
                text += &format!("{{{}}}", devices.join(","));
                if text.len() > LONGEST_GROUPS {
                    text.truncate(LONGEST_GROUPS);
                    return text + "...";
                }
            }
            text
        }
    }
}

/// The file with the folder that it is in, which is enough to know it by.
pub fn short_line(source: &SourceLine) -> String {
    let path = Path::new(&source.file);
    let folder = path.parent().and_then(Path::file_name);
    let file = path.file_name().map(Path::new).unwrap_or(path);
    let short = folder
        .map(Path::new)
        .map_or(file.to_owned(), |folder| folder.join(file));
    format!("{}:{}", short.display(), source.line)
}

/// The last two scopes that name something of the user's, of all that a combined collective does.
pub fn short_name(op_name: &str) -> Option<String> {
    let (common, _) = split_combined(op_name);
    let names: Vec<&str> = common
        .split('/')
        .filter(|scope| !STRUCTURE.contains(scope) && !scope.contains('('))
        .collect();
    let last = &names[names.len().saturating_sub(2)..];
    (!last.is_empty()).then(|| last.join("/"))
}

/// The name that all parts of a combined instruction have in common, and the rest of their names:
/// XLA calls one that is made of `a/b/c` and `a/d` `a/(b/c:d)`.
pub(crate) fn split_combined(op_name: &str) -> (&str, &str) {
    let begins = match op_name.starts_with('(') {
        true => Some(0),
        false => op_name.find("/(").map(|slash| slash + 1),
    };
    op_name.split_at(begins.unwrap_or(op_name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1024), "1.0 KiB");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(human_bytes(80 << 30), "80.0 GiB");
        assert_eq!(human_bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn axes_and_names_are_short() {
        assert_eq!(axes_text(Some(&[]), &[]), "-");
        assert_eq!(axes_text(None, &[vec![0, 3], vec![1, 2]]), "{0,3}{1,2}");
        let long = axes_text(None, &[(0..40).collect()]);
        assert_eq!(long, "{0,1,2,3,4,5,6,7,8,9,10,...");
        assert_eq!(
            short_name("jit(step)/transpose(jvp())/while/body/closed_call/mlp/dot_general"),
            Some("mlp/dot_general".into())
        );
        assert_eq!(short_name("jit(step)/while"), None);
        assert_eq!(
            short_name("mlp/(backward/dot_general:add)"),
            Some("mlp".into())
        );
        assert_eq!(
            short_name("(backward/dot_general:backward/add:reduce_sum)"),
            None
        );
        assert_eq!(short_name(""), None);
        let line = |file: &str| {
            short_line(&SourceLine {
                file: file.into(),
                line: 7,
            })
        };
        assert_eq!(line("/home/user/model/src/gpt.rs"), "src/gpt.rs:7");
        assert_eq!(line("gpt.rs"), "gpt.rs:7");
    }
}
