//! What is wrong with one annotation of several.

use std::fmt;

use shardax_core::Path;
use shardax_sharding::SpecFault;

/// An annotation that the layout cannot follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutFault {
    /// The argument, result or value that is annotated, with its type.
    pub what: String,
    /// The user's line: of the operation that makes a value, or of an annotation that has a wrong number of names.
    pub source: Option<shardax_core::Source>,
    /// What is wrong.
    pub fault: SpecFault,
    /// What to do about it, where the fault does not say.
    pub help: Option<&'static str>,
}

impl LayoutFault {
    /// A leaf whose annotation does not fit it. Where it has too few or too many names, the field is named that has the
    /// annotation, and its line: every other fault is of the sizes, or of the layout.
    pub(crate) fn of_leaf(what: String, path: &Path, fault: SpecFault) -> Self {
        let declaration = path.declaration();
        let annotated = match &fault {
            SpecFault::Rank {
                rule: None,
                entries,
                shape,
            } => declaration.map(|declaration| (declaration, entries, shape)),
            _ => None,
        };
        let Some((declaration, entries, shape)) = annotated else {
            return LayoutFault {
                what,
                source: None,
                fault,
                help: None,
            };
        };
        let (field, module) = (declaration.field, declaration.module);
        let has_one_more = shape.len() == entries + 1;
        LayoutFault {
            what: format!("{what} (field `{field}` of `{module}`)"),
            source: Some(declaration.source),
            fault,
            help: has_one_more.then_some(LEADING),
        }
    }
}

/// What may have been meant where an array has one dimension more than its annotation.
const LEADING: &str = "if the first dimension is one of layers, or of models that `vmap` runs side by side, hold them in a \
                       `Stack`: it names that dimension `layers`, and the annotation stays that of one of them";

impl fmt::Display for LayoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fault)?;
        if let Some(at) = self.source {
            write!(f, "\n    --> {}:{}:{}", at.file(), at.line(), at.column())?;
        }
        match self.help {
            Some(help) => write!(f, "\n    help: {help}"),
            None => Ok(()),
        }
    }
}
