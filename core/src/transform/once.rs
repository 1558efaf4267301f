//! Each function inside an operation is transformed once for each question that is asked of it.
//!
//! The rules of loops and choices ask more than once: which results get a tangent when these operands have one, and then
//! for the derivative in which exactly those do. Functions inside of functions would be transformed twice for each time that
//! the one around them is, which doubles with every level. So answers are kept while the outermost transform runs.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardax_sharding::Dim;

use super::linearize::Mode;
use crate::graph::Graph;

/// What is asked of a function. Flags are by input, or by output.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// For its derivative, when `active` inputs have a tangent, and `wanted` outputs get one whatever it is.
    Derivative {
        active: Vec<bool>,
        wanted: Vec<bool>,
        mode: Mode,
    },
    /// For the body of a loop with a condition, of values and tangents.
    DualBody { active: Vec<bool> },
    /// For the function of a batch whose inputs have it at these dimensions.
    Batch {
        size: usize,
        name: Dim,
        dims: Vec<Option<usize>>,
        form: Form,
    },
}

/// What becomes of the results of a function of a batch.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Those that are flagged have the batch in front.
    InFront(Vec<bool>),
    /// Whether any is true.
    Any,
    /// The carries of a loop, of which those that are flagged have the batch in front. Where there is a condition, those of
    /// elements for which it is false stay.
    Carries {
        batched: Vec<bool>,
        while_true: Option<Function>,
    },
    /// Cotangents of arguments that have the batch there; of an argument without it, their sum.
    Cotangents(Vec<Option<usize>>),
}

/// A function by its identity. It must outlive the question.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Function(usize);

impl Function {
    pub(super) fn of(graph: &Arc<Graph>) -> Self {
        Function(Arc::as_ptr(graph) as usize)
    }
}

/// The answer, and the function: as long as that is there, no other one has its identity.
type Answers = FxHashMap<(Function, Question), (Arc<Graph>, Rc<dyn Any>)>;

thread_local! {
    /// None between transforms.
    static ANSWERS: RefCell<Option<Answers>> = const { RefCell::new(None) };
}

/// Runs a transform, and keeps answers until the outermost one is done.
pub(super) fn remembering<R>(transform: impl FnOnce() -> R) -> R {
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            ANSWERS.set(None);
        }
    }
    let is_outermost = ANSWERS.with_borrow(Option::is_none);
    let _forget = is_outermost.then(|| {
        ANSWERS.set(Some(Answers::default()));
        Forget
    });
    transform()
}

/// What `answer` finds, which is asked only if it is not known.
pub(super) fn once<T: 'static>(
    function: &Arc<Graph>,
    question: Question,
    answer: impl FnOnce() -> T,
) -> Rc<T> {
    let key = (Function::of(function), question);
    let known = ANSWERS.with_borrow(|answers| {
        let (_, known) = answers.as_ref()?.get(&key)?;
        Rc::clone(known).downcast().ok()
    });
    if let Some(known) = known {
        return known;
    }
    let found = Rc::new(answer());
    let kept: Rc<dyn Any> = Rc::<T>::clone(&found);
    ANSWERS.with_borrow_mut(|answers| {
        if let Some(answers) = answers {
            answers.insert(key, (Arc::clone(function), kept));
        }
    });
    found
}
