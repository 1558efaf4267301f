//! From one sharding to another on the devices of one client.
//!
//! What each device lacks of its new block is the least that it must receive ([`Exchange`]). XLA is
//! asked first: it knows the collectives that a machine runs best, and its program is measured. Where
//! that sends more than the least, as when it gathers everything to cut it up again, and where the two
//! meshes have different numbers of devices, the pieces are exchanged as planned here.

mod text;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use shardax_core::TensorType;
use shardax_pjrt::Error as RuntimeError;
use shardax_pjrt::{ArgumentFault, Buffer, CompileOptions, ExecuteOptions, LoadedExecutable};
use shardax_sharding::{Blocks, Exchange};

use super::{Array, Sharding, Shards};
use crate::array::intern::{intern_sharding, intern_type};
use crate::error::Result;
use crate::lower::element_type;
use crate::report::{CollectiveReport, HloModule, MemoryReport};
use crate::runtime::Runtime;

/// How arrays of one type get from one sharding to another on the same runtime, and what that costs.
/// Printed, it is a sentence.
#[derive(Clone, Debug)]
pub struct Reshard {
    ty: Arc<TensorType>,
    from: Arc<Sharding>,
    to: Arc<Sharding>,
    least_bytes: u64,
    total_bytes: u64,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    /// Every device has its new block, or there are no elements to have.
    Stay,
    /// The array has no elements, and its blocks have another shape.
    Empty { shape: Vec<usize> },
    /// A program moves them.
    Run {
        executable: LoadedExecutable,
        collectives: CollectiveReport,
        /// Shape of a block before.
        shape: Vec<usize>,
    },
}

/// The programs of one runtime that move arrays.
#[derive(Debug, Default)]
struct Programs {
    known: Mutex<HashMap<Key, Arc<Reshard>>>,
}

/// The type, the old and the new sharding.
type Key = (Arc<TensorType>, Arc<Sharding>, Arc<Sharding>);

impl Array {
    /// The array lying as `to` says, which may be on another mesh, of another number of devices.
    ///
    /// Only what a device lacks of its new block is sent to it; [`Reshard`] tells what that is. Where
    /// every device has its block already the result shares the memory of this array, as a clone does:
    /// donating one of them donates both. The result is on the process's own devices, where jitted
    /// functions run, but an array of a [`Runtime`] of its own stays there if that has enough of them.
    ///
    /// It returns when the work is launched.
    ///
    /// # Errors
    ///
    /// When the sharding does not fit the array or the devices, the array was donated, or its program
    /// failed.
    pub fn reshard(&self, to: &Sharding) -> Result<Array> {
        let runtime = Runtime::for_array(self.client(), to.mesh().device_count())?;
        self.put(&runtime, to)
    }

    /// [`Array::reshard`] that frees the memory of this array, and of its clones, as soon as it is read.
    /// They cannot be used again, unless nothing had to move and the result has their memory.
    ///
    /// # Errors
    ///
    /// As for [`Array::reshard`]; the array is as it was then.
    pub fn reshard_donated(self, to: &Sharding) -> Result<Array> {
        let runtime = Runtime::for_array(self.client(), to.mesh().device_count())?;
        self.donated_to(&runtime, &intern_sharding(to.clone()))
    }

    pub(super) fn donated_to(self, runtime: &Runtime, to: &Arc<Sharding>) -> Result<Array> {
        let result = self.put_shared(runtime, to)?;
        let is_shared = || match (self.buffers().first(), result.buffers().first()) {
            (Some(old), Some(new)) => std::ptr::eq(old, new),
            _ => true,
        };
        if !is_shared() {
            for buffer in self.buffers() {
                buffer.delete()?;
            }
        }
        Ok(result)
    }

    /// The array on the same client under another sharding.
    pub(super) fn reshard_on(&self, runtime: &Runtime, to: &Arc<Sharding>) -> Result<Array> {
        let Some(from) = self.shared_sharding() else {
            return self.put_from_host(runtime.client(), to);
        };
        if Arc::ptr_eq(from, to) {
            return Ok(self.clone());
        }
        let ty = self.shared_type();
        let plan = runtime.kept::<Programs>().find(runtime, ty, from, to)?;
        let shards = match &plan.way {
            Way::Stay => return Ok(self.relabelled(to.clone())),
            Way::Empty { shape } => {
                let devices = 0..to.mesh().device_count();
                let buffer = |device| {
                    runtime
                        .client()
                        .buffer_from_host(&[], element_type(ty.dtype), shape, device)
                };
                devices.map(buffer).collect::<Result<Shards, _>>()?
            }
            Way::Run {
                executable, shape, ..
            } => self.run(executable, shape, to)?,
        };
        Ok(Array::on_devices(ty.clone(), to.clone(), shards))
    }

    /// Launches a program that moves the array.
    fn run(&self, executable: &LoadedExecutable, shape: &[usize], to: &Sharding) -> Result<Shards> {
        let buffers = self.buffers();
        let client = executable.client();
        // A device that has nothing of the array takes part with a block of zeros.
        let zeros = vec![0; TensorType::new(self.dtype(), shape).host_bytes()];
        let idle = buffers.len()..executable.devices().len();
        let idle: Vec<Buffer> = idle
            .map(|device| {
                client.buffer_from_host(&zeros, element_type(self.dtype()), shape, device)
            })
            .collect::<Result<_, _>>()?;
        let block = |device: usize, _| match buffers.get(device) {
            Some(buffer) => buffer,
            None => &idle[device - buffers.len()],
        };
        let launched = executable.execute(1, block, &ExecuteOptions::default());
        let outputs = launched
            .map_err(|error| self.donated_before(error))?
            .outputs;
        Ok(outputs.into_iter().take(to.mesh().device_count()).collect())
    }

    /// The error of a launch in terms of this array.
    fn donated_before(&self, error: RuntimeError) -> RuntimeError {
        let deleted = |fault: &ArgumentFault| matches!(fault, ArgumentFault::Deleted { .. });
        match error {
            RuntimeError::Arguments { faults, .. } if faults.iter().any(deleted) => {
                RuntimeError::BufferDeleted {
                    operation: "resharding",
                    array: self.ty().to_string(),
                    device: 0,
                }
            }
            error => error,
        }
    }
}

impl Programs {
    /// How arrays of a type get from one sharding to another; compiled when it is first asked for.
    fn find(
        &self,
        runtime: &Runtime,
        ty: &Arc<TensorType>,
        from: &Arc<Sharding>,
        to: &Arc<Sharding>,
    ) -> Result<Arc<Reshard>> {
        let key = (ty.clone(), from.clone(), to.clone());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = known().get(&key) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(Reshard::new(runtime, &key)?);
        known().insert(key, plan.clone());
        Ok(plan)
    }
}

impl Reshard {
    /// How arrays of this type get from one sharding to another on the devices of a runtime.
    ///
    /// # Errors
    ///
    /// When a sharding does not fit the type or the devices.
    pub fn plan(
        runtime: &Runtime,
        ty: &TensorType,
        from: &Sharding,
        to: &Sharding,
    ) -> Result<Arc<Self>> {
        let shardings = [from, to].map(|sharding| intern_sharding(sharding.clone()));
        runtime.check_mesh(from.mesh())?;
        let [from, to] = &shardings;
        let ty = intern_type(ty.clone());
        runtime.kept::<Programs>().find(runtime, &ty, from, to)
    }

    fn new(runtime: &Runtime, (ty, from, to): &Key) -> Result<Self> {
        runtime.check_mesh(to.mesh())?;
        let (before, after) = (from.blocks(ty)?, to.blocks(ty)?);
        // Both are of the shape of one array.
        let exchange = Exchange::new(&before, &after);
        let bytes = |elements: usize| (elements * ty.dtype.host_bytes()) as u64;
        let least_bytes = exchange.as_ref().map_or(0, |e| bytes(e.most_received()));
        let total_bytes = exchange.as_ref().map_or(0, |e| bytes(e.received()));
        let way = match exchange {
            _ if before == after => Way::Stay,
            Some(exchange) if ty.element_count() > 0 => run(
                runtime,
                (ty, from, to),
                (&before, &after),
                &exchange,
                least_bytes,
            )?,
            _ => Way::Empty {
                shape: after.block_shape(),
            },
        };
        Ok(Reshard {
            ty: ty.clone(),
            from: from.clone(),
            to: to.clone(),
            least_bytes,
            total_bytes,
            way,
        })
    }

    /// The bytes that a device must receive, of the one that must receive most: what it lacks of its
    /// new block. No program can do with less. A 4-bit integer counts as the byte that it travels as.
    pub fn least_bytes(&self) -> u64 {
        self.least_bytes
    }

    /// The bytes that all devices together lack of their new blocks.
    pub fn least_total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The bytes that one device sends, as the compiled program has it: the sum over its collectives.
    pub fn bytes_sent(&self) -> u64 {
        let collectives = self.collectives();
        collectives.map_or(0, |report| {
            report.totals().iter().map(|t| t.bytes_sent).sum()
        })
    }

    /// The collectives of the compiled program; `None` if there is none because every device has its
    /// block.
    pub fn collectives(&self) -> Option<&CollectiveReport> {
        match &self.way {
            Way::Stay | Way::Empty { .. } => None,
            Way::Run { collectives, .. } => Some(collectives),
        }
    }

    /// The memory that it takes on one device; `None` if nothing moves.
    ///
    /// # Errors
    ///
    /// When the plugin does not know.
    pub fn memory(&self) -> Result<Option<MemoryReport>> {
        match &self.way {
            Way::Stay | Way::Empty { .. } => Ok(None),
            Way::Run { executable, .. } => Ok(Some(executable.memory_stats()?.into())),
        }
    }
}

/// `f32[8,8] from P("x", _) on x=8 to P(_, "x") on x=8: 1 all-to-all, 28 bytes sent by a device (at least 28)`
impl fmt::Display for Reshard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}: ", self.ty, self.from, self.to)?;
        let totals = self.collectives().map(CollectiveReport::totals);
        let kinds: Vec<String> = totals
            .iter()
            .flatten()
            .map(|total| format!("{} {}", total.times, total.kind))
            .collect();
        if kinds.is_empty() {
            return f.write_str("no communication");
        }
        let (sent, least) = (self.bytes_sent(), self.least_bytes);
        let kinds = kinds.join(", ");
        write!(
            f,
            "{kinds}, {sent} bytes sent by a device (at least {least})"
        )
    }
}

/// The program that moves the array: XLA's own if no device sends more than it must, else an exchange
/// of the pieces.
fn run(
    runtime: &Runtime,
    (ty, from, to): (&TensorType, &Sharding, &Sharding),
    (before, after): (&Blocks, &Blocks),
    exchange: &Exchange,
    least_bytes: u64,
) -> Result<Way> {
    let shape = before.block_shape();
    let meshes = [from.mesh(), to.mesh()];
    let larger = if meshes[0].device_count() < meshes[1].device_count() {
        1
    } else {
        0
    };
    let mesh = meshes[larger];
    let devices = mesh.device_count();
    let measured = |text: &str, options: &CompileOptions| -> Result<(Way, u64)> {
        let (executable, _) = runtime.load_or_compile(text, text, options)?;
        let optimized = HloModule::decode(&executable.optimized_program()?.code)?;
        let collectives = CollectiveReport::new(&optimized, mesh)?;
        let sent = collectives
            .totals()
            .iter()
            .map(|total| total.bytes_sent)
            .sum();
        let way = Way::Run {
            executable,
            collectives,
            shape: shape.clone(),
        };
        Ok((way, sent))
    };
    if least_bytes > 0 && meshes[0].device_count() == meshes[1].device_count() {
        let options = CompileOptions {
            use_shardy_partitioner: false,
            device_assignment: Some(runtime.first_devices(devices)),
            ..CompileOptions::partitioned(devices)
        };
        let (way, sent) = measured(&text::identity(ty, before, after), &options)?;
        if sent <= least_bytes {
            return Ok(way);
        }
    }
    let options = CompileOptions {
        num_replicas: devices,
        use_spmd_partitioning: false,
        device_assignment: Some(runtime.first_devices(devices)),
        ..CompileOptions::partitioned(1)
    };
    let text = text::exchange(ty.dtype, (before, after), exchange, devices);
    measured(&text, &options).map(|(way, _)| way)
}
