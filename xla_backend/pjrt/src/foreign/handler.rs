//! The handler behind every call of a closure.

use std::ffi::{CString, c_uint, c_void};
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use super::array::HostArray;
use super::calls::{Site, panic_message};
use super::structs::{
    BUFFER, CallFrame, DeviceOrdinalGet, ERROR_INTERNAL, EXECUTE, ErrorCreate, ErrorDestroy,
    FfiApi, FfiBuffer, FfiFunction, METADATA, MetadataExtension, RawFfiError, RunIdGet, S64,
    SCALAR, Scalar, VERSION, Values,
};
use crate::element::{ArrayType, ElementType};
use crate::error::HostFault;
use crate::ffi::slice;

/// Answers XLA: tells of itself, or calls a closure.
///
/// # Safety
/// `frame` is the call frame of XLA's FFI.
pub(super) unsafe extern "C" fn host_handler(frame: *mut c_void) -> *mut c_void {
    // SAFETY: XLA's frame lives for the call, and nobody else writes to it.
    let Some(frame) = (unsafe { frame.cast::<CallFrame>().as_ref() }) else {
        return null_mut();
    };
    // SAFETY: it is a frame of XLA's.
    let call = || unsafe { answer(frame) };
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let fault = match outcome {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(fault)) => fault,
        Err(panic) => nowhere(panic_message(&*panic).to_owned()),
    };
    // SAFETY: as above.
    unsafe { error(frame, &fault).cast() }
}

/// # Safety
/// `frame` is a call frame of XLA's FFI, in a call that XLA waits for.
unsafe fn answer(frame: &CallFrame) -> Result<(), HostFault> {
    // SAFETY: extensions live as long as the frame, and one of this kind has this type.
    unsafe {
        let mut extension = frame.extension_start;
        while let Some(head) = extension.as_ref() {
            if head.kind == METADATA {
                describe(&mut *extension.cast::<MetadataExtension>());
                return Ok(());
            }
            extension = head.next;
        }
    }
    if frame.stage != EXECUTE {
        return Ok(());
    }
    // SAFETY: as the caller says.
    let id = unsafe { number(frame, "id") }
        .ok_or_else(|| nowhere("the call has no attribute `id` of type i64".to_owned()))?;
    let site = Site::of(id).ok_or_else(|| {
        nowhere(format!(
            "there is no host function {id}: the program outlived its closures"
        ))
    })?;
    // SAFETY: as the caller says.
    unsafe { call(frame, &site) }.map_err(|message| site.fault(message))
}

/// A fault before it is known which closure is called.
fn nowhere(message: String) -> HostFault {
    HostFault {
        name: "unknown".to_owned(),
        line: "an unknown place".to_owned(),
        message,
    }
}

/// Tells for which version of the FFI this is written.
fn describe(extension: &mut MetadataExtension) {
    // SAFETY: the extension points to metadata of at least this version, to be written to.
    if let Some(metadata) = unsafe { extension.metadata.as_mut() } {
        (metadata.version.major, metadata.version.minor) = VERSION;
        metadata.traits = 0;
    }
}

/// Reads the operands, calls the closure, writes the results.
///
/// # Safety
/// As for [`answer`], at the stage of execution.
unsafe fn call(frame: &CallFrame, site: &Site) -> Result<(), String> {
    // SAFETY: a frame's operands and results are arrays that live for the call; nobody writes to operands, and nobody else
    // touches results.
    let (mut operands, mut results) =
        unsafe { (buffers(&frame.operands)?, buffers(&frame.results)?) };
    let order = if site.is_ordered() {
        operands.pop().zip(results.pop())
    } else {
        None
    };
    let mut arrays = Vec::with_capacity(operands.len());
    for (position, operand) in operands.iter().enumerate() {
        let ty = array_type(operand).map_err(|error| format!("operand {position} {error}"))?;
        // SAFETY: the array has this type, so its memory has as many bytes.
        let bytes = unsafe { slice(operand.data.cast::<u8>().cast_const(), size_of_array(&ty)?) };
        arrays.push(HostArray::new(ty, bytes.to_vec()).map_err(|error| error.to_string())?);
    }
    let types = results.iter().enumerate().map(|(position, result)| {
        array_type(result).map_err(|error| format!("result {position} {error}"))
    });
    let types: Vec<ArrayType> = types.collect::<Result<_, _>>()?;
    let returned = if site.is_shared() {
        // SAFETY: the frame's functions and context live for the call.
        let (run, device) = unsafe { place(frame) }?;
        site.run_shared(run, device, arrays)
    } else {
        site.run(&arrays)
    };
    let returned = returned.map_err(|message| message.to_string())?;
    check(&returned, &types)?;
    for (array, result) in returned.iter().zip(&results) {
        // SAFETY: the result has the array's type.
        unsafe { fill(result, array.bytes()) };
    }
    if let Some((before, after)) = order {
        let size = size_of_array(&array_type(after)?)?;
        // SAFETY: both are of one type.
        unsafe { fill(after, slice(before.data.cast::<u8>().cast_const(), size)) };
    }
    Ok(())
}

/// Writes an array.
///
/// # Safety
/// The array's memory has as many bytes as there are.
unsafe fn fill(array: &FfiBuffer, bytes: &[u8]) {
    if array.data.is_null() || bytes.is_empty() {
        return;
    }
    // SAFETY: as the caller says.
    let target = unsafe { std::slice::from_raw_parts_mut(array.data.cast::<u8>(), bytes.len()) };
    target.copy_from_slice(bytes);
}

fn size_of_array(ty: &ArrayType) -> Result<usize, String> {
    ty.host_bytes().map_err(|error| error.to_string())
}

/// All that is wrong with the types of what a closure returned.
fn check(returned: &[HostArray], wanted: &[ArrayType]) -> Result<(), String> {
    if returned.len() != wanted.len() {
        return Err(format!(
            "it returned {} arrays, and {} are declared",
            returned.len(),
            wanted.len()
        ));
    }
    let faults: Vec<String> = returned
        .iter()
        .zip(wanted)
        .enumerate()
        .filter(|(_, (array, ty))| array.ty() != *ty)
        .map(|(i, (array, ty))| {
            format!(
                "it returned {} as result {i}, which is declared {ty}",
                array.ty()
            )
        })
        .collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("; "))
    }
}

/// The arrays of a frame.
///
/// # Safety
/// `values` is part of a frame that lives for `'a`.
unsafe fn buffers<'a>(values: &Values) -> Result<Vec<&'a FfiBuffer>, String> {
    let count = usize::try_from(values.size).unwrap_or(0);
    // SAFETY: both lists have this length; a value of the kind is an array.
    unsafe {
        let kinds: &[c_uint] = slice(values.kinds, count);
        let pointers: &[*mut FfiBuffer] = slice(values.values, count);
        if kinds.iter().any(|&kind| kind != BUFFER) {
            return Err("it is called with something that is no array".to_owned());
        }
        pointers
            .iter()
            .map(|pointer| {
                pointer
                    .as_ref()
                    .ok_or_else(|| "an array is missing from the call".to_owned())
            })
            .collect()
    }
}

fn array_type(buffer: &FfiBuffer) -> Result<ArrayType, String> {
    let number = buffer.element_type;
    let element = ElementType::from_primitive_type(number).map_err(|_| {
        format!("has an element type (number {number} of HLO) that is not known here")
    })?;
    let rank = usize::try_from(buffer.rank).unwrap_or(0);
    // SAFETY: an array has as many dimensions as its rank.
    let dims = unsafe { slice(buffer.dims, rank) };
    let dims: Vec<usize> = dims
        .iter()
        .map(|&size| usize::try_from(size).unwrap_or(0))
        .collect();
    let ty = ArrayType::new(element, dims);
    match element {
        // Two of them share a byte in a device's memory, and have one each on the host.
        ElementType::I4 | ElementType::U4 => Err(format!(
            "is {ty}, whose elements host functions cannot have: convert it before the call"
        )),
        _ => Ok(ty),
    }
}

/// An attribute that is a 64-bit integer.
///
/// # Safety
/// As for [`answer`].
unsafe fn number(frame: &CallFrame, name: &str) -> Option<i64> {
    let attributes = &frame.attributes;
    let count = usize::try_from(attributes.size).unwrap_or(0);
    // SAFETY: the three lists have this length; a name has its length beside it, and an attribute of this kind is a number
    // of the type beside it.
    unsafe {
        let kinds: &[c_uint] = slice(attributes.kinds, count);
        let names = slice(attributes.names, count);
        let values = slice(attributes.values, count);
        let position = names.iter().position(|span| {
            span.as_ref()
                .is_some_and(|span| slice(span.data.cast::<u8>(), span.size) == name.as_bytes())
        })?;
        if *kinds.get(position)? != SCALAR {
            return None;
        }
        let scalar = values.get(position)?.cast::<Scalar>().as_ref()?;
        (scalar.element_type == S64).then(|| scalar.value.cast::<i64>().read_unaligned())
    }
}

/// The launch, and the device that makes the call.
///
/// # Safety
/// As for [`answer`].
unsafe fn place(frame: &CallFrame) -> Result<(i64, i32), String> {
    let old = || {
        "the plugin's FFI does not tell which launch a call belongs to: use a newer plugin"
            .to_owned()
    };
    // SAFETY: the table lives as long as the plugin.
    let api = unsafe { frame.api.as_ref() }.ok_or_else(old)?;
    if api.struct_size < size_of::<FfiApi>() {
        return Err(old());
    }
    let mut run = RunIdGet {
        struct_size: RunIdGet::STRUCT_SIZE,
        extension_start: null_mut(),
        context: frame.context,
        run_id: 0,
    };
    let mut device = DeviceOrdinalGet {
        struct_size: DeviceOrdinalGet::STRUCT_SIZE,
        extension_start: null_mut(),
        context: frame.context,
        device_ordinal: 0,
    };
    // SAFETY: the context lives for the call.
    let known = unsafe {
        ask(api, api.run_id_get, &mut run) && ask(api, api.device_ordinal_get, &mut device)
    };
    if known {
        Ok((run.run_id, device.device_ordinal))
    } else {
        Err(old())
    }
}

/// Calls a function of XLA's; whether it went well.
///
/// # Safety
/// `arguments` are what the function takes.
unsafe fn ask<A>(api: &FfiApi, function: FfiFunction<A>, arguments: &mut A) -> bool {
    let Some(function) = function else {
        return false;
    };
    // SAFETY: as the caller says; an error is the caller's to free.
    unsafe {
        let error = function(arguments);
        if error.is_null() {
            return true;
        }
        if let Some(destroy) = api.error_destroy {
            destroy(&mut ErrorDestroy {
                struct_size: ErrorDestroy::STRUCT_SIZE,
                extension_start: null_mut(),
                error,
            });
        }
    }
    false
}

/// An error of XLA's.
///
/// # Safety
/// As for [`answer`].
unsafe fn error(frame: &CallFrame, fault: &HostFault) -> *mut RawFfiError {
    // SAFETY: the table lives as long as the plugin.
    let Some(create) = (unsafe { frame.api.as_ref() }).and_then(|api| api.error_create) else {
        return null_mut();
    };
    let text = fault.encode().replace('\0', " ");
    let message = CString::new(text).unwrap_or_default();
    let mut arguments = ErrorCreate {
        struct_size: ErrorCreate::STRUCT_SIZE,
        extension_start: null_mut(),
        message: message.as_ptr(),
        code: ERROR_INTERNAL,
    };
    // SAFETY: XLA copies the message.
    unsafe { create(&mut arguments) }
}
