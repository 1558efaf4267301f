//! Arrays in a device's memory.

use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::client::{Client, Memory, broken, describe_memory};
use super::element::{ArrayType, ElementType};
use super::event::{self, Event};
use super::ffi::{self, MemoryLayout, MemoryLayoutTiled, RawBuffer};
use crate::error::{Error, Result};

/// An array on one device. Its memory is freed when it is dropped and the launches that use it are done.
///
/// A buffer may not be there yet: it is the result of work that is under way. Everything that needs the data waits for it.
#[derive(Debug)]
pub struct Buffer {
    raw: NonNull<RawBuffer>,
    array_type: Arc<ArrayType>,
    device: usize,
    /// How many calls are using the memory at this moment, or [`GONE`]. A donation needs the memory for itself, and a launch
    /// on several devices must not fail half-way, so both claim their buffers before they start.
    uses: AtomicI32,
    client: Client,
}

/// The memory was donated or deleted.
const GONE: i32 = -1;

// SAFETY: PJRT buffers may be used and freed on any thread, and at the same time.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Client {
    /// Copies an array to a device. `data` holds the elements in row-major order in host representation (a 4-bit integer
    /// takes a byte) and is not needed any more when this returns.
    ///
    /// # Errors
    /// [`Error::HostSize`] when `data` has not the size of the array, [`Error::Device`] for a device that is not there,
    /// [`Error::Dimensions`] for an array too large for any memory, [`Error::Pjrt`] when the device has no room.
    pub fn buffer_from_host(
        &self,
        data: &[u8],
        element: ElementType,
        dims: &[usize],
        device: usize,
    ) -> Result<Buffer> {
        let array_type = ArrayType::new(element, dims);
        // SAFETY: the data is copied before the call returns.
        let (buffer, done) =
            unsafe { self.send(data, array_type, device, ffi::IMMUTABLE_ONLY_DURING_CALL) }?;
        // SAFETY: the event is ours; nothing has to be kept for it.
        drop(unsafe { Event::from_raw(done, self) });
        Ok(buffer)
    }

    /// Moves an array to a device without waiting for the copy: `data` is kept until the transfer is complete.
    ///
    /// # Errors
    /// As [`Self::buffer_from_host`].
    pub fn buffer_from_owned(
        &self,
        data: impl AsRef<[u8]> + Send + Sync + 'static,
        element: ElementType,
        dims: &[usize],
        device: usize,
    ) -> Result<Buffer> {
        let array_type = ArrayType::new(element, dims);
        // In a box, so that moving the owner does not move bytes that lie in it.
        let data = Box::new(data);
        // SAFETY: the box goes to `keep_until_ready`, which holds it until the event says that the transfer is complete.
        unsafe {
            let bytes = (*data).as_ref();
            let (buffer, done) = self.send(
                bytes,
                array_type,
                device,
                ffi::IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
            )?;
            event::keep_until_ready(done, self, data)?;
            Ok(buffer)
        }
    }

    /// Checks everything and starts the transfer; returns the event after which `data` may be freed.
    ///
    /// # Safety
    /// `data` stays valid and unchanged for as long as `semantics` lets the plugin read it.
    unsafe fn send(
        &self,
        data: &[u8],
        array_type: ArrayType,
        device: usize,
        semantics: c_uint,
    ) -> Result<(Buffer, *mut ffi::RawEvent)> {
        let expected = array_type.host_bytes()?;
        if data.len() != expected {
            return Err(Error::HostSize {
                operation: "copying to the device",
                array: array_type.to_string(),
                expected,
                actual: data.len(),
                advice: "pass all elements in row-major order",
            });
        }
        let dims: Vec<i64> = array_type.dims.iter().map(|&size| size as i64).collect();
        let mut arguments = ffi::ClientBufferFromHostBuffer {
            client: self.raw(),
            data: data.as_ptr().cast(),
            element_type: array_type.element.buffer_type(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: semantics,
            device: self.device(device)?.raw(),
            ..Default::default()
        };
        // SAFETY: client and device are alive, `data` has the size that type and dimensions ask for.
        unsafe { self.api().call(&mut arguments) }?;
        // SAFETY: the plugin made this buffer for us, of this type, on this device.
        let buffer =
            unsafe { Buffer::from_raw(arguments.buffer, self.intern(array_type), device, self) };
        Ok((buffer?, arguments.done_with_host_buffer))
    }
}

impl Buffer {
    /// Takes ownership of a buffer.
    ///
    /// # Safety
    /// `raw` is null or a buffer of `client` that nothing else frees, with this type, on the device at this position.
    pub(super) unsafe fn from_raw(
        raw: *mut RawBuffer,
        array_type: Arc<ArrayType>,
        device: usize,
        client: &Client,
    ) -> Result<Self> {
        Ok(Buffer {
            raw: NonNull::new(raw).ok_or_else(|| broken("it returned no buffer"))?,
            array_type,
            device,
            uses: AtomicI32::new(0),
            client: client.clone(),
        })
    }

    /// Element type and dimensions.
    pub fn array_type(&self) -> &ArrayType {
        &self.array_type
    }

    /// The element type.
    pub fn element_type(&self) -> ElementType {
        self.array_type.element
    }

    /// Dimension sizes, major to minor.
    pub fn dims(&self) -> &[usize] {
        &self.array_type.dims
    }

    /// Position of the device in [`Client::devices`].
    pub fn device(&self) -> usize {
        self.device
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Bytes that it takes on the device, padding included.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it was donated or deleted.
    pub fn on_device_size(&self) -> Result<usize> {
        let _use = self.begin_use("asking for the size")?;
        let mut arguments = ffi::BufferOnDeviceSize {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive and not deleted.
        unsafe { self.client.api().call(&mut arguments) }?;
        Ok(arguments.bytes)
    }

    /// The memory that it lies in.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it was donated or deleted.
    pub fn memory(&self) -> Result<Memory> {
        let _use = self.begin_use("asking for the memory")?;
        let mut arguments = ffi::BufferMemory {
            buffer: self.raw(),
            ..Default::default()
        };
        let api = self.client.api();
        // SAFETY: the buffer is alive and not deleted; its memory lives as long as the client.
        unsafe {
            api.call(&mut arguments)?;
            describe_memory(api, arguments.memory)
        }
    }

    /// Whether its memory was donated to a program or deleted.
    pub fn is_deleted(&self) -> bool {
        self.uses.load(Ordering::Acquire) == GONE
    }

    /// Frees the memory now, or when the launches that use it are done. Deleting twice does nothing.
    ///
    /// # Errors
    /// When the plugin fails to.
    pub fn delete(&self) -> Result<()> {
        while !self.claim_all() {
            if self.is_deleted() {
                return Ok(());
            }
            // Another thread is inside one call with it, which only hands work to the device.
            std::thread::yield_now();
        }
        let mut arguments = ffi::BufferDelete {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { self.client.api().call(&mut arguments) }
    }

    /// An event for the data being there, or for the error of the work that should make it.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it was donated or deleted.
    pub fn ready_event(&self) -> Result<Event> {
        let _use = self.begin_use("waiting for it")?;
        let mut arguments = ffi::BufferReadyEvent {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive; the event is ours.
        unsafe {
            self.client.api().call(&mut arguments)?;
            Ok(Event::from_raw(arguments.event, &self.client))
        }
    }

    /// Waits for the data and copies it to the host: the elements in row-major order, in host representation.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it was donated or deleted; the error of the work that should have made the data.
    pub fn to_host(&self) -> Result<Vec<u8>> {
        self.to_host_async()?.wait()
    }

    /// Starts a copy to the host.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it was donated or deleted.
    pub fn to_host_async(&self) -> Result<HostCopy> {
        let mut data = vec![0; self.array_type.host_bytes()?];
        // SAFETY: `HostCopy` frees the data only after the event.
        let event = unsafe { self.receive(&mut data) }?;
        Ok(HostCopy { data, event })
    }

    /// Waits for the data and copies it into a slice of exactly its size.
    ///
    /// # Errors
    /// [`Error::HostSize`] for a slice of another size, and as [`Self::to_host`].
    pub fn copy_to_host(&self, destination: &mut [u8]) -> Result<()> {
        let expected = self.array_type.host_bytes()?;
        if destination.len() != expected {
            return Err(Error::HostSize {
                operation: "copying to the host",
                array: self.array_type.to_string(),
                expected,
                actual: destination.len(),
                advice: "pass a slice for all elements",
            });
        }
        // SAFETY: the slice is borrowed until the event is ready.
        unsafe { self.receive(destination) }?.wait()
    }

    /// Starts a copy into `destination`, which has the size of the array.
    ///
    /// # Safety
    /// `destination` stays valid and is touched by nothing else until the event is ready.
    unsafe fn receive(&self, destination: &mut [u8]) -> Result<Event> {
        let _use = self.begin_use("copying to the host")?;
        let rank = self.dims().len();
        let minor_to_major: Vec<i64> = (0..rank as i64).rev().collect();
        // The layout on the device is the plugin's own matter, so the one wanted on the host is said.
        let mut layout = MemoryLayout {
            tiled: MemoryLayoutTiled {
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: rank,
                ..Default::default()
            },
            kind: MemoryLayout::TILED,
            ..Default::default()
        };
        let mut arguments = ffi::BufferToHostBuffer {
            buffer: self.raw(),
            // Fewer than two dimensions have but one layout.
            host_layout: if rank < 2 { null_mut() } else { &mut layout },
            ..Default::default()
        };
        let api = self.client.api();
        // SAFETY: the buffer is alive and not deleted; without a destination this only asks for the size.
        unsafe { api.call(&mut arguments) }?;
        if arguments.dst_size != destination.len() {
            return Err(broken(&format!(
                "it wants {} bytes on the host for {}, which takes {}",
                arguments.dst_size,
                self.array_type,
                destination.len()
            )));
        }
        // An empty array has nothing to copy, and its address would be no real one.
        if destination.is_empty() {
            return self.ready_event();
        }
        arguments.dst = destination.as_mut_ptr().cast::<c_void>();
        arguments.event = null_mut();
        // SAFETY: the destination has the size that the plugin asked for, and stays as the caller says.
        unsafe {
            api.call(&mut arguments)?;
            Ok(Event::from_raw(arguments.event, &self.client))
        }
    }

    /// Starts a copy to another device of the same client.
    ///
    /// # Errors
    /// [`Error::Device`] for a device that is not there or is the buffer's own, [`Error::BufferDeleted`] when it was
    /// donated or deleted.
    pub fn copy_to_device(&self, device: usize) -> Result<Buffer> {
        let target = self.client.device(device)?;
        if device == self.device {
            let reason = "the buffer is on it already".into();
            return Err(Error::Device { device, reason });
        }
        let _use = self.begin_use("copying to another device")?;
        let mut arguments = ffi::BufferCopyToDevice {
            buffer: self.raw(),
            device: target.raw(),
            ..Default::default()
        };
        // SAFETY: buffer and device are alive and of one client; the copy is ours, and of the same type.
        unsafe {
            self.client.api().call(&mut arguments)?;
            Buffer::from_raw(
                arguments.copy,
                self.array_type.clone(),
                device,
                &self.client,
            )
        }
    }

    pub(super) fn raw(&self) -> *mut RawBuffer {
        self.raw.as_ptr()
    }

    /// The type's shared allocation, for comparing by pointer.
    pub(super) fn shared_type(&self) -> &Arc<ArrayType> {
        &self.array_type
    }

    /// Claims the memory for one call; `false` when it is gone.
    pub(super) fn claim(&self) -> bool {
        let more = |uses: i32| (uses != GONE).then(|| uses + 1);
        self.uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// Gives a claim back.
    pub(super) fn release(&self) {
        self.uses.fetch_sub(1, Ordering::AcqRel);
    }

    /// Claims the memory for good; `false` when it is in use or gone.
    pub(super) fn claim_all(&self) -> bool {
        self.uses
            .compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Takes back a claim for good, after a launch that did not happen; unless the plugin took the memory all the same.
    pub(super) fn unclaim_all(&self) {
        let mut arguments = ffi::BufferIsDeleted {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        let asked = unsafe { self.client.api().call(&mut arguments) };
        if asked.is_ok() && !arguments.is_deleted {
            self.uses.store(0, Ordering::Release);
        }
    }

    /// Claims the memory until the guard is dropped.
    fn begin_use(&self, operation: &'static str) -> Result<Use<'_>> {
        if self.claim() {
            return Ok(Use(self));
        }
        Err(Error::BufferDeleted {
            operation,
            array: self.array_type.to_string(),
            device: self.device,
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut arguments = ffi::BufferDestroy {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive, its client too, and nothing uses the handle any more; the plugin keeps the memory for
        // launches under way. That freeing fails is no use to anyone.
        let _ = unsafe { self.client.api().call(&mut arguments) };
    }
}

struct Use<'a>(&'a Buffer);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A copy to the host that is under way. Dropping it waits for the copy.
#[derive(Debug)]
pub struct HostCopy {
    data: Vec<u8>,
    event: Event,
}

impl HostCopy {
    /// Whether the copy is complete.
    ///
    /// # Errors
    /// When the plugin cannot tell.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// Waits for the copy and returns the elements in row-major order.
    ///
    /// # Errors
    /// The error of the work that should have made the data.
    pub fn wait(mut self) -> Result<Vec<u8>> {
        self.event.wait()?;
        Ok(std::mem::take(&mut self.data))
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        // The plugin may be writing to the data. An error belongs to whoever waits for the result.
        let _ = self.event.wait();
    }
}
