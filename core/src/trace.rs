//! Tracing: running the user's function on handles, and writing down what it does.
//!
//! Each thread has a stack of *frames*, one for each function that is being traced: the jitted
//! function, the body of a scan inside it, the loss inside a `grad`. An operation appends an
//! equation to the innermost frame. An operand that belongs to an outer frame is a *capture*: it
//! becomes an input of every frame between, so that a finished graph refers to nothing outside.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, panic_any, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::context::is_manual;
use crate::error::{Error, ErrorKind, Result, Source};
use crate::graph::{Equation, Graph, Scope, ValueId, Values};
use crate::literal::Number;
use crate::op::{Constraint, Dims, Op};
use crate::rules::shape::{self, Types};
use crate::rules::split::{self, Entries, Resolve};
use crate::simplify::Simplifier;
use crate::tensor::Tensor;
use crate::types::TensorType;
use crate::vary::{agreed, is_elementary};

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The identity of a frame, different for every frame of the process; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FrameId(u32);

/// The outermost scope of equations that a backward pass consists of.
pub const BACKWARD: &str = "backward";

/// The bytes that one tensor may have. The compiler adds sizes up as signed 64-bit numbers, and does
/// not survive an overflow.
const MAX_BYTES: usize = 1 << 58;

/// How many functions may be traced one inside of another. Transforms and compilers follow regions within regions on the
/// stack, which such a depth leaves most of.
const MAX_NESTED: usize = 64;

/// The bytes of stack below which nothing more is traced: what an operation and an error take, with some to spare.
const RESERVED_STACK: usize = 128 << 10;

/// A function being traced.
struct Frame {
    id: FrameId,
    /// Whether it is a program of its own, which captures nothing of what is around it.
    isolated: bool,
    graph: Graph,
    /// Outer tensors that became the last inputs of the graph, in order.
    captures: Vec<Tensor>,
    captured: FxHashMap<Tensor, ValueId>,
    /// Inputs that stand for an outer tensor, as the arguments of a function that is differentiated do.
    stands_for: FxHashMap<ValueId, Tensor>,
    simplifier: Simplifier,
    /// What writes the squares of values that are roots.
    squares: FxHashMap<ValueId, Square>,
}

/// Writes a square.
type Square = Rc<dyn Fn() -> Tensor>;

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    /// The source that equations get while a transform rewrites one: that of the original.
    static ORIGIN: RefCell<Option<(Source, Scope)>> = const { RefCell::new(None) };
    /// The method of `Tensor` whose operations are being written.
    static METHOD: Cell<Option<&'static str>> = const { Cell::new(None) };
    static SCOPE: RefCell<Scope> = const { RefCell::new(None) };
    static QUIET: Cell<u32> = const { Cell::new(0) };
    static IS_BACKWARD: Cell<bool> = const { Cell::new(false) };
    /// How many derivatives are taken of what is traced now.
    static ORDER: Cell<usize> = const { Cell::new(0) };
    /// A scope and what [`marked`] made of it last: neighbors mostly share theirs.
    static MARKED: RefCell<(Scope, Scope)> = const { RefCell::new((None, None)) };
}

static NEXT_FRAME: AtomicU32 = AtomicU32::new(0);

/// A finished region: its graph and what it captured.
pub(crate) struct Region<R> {
    /// What the traced closure returned; its tensors are values of `graph`.
    pub result: R,
    /// The graph without outputs; captures are its last inputs.
    pub graph: Graph,
    /// Tensors of the surrounding frames, in the order of the last inputs.
    pub captures: Vec<Tensor>,
}

/// Removes the frame when the closure unwinds.
struct OpenFrame(FrameId);

impl Drop for OpenFrame {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| {
            if let Some(position) = frames.iter().position(|f| f.id == self.0) {
                frames.truncate(position);
            }
        });
    }
}

/// Traces `f` into a frame of its own.
pub(crate) fn region<R>(f: impl FnOnce() -> R) -> Region<R> {
    within_frame(false, f)
}

/// Refuses to trace a function of `op` inside of too many others.
pub(crate) fn check_depth(op: &'static str, source: Source) {
    let depth = FRAMES.with_borrow(Vec::len);
    if depth >= MAX_NESTED {
        let problem = format!(
            "its function is traced inside of {depth} others, which is as deep as functions nest"
        );
        fail_at(
            ErrorKind::Recursion { op, problem },
            Some(ENDLESS.into()),
            source,
        )
    }
}

/// Refuses to go on where the stack is nearly used up.
fn check_stack(op: &Op, source: Source) {
    if stacker::remaining_stack().is_some_and(|left| left < RESERVED_STACK) {
        let op = op.name();
        let problem = "calls within calls have used up the stack".to_owned();
        fail_at(
            ErrorKind::Recursion { op, problem },
            Some(ENDLESS.into()),
            source,
        )
    }
}

const ENDLESS: &str = "a function that calls itself has to end by something that is known while it is traced, such as a number \
                       of levels; what the program's values decide is a `while_loop`, and what is repeated a `scan`";

/// The innermost frame, if anything is being traced.
pub(crate) fn current_frame() -> Option<FrameId> {
    FRAMES.with_borrow(|frames| frames.last().map(|frame| frame.id))
}

/// Traces `f` as a program that captures nothing.
pub(crate) fn program<R>(f: impl FnOnce() -> R) -> Region<R> {
    of_order(0, || within_frame(true, f))
}

/// How many derivatives are taken of what is traced now.
pub(crate) fn order() -> usize {
    ORDER.get()
}

/// Traces with `f` what so many derivatives are taken of.
pub(crate) fn of_order<R>(order: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ORDER.set(self.0);
        }
    }
    let _restore = Restore(ORDER.replace(order));
    f()
}

fn within_frame<R>(isolated: bool, f: impl FnOnce() -> R) -> Region<R> {
    let id = FrameId(NEXT_FRAME.fetch_add(1, Ordering::Relaxed));
    FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame {
            id,
            isolated,
            graph: Graph::default(),
            captures: Vec::new(),
            captured: FxHashMap::default(),
            stands_for: FxHashMap::default(),
            simplifier: Simplifier::default(),
            squares: FxHashMap::default(),
        });
    });
    let open = OpenFrame(id);
    let result = f();
    let frame = FRAMES.with_borrow_mut(Vec::pop);
    std::mem::forget(open);
    match frame {
        Some(frame) => Region {
            result,
            graph: frame.graph,
            captures: frame.captures,
        },
        // Frames are pushed and popped by this function alone.
        None => Region {
            result,
            graph: Graph::default(),
            captures: Vec::new(),
        },
    }
}

/// Runs `f`; a mistake that unwinds out of it is returned. Other panics go on.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R> {
    QUIET.set(QUIET.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(QUIET.get() - 1);
    result.map_err(|payload| match payload.downcast::<Error>() {
        Ok(error) => *error,
        Err(other) => resume_unwind(other),
    })
}

/// Ends the trace with a mistake that a function built on tensors has found in its arguments.
///
/// `op` is what the user called, `problem` what is wrong and `help` what to do about it. The
/// enclosing `jit` or [`trace`](crate::trace) returns them as an [`Error`] with the user's line, if
/// the functions on the way there are `#[track_caller]`.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, mistake, trace};
///
/// #[track_caller]
/// fn halves(x: Tensor) -> [Tensor; 2] {
///     let size = x.size(-1);
///     if size % 2 != 0 {
///         let problem = format!("the last dimension of {} is odd", x.ty());
///         mistake("halves", problem, Some("pad it by one".to_owned()))
///     }
///     [x.slice(-1, ..size / 2), x.slice(-1, size / 2..)]
/// }
///
/// let error = trace(halves, TensorType::new(DType::F32, [3])).map(|_| ()).unwrap_err();
/// assert_eq!(error.kind.to_string(), "`halves`: the last dimension of f32[3] is odd");
/// ```
#[track_caller]
pub fn mistake(op: &'static str, problem: String, help: Option<String>) -> ! {
    fail(ErrorKind::Argument { op, problem }, help)
}

/// Ends the trace with a mistake of the user.
#[track_caller]
pub(crate) fn fail(kind: ErrorKind, help: Option<String>) -> ! {
    fail_at(kind, help, Location::caller())
}

pub(crate) fn fail_at(kind: ErrorKind, help: Option<String>, source: Source) -> ! {
    let (source_line, _) = origin(source);
    let error = Error {
        kind: match METHOD.get() {
            Some(method) => kind.of_method(method),
            None => kind,
        },
        source_line,
        help,
    };
    if QUIET.get() > 0 {
        // `resume_unwind` does not call the panic hook: the error is reported by who catches it.
        resume_unwind(Box::new(error))
    } else {
        panic_any(error.to_string())
    }
}

/// Keeps what is seen while tracing that may not be meant, with the user's line, once.
pub(crate) fn note(text: &str, source: Source) {
    let (at, _) = origin(source);
    let text = format!("{text} --> {at}");
    NOTES.with_borrow_mut(|notes| {
        if !notes.contains(&text) {
            notes.push(text);
        }
    });
}

/// Puts the notes of another function in the place of those that were kept.
pub(crate) fn replace_notes(notes: Vec<String>) -> Vec<String> {
    NOTES.replace(notes)
}

/// The source and scope that an equation written now gets.
fn origin(source: Source) -> (Source, Scope) {
    ORIGIN
        .with_borrow(Clone::clone)
        .unwrap_or_else(|| (source, SCOPE.with_borrow(Clone::clone)))
}

/// Runs `f` with all its equations marked as those of a backward pass: their scopes begin with
/// [`BACKWARD`].
pub(crate) fn backward<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_BACKWARD.set(self.0);
        }
    }
    let _restore = Restore(IS_BACKWARD.replace(true));
    f()
}

/// A scope as an equation carries it.
fn marked(scope: Scope) -> Scope {
    if !IS_BACKWARD.get() {
        return scope;
    }
    MARKED.with_borrow_mut(|(last, result)| {
        let is_same = match (&*last, &scope) {
            (Some(last), Some(scope)) => Arc::ptr_eq(last, scope),
            (last, scope) => last.is_none() && scope.is_none(),
        };
        if !is_same || result.is_none() {
            *result = match &scope {
                None => Some(BACKWARD.into()),
                Some(name) if name.split('/').next() == Some(BACKWARD) => scope.clone(),
                Some(name) => Some(format!("{BACKWARD}/{name}").into()),
            };
            *last = scope;
        }
        result.clone()
    })
}

/// Runs `f` with all its equations attributed to the line and scope of `equation`.
pub(crate) fn with_origin<R>(equation: &Equation, f: impl FnOnce() -> R) -> R {
    let _restore = replace_origin((equation.source, equation.scope.clone()));
    f()
}

/// Runs `f` with its equations and mistakes attributed to the line `source`, unless a line that is
/// nearer to the user is known.
///
/// For functions of a library whose operations stand in closures: those are not `#[track_caller]`.
/// Their scope is the one around this call.
///
/// ```
/// use std::panic::Location;
/// use shardax_core::{Tensor, Tree, at};
///
/// #[track_caller]
/// fn halve<T: Tree<Tensor>>(tree: T) -> T {
///     at(Location::caller(), || tree.replace_leaves(&mut |_, leaf| *leaf * 0.5))
/// }
/// ```
pub fn at<R>(source: Source, f: impl FnOnce() -> R) -> R {
    let is_known = ORIGIN.with_borrow(Option::is_some);
    let _restore = (!is_known).then(|| replace_origin((source, SCOPE.with_borrow(Clone::clone))));
    f()
}

/// Runs the body of a method of `Tensor`: its equations carry the user's line, and its mistakes
/// also the method's name, whatever it is written with.
pub(crate) fn method<R>(name: &'static str, source: Source, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<&'static str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            METHOD.set(self.0);
        }
    }
    let outer = METHOD.get();
    let _restore = Restore(outer);
    METHOD.set(outer.or(Some(name)));
    at(source, f)
}

fn replace_origin(origin: (Source, Scope)) -> impl Drop {
    struct Restore(Option<(Source, Scope)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ORIGIN.set(self.0.take());
        }
    }
    Restore(ORIGIN.replace(Some(origin)))
}

/// Names the equations that `f` writes: scopes nest, and travel into the compiled program.
///
/// An outermost scope called [`BACKWARD`] means a backward pass to reports.
///
/// ```
/// # use shardax_core::{scope, Tensor};
/// # fn attention(x: Tensor) -> Tensor { x }
/// fn block(x: Tensor) -> Tensor {
///     scope("attention", || attention(x))
/// }
/// ```
pub fn scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    struct Restore(Scope);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.set(self.0.take());
        }
    }
    let outer = SCOPE.with_borrow(Clone::clone);
    let inner: Arc<str> = match &outer {
        Some(outer) => format!("{outer}/{name}").into(),
        None => name.into(),
    };
    SCOPE.set(Some(inner));
    let _restore = Restore(outer);
    f()
}

/// A new input of the innermost frame, which is an argument of the program.
pub(crate) fn argument(ty: TensorType, source: Source) -> Tensor {
    if is_oversized(&ty) {
        let (kind, help) = oversized("argument", &ty);
        fail_at(kind, help, source);
    }
    input(ty)
}

fn is_oversized(ty: &TensorType) -> bool {
    ty.host_bytes() > MAX_BYTES
}

fn oversized(op: &'static str, ty: &TensorType) -> shape::Fault {
    let problem = format!("{ty} has more than {MAX_BYTES} bytes, and no machine holds that");
    let help = "check the sizes that it is made from".to_owned();
    (ErrorKind::Shape { op, problem }, Some(help))
}

/// A new input of the innermost frame.
pub(crate) fn input(ty: TensorType) -> Tensor {
    top(|frame| Tensor::new(frame.id, frame.graph.new_input(ty)))
}

/// A new input of the innermost frame that stands for an outer tensor of this type.
pub(crate) fn input_for(outer: Tensor, ty: TensorType) -> Tensor {
    let input = input(ty);
    top(|frame| frame.stands_for.insert(input.value, outer));
    input
}

#[track_caller]
fn top<R>(f: impl FnOnce(&mut Frame) -> R) -> R {
    let done = FRAMES.with_borrow_mut(|frames| frames.last_mut().map(f));
    done.unwrap_or_else(|| {
        fail(
            ErrorKind::Outside { op: "tensor" },
            Some(OUTSIDE.to_owned()),
        )
    })
}

/// Appends an equation to the innermost frame.
pub(crate) fn emit(op: Op, operands: &[Tensor], source: Source) -> SmallVec<[Tensor; 1]> {
    emitted(op, operands, source).tensors().collect()
}

/// [`emit`] for operations with one result.
pub(crate) fn emit1(op: Op, operands: &[Tensor], source: Source) -> Tensor {
    emitted(op, operands, source).first()
}

/// The results of an equation, which are values of one frame, one after the other.
struct Results {
    frame: FrameId,
    values: Range<u32>,
}

impl Results {
    fn one(Tensor { frame, value }: Tensor) -> Self {
        Results {
            frame,
            values: value.0..value.0 + 1,
        }
    }

    fn first(&self) -> Tensor {
        Tensor::new(self.frame, ValueId(self.values.start))
    }

    fn tensors(self) -> impl Iterator<Item = Tensor> {
        let frame = self.frame;
        self.values
            .map(move |value| Tensor::new(frame, ValueId(value)))
    }
}

fn emitted(op: Op, operands: &[Tensor], source: Source) -> Results {
    check_stack(&op, source);
    if !is_manual() {
        return append(op, operands, source);
    }
    match agreed(op, operands, source) {
        (Some(op), operands) => append(op, &operands, source),
        (None, operands) => Results::one(operands[0]),
    }
}

/// Appends an equation whose operands agree on the axes that they vary over.
fn append(op: Op, operands: &[Tensor], source: Source) -> Results {
    let outcome = FRAMES.with_borrow_mut(|frames| {
        let operands = resolve(frames, &op, operands)?;
        match frames.last_mut() {
            Some(frame) => frame.append(op, operands, source),
            None => Err((
                ErrorKind::Outside { op: op.name() },
                Some(OUTSIDE.to_owned()),
            )),
        }
    });
    outcome.unwrap_or_else(|(kind, help)| fail_at(kind, help, source))
}

const OUTSIDE: &str = "tensors are made inside a function that is given to `jit` or `trace`";
const ESCAPED: &str = "tensors live while `jit` or `trace` runs the function that made them; return \
                       a value from that function to keep it";

type Outcome<T> = std::result::Result<T, shape::Fault>;

/// Values of the innermost frame for tensors of it or of outer frames.
fn resolve(frames: &mut [Frame], op: &Op, operands: &[Tensor]) -> Outcome<Values> {
    let mut values = Values::new();
    for &operand in operands {
        let value = local(frames, operand).ok_or_else(|| {
            (
                ErrorKind::Escaped { op: op.name() },
                Some(ESCAPED.to_owned()),
            )
        })?;
        values.push(value);
    }
    Ok(values)
}

/// The innermost frame's value for a tensor, captured level by level; `None` if its frame is gone.
fn local(frames: &mut [Frame], tensor: Tensor) -> Option<ValueId> {
    let (top, outer) = frames.split_last_mut()?;
    if tensor.frame == top.id {
        return Some(tensor.value);
    }
    if top.isolated {
        return None;
    }
    let above = local(outer, tensor)?;
    let surrounding = outer.last()?;
    let capture = Tensor::new(surrounding.id, above);
    if let Some(&value) = top.captured.get(&capture) {
        return Some(value);
    }
    let value = top.graph.new_input(surrounding.graph.ty(above).clone());
    top.captures.push(capture);
    top.captured.insert(capture, value);
    Some(value)
}

/// The innermost frame's own handle for a tensor of it or of an outer frame.
pub(crate) fn localize(tensor: Tensor, source: Source) -> Tensor {
    let found = FRAMES.with_borrow_mut(|frames| {
        let value = local(frames, tensor)?;
        Some(Tensor::new(frames.last()?.id, value))
    });
    found.unwrap_or_else(|| {
        fail_at(
            ErrorKind::Escaped { op: "return" },
            Some(ESCAPED.to_owned()),
            source,
        )
    })
}

impl Frame {
    fn append(&mut self, op: Op, operands: Values, source: Source) -> Outcome<Results> {
        let types = self.result_types(&op, &operands)?;
        let (op, operands) = match self.simplifier.simpler(&self.graph, &op, &operands) {
            Some(simpler) => simpler,
            None => (op, operands),
        };
        if let Some(known) = self.simplifier.known(&self.graph, &op, &operands) {
            return Ok(Results::one(Tensor::new(self.id, known)));
        }
        if let Some(literal) = self.simplifier.folded(&self.graph, &op, &operands) {
            let scalar = self.append(Op::Constant(literal), Values::new(), source)?;
            let shape = types[0].shape.clone();
            let op = Op::Broadcast {
                shape,
                dims: Dims::new(),
            };
            return self.append(op, Values::from_elem(scalar.first().value, 1), source);
        }
        let frame = self.id;
        let values = self.graph.new_values(types);
        let results = match values.len() {
            1 => SmallVec::from_buf([ValueId(values.start)]),
            _ => values.clone().map(ValueId).collect(),
        };
        let (source, scope) = origin(source);
        let scope = marked(scope);
        self.graph.equations.push(Equation {
            op,
            operands,
            results,
            source,
            scope,
        });
        self.simplifier.remember(&self.graph);
        Ok(Results { frame, values })
    }

    fn result_types(&self, op: &Op, operands: &[ValueId]) -> Outcome<Types> {
        let operand_types: SmallVec<[&TensorType; 4]> =
            operands.iter().map(|o| self.graph.ty(*o)).collect();
        let mut types = shape::infer(op, &operand_types)?;
        if let Some(varying) = operand_types.iter().map(|ty| ty.varying).max()
            && !varying.is_empty()
            && is_elementary(op)
        {
            // The operands agree, and the results with them.
            types.iter_mut().for_each(|ty| ty.varying = varying);
        }
        match types.iter().find(|ty| is_oversized(ty)) {
            Some(ty) => Err(oversized(op.name(), ty)),
            None => Ok(types),
        }
    }
}

/// The type of a tensor of this thread's frames.
pub(crate) fn type_of(tensor: Tensor, op: &'static str, source: Source) -> TensorType {
    look_at_type(tensor, op, source, TensorType::clone)
}

/// What `read` finds in the type of a tensor of this thread's frames.
pub(crate) fn look_at_type<R>(
    tensor: Tensor,
    op: &'static str,
    source: Source,
    read: impl FnOnce(&TensorType) -> R,
) -> R {
    let found = FRAMES.with_borrow(|frames| {
        let frame = frame_of(frames, tensor)?;
        Some(read(frame.graph.ty(tensor.value)))
    });
    found.unwrap_or_else(|| fail_at(ErrorKind::Escaped { op }, Some(ESCAPED.to_owned()), source))
}

/// A place in the program being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    frame: FrameId,
    /// Equations before it.
    equations: usize,
    /// Values before it.
    pub values: usize,
}

/// The end of what is written in the innermost frame.
pub(crate) fn position() -> Position {
    top(|frame| Position {
        frame: frame.id,
        equations: frame.graph.equations.len(),
        values: frame.graph.value_count(),
    })
}

/// Reads the equations written since `position`; `None` if the innermost frame is not the
/// position's.
pub(crate) fn since<R>(position: Position, read: impl FnOnce(&[Equation]) -> R) -> Option<R> {
    FRAMES.with_borrow(|frames| {
        let frame = frames.last().filter(|frame| frame.id == position.frame)?;
        Some(read(&frame.graph.equations[position.equations..]))
    })
}

/// What a parameter in use was before it was gathered, and how, if `x` is one of this frame.
pub(crate) fn before_gathering(x: Tensor) -> Option<(Constraint, Tensor)> {
    FRAMES.with_borrow(|frames| {
        let frame = frames.last().filter(|frame| frame.id == x.frame)?;
        let (constraint, parameter) = frame.simplifier.before_gathering(&frame.graph, x.value)?;
        Some((constraint, Tensor::new(frame.id, parameter)))
    })
}

/// The number that every element of `x` is, if that is known in this frame.
pub(crate) fn known_number(x: Tensor) -> Option<Number> {
    FRAMES.with_borrow(|frames| {
        let frame = frames.last().filter(|frame| frame.id == x.frame)?;
        frame.simplifier.number(&frame.graph, x.value)
    })
}

/// Takes note that `square` writes the square of the root `x`.
pub(crate) fn note_square(x: Tensor, square: impl Fn() -> Tensor + 'static) {
    FRAMES.with_borrow_mut(|frames| {
        if let Some(frame) = frames.last_mut().filter(|frame| frame.id == x.frame) {
            frame.squares.insert(x.value, Rc::new(square));
        }
    });
}

/// What writes the square of `x`, a value of this frame or of one around it, if that was noted.
pub(crate) fn noted_square(x: Tensor) -> Option<Square> {
    FRAMES.with_borrow(|frames| frame_of(frames, x)?.squares.get(&x.value).cloned())
}

/// The operation that makes `x`, a value of this frame or of one around it, of one other value, and that value, if
/// the operation is `wanted`.
pub(crate) fn made_by(x: Tensor, wanted: impl Fn(&Op) -> bool) -> Option<(Op, Tensor)> {
    FRAMES.with_borrow(|frames| {
        let frame = frame_of(frames, x)?;
        let equation = frame.simplifier.definition(&frame.graph, x.value)?;
        let operand = Tensor::new(frame.id, *equation.operands.first()?);
        wanted(&equation.op).then(|| (equation.op.clone(), operand))
    })
}

/// The frame of a tensor, within the program that is being written.
fn frame_of(frames: &[Frame], x: Tensor) -> Option<&Frame> {
    let program = frames.iter().rposition(|f| f.isolated).unwrap_or(0);
    frames[program..].iter().rev().find(|f| f.id == x.frame)
}

/// Makes room for about as many equations in the innermost frame: large arrays that grow step by step
/// are copied, and their memory comes from the system and goes back to it each time.
pub(crate) fn make_room(equations: usize) {
    top(|frame| {
        frame.graph.equations.reserve(equations);
        frame.graph.types.reserve(equations);
    });
}

/// The innermost frame's handle for one of its values.
pub(crate) fn handle(value: ValueId) -> Tensor {
    top(|frame| Tensor::new(frame.id, value))
}

/// How `x` is split, by dimension, as far as what is written so far tells.
pub(crate) fn split_of(x: Tensor, resolve: Resolve) -> Entries {
    FRAMES.with_borrow(|frames| split_within(frames, x, resolve))
}

fn split_within(frames: &[Frame], x: Tensor, resolve: Resolve) -> Entries {
    let Some(at) = frames.iter().rposition(|frame| frame.id == x.frame) else {
        // Whatever else reads it says that it is gone.
        return split::unknown(0);
    };
    let frame = &frames[at];
    let outer = |input: ValueId| {
        let captured = || frame.captured.iter().find(|(_, value)| **value == input);
        let outer = frame.stands_for.get(&input).copied();
        let outer = outer.or_else(|| captured().map(|(outer, _)| *outer));
        outer.map_or_else(
            || split::unknown(frame.graph.ty(input).rank()),
            |outer| split_within(&frames[..at], outer, resolve),
        )
    };
    split::split_of(&frame.graph, x.value, &outer, resolve)
}
