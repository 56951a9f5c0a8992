//! Copies between a box of a device tensor and an array of the host.
//!
//! The device tensor is C-contiguous. A host array that is read may have any strides, including stride 0 of a
//! broadcast array. Rows that are contiguous on both sides are copied as one run.

use qaic_mem::{HostSlice, HostSliceMut};

use super::retained::Retained;
use super::sources::state_required;
use crate::binding::{BindingTransfer, Route, TransferPlan, Window, WindowArray};
use crate::error::RuntimeError;

/// Writes the boxes of inputs into the retained tensors.
pub(super) fn upload_all(
    windows: &mut [Window],
    transfers: &TransferPlan,
    mut retained: Option<&mut Retained>,
) -> Result<(), RuntimeError> {
    for window in windows {
        let Some(input) = transfers.inputs.get(window.binding) else { continue };
        let value = retained.as_deref_mut().and_then(|retained| retained.value_mut(window.binding));
        let (value, dims) = value.ok_or_else(|| state_required(&input.name))?;
        upload(window, dims, value)?;
    }
    Ok(())
}

/// Reads the requested boxes of output `index`, whose value is `result`.
pub(super) fn download_of(
    windows: &mut [Window],
    transfers: &TransferPlan,
    index: usize,
    result: HostSlice<'_>,
) -> Result<(), RuntimeError> {
    let binding = transfers.inputs.len() + index;
    for window in windows.iter_mut().filter(|window| window.binding == binding) {
        let transfer = &transfers.outputs[index];
        check_unconverted(transfer)?;
        download(window, &transfer.dims, result)?;
    }
    Ok(())
}

/// Fails where [`download_of`] would fail, before any change is made.
pub(super) fn check_downloads(windows: &mut [Window], transfers: &TransferPlan) -> Result<(), RuntimeError> {
    for window in windows {
        let output = window.binding.checked_sub(transfers.inputs.len());
        let Some(transfer) = output.and_then(|output| transfers.outputs.get(output)) else { continue };
        check_unconverted(transfer)?;
        let binding = window.binding;
        let (rows, array) = Rows::new(window, &transfer.dims)?;
        let WindowArray::Target(array) = array else { return Err(wrong_side(binding, "written")) };
        let host = array.as_slice();
        rows.each(|_, array, bytes| host.subslice(array, bytes).map(drop))?;
    }
    Ok(())
}

fn check_unconverted(transfer: &BindingTransfer) -> Result<(), RuntimeError> {
    if matches!(transfer.route, Route::Direct) {
        return Ok(());
    }
    Err(RuntimeError::argument(format!(
        "output `{}` needs a conversion; a part of it cannot be read",
        transfer.name
    )))
}

/// Writes the host array into its box of the device tensor.
fn upload(window: &mut Window, dims: &[usize], mut tensor: HostSliceMut<'_>) -> Result<(), RuntimeError> {
    let (rows, array) = Rows::new(window, dims)?;
    let WindowArray::Source(array) = array else { return Err(wrong_side(window.binding, "read")) };
    let host = array.as_slice();
    rows.each(|device, array, bytes| {
        let source = host.subslice(array, bytes)?;
        tensor.reborrow().subslice(device, bytes)?.copy_from(source);
        Some(())
    })
}

/// Reads the box of the device tensor into the host array.
fn download(window: &mut Window, dims: &[usize], tensor: HostSlice<'_>) -> Result<(), RuntimeError> {
    let (rows, array) = Rows::new(window, dims)?;
    let WindowArray::Target(array) = array else { return Err(wrong_side(window.binding, "written")) };
    let mut host = array.as_mut();
    rows.each(|device, array, bytes| {
        let source = tensor.subslice(device, bytes)?;
        host.reborrow().subslice(array, bytes)?.copy_from(source);
        Some(())
    })
}

fn wrong_side(binding: usize, what: &str) -> RuntimeError {
    RuntimeError::internal(format!("the array of a box of binding {binding} cannot be {what}"))
}

/// Iteration over a box: outer dims one element at a time, inner dims as runs of bytes.
struct Rows<'a> {
    origin: &'a [usize],
    extent: &'a [usize],
    // Distance in bytes between neighbors of the host array in each dim.
    strides: &'a [isize],
    // Distance in bytes between neighbors of the device tensor in each dim.
    device_strides: Vec<usize>,
    // Number of outer dims; the others form a contiguous run.
    outer: usize,
    run_bytes: usize,
}

impl<'a> Rows<'a> {
    /// Creates the iteration, and returns the host array with it.
    fn new(window: &'a mut Window, dims: &[usize]) -> Result<(Self, &'a mut WindowArray), RuntimeError> {
        let Window { origin, extent, item_bytes, array, strides, .. } = window;
        let rank = dims.len();
        let fits = origin.len() == rank
            && extent.len() == rank
            && strides.len() == rank
            && (0..rank).all(|dim| origin[dim].checked_add(extent[dim]).is_some_and(|end| end <= dims[dim]));
        if !fits {
            return Err(RuntimeError::argument(format!(
                "a box of {extent:?} elements at {origin:?} is not inside a tensor of {dims:?}"
            )));
        }
        let mut device_strides = vec![0; rank];
        let mut step = *item_bytes;
        for dim in (0..rank).rev() {
            device_strides[dim] = step;
            step = step.saturating_mul(dims[dim]);
        }
        // From the innermost dim outwards, while elements are contiguous on both sides.
        let mut outer = rank;
        let mut run_bytes = *item_bytes;
        while outer > 0 {
            let dim = outer - 1;
            let run = isize::try_from(run_bytes).unwrap_or(isize::MAX);
            if device_strides[dim] != run_bytes || strides[dim] != run {
                break;
            }
            run_bytes *= extent[dim];
            outer = dim;
            if extent[dim] != dims[dim] {
                break;
            }
        }
        Ok((Self { origin, extent, strides, device_strides, outer, run_bytes }, array))
    }

    /// Calls `copy` with the byte offsets in tensor and array and the length of every run.
    fn each(&self, mut copy: impl FnMut(usize, usize, usize) -> Option<()>) -> Result<(), RuntimeError> {
        let Self { origin, extent, strides, device_strides, outer, run_bytes } = self;
        if extent.contains(&0) {
            return Ok(());
        }
        let outside = || {
            RuntimeError::argument(format!(
                "a box of {extent:?} elements needs more memory than its array has"
            ))
        };
        let base: usize = origin.iter().zip(device_strides).map(|(at, step)| at * step).sum();
        let mut position = vec![0_usize; *outer];
        loop {
            let device = position.iter().zip(device_strides).map(|(at, step)| at * step).sum::<usize>();
            let array = position
                .iter()
                .zip(*strides)
                .try_fold(0_isize, |sum, (&at, &step)| {
                    sum.checked_add(step.checked_mul(isize::try_from(at).ok()?)?)
                })
                .and_then(|offset| usize::try_from(offset).ok())
                .ok_or_else(outside)?;
            copy(base + device, array, *run_bytes).ok_or_else(outside)?;
            let mut dim = *outer;
            loop {
                if dim == 0 {
                    return Ok(());
                }
                dim -= 1;
                position[dim] += 1;
                if position[dim] < extent[dim] {
                    break;
                }
                position[dim] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qaic_mem::Storage;

    use super::*;

    fn window(origin: Vec<usize>, extent: Vec<usize>, strides: Vec<isize>, array: WindowArray) -> Window {
        Window { binding: 0, origin, extent, item_bytes: 2, array, strides }
    }

    fn source(values: &[u16]) -> WindowArray {
        WindowArray::Source(Storage::of(values).unwrap().into())
    }

    fn target(bytes: usize) -> WindowArray {
        WindowArray::Target(Storage::new(bytes).unwrap().into())
    }

    fn written(window: &Window) -> Vec<u8> {
        let WindowArray::Target(array) = &window.array else { panic!("nothing is written") };
        array.as_slice().to_vec()
    }

    fn dense(extent: &[usize], item_bytes: usize) -> Vec<isize> {
        let mut step = isize::try_from(item_bytes).unwrap();
        let mut strides = vec![0; extent.len()];
        for dim in (0..extent.len()).rev() {
            strides[dim] = step;
            step *= isize::try_from(extent[dim]).unwrap();
        }
        strides
    }

    /// Returns every position of a box, in C order.
    fn positions(extent: &[usize]) -> Vec<Vec<usize>> {
        extent.iter().fold(vec![Vec::new()], |before, &count| {
            before
                .into_iter()
                .flat_map(|prefix| {
                    (0..count).map(move |at| prefix.iter().copied().chain([at]).collect::<Vec<_>>())
                })
                .collect()
        })
    }

    fn flat(position: &[usize], dims: &[usize]) -> usize {
        position.iter().zip(dims).fold(0, |sum, (at, dim)| sum * dim + at)
    }

    proptest! {
        #[test]
        fn box_goes_up_and_comes_back(
            shape in prop::collection::vec((1_usize..5, 0_usize..5, 0_usize..5), 1..5),
        ) {
            let dims: Vec<_> = shape.iter().map(|entry| entry.0).collect();
            let origin: Vec<_> = shape.iter().map(|(dim, at, _)| at % dim).collect();
            let extent: Vec<_> =
                shape.iter().zip(&origin).map(|((dim, _, count), at)| 1 + count % (dim - at)).collect();
            let count: usize = dims.iter().product();
            let mut tensor = Storage::new(2 * count).unwrap();
            let size: usize = extent.iter().product();
            let values: Vec<u16> = (1..=u16::try_from(size).unwrap()).collect();
            let mut given = window(origin.clone(), extent.clone(), dense(&extent, 2), source(&values));
            upload(&mut given, &dims, tensor.memory_mut()).unwrap();

            let mut expected = vec![0_u16; count];
            for (value, position) in values.iter().zip(positions(&extent)) {
                let at: Vec<_> = position.iter().zip(&origin).map(|(a, b)| a + b).collect();
                expected[flat(&at, &dims)] = *value;
            }
            let mut found = vec![0_u16; count];
            tensor.memory().read_into(0, &mut found).unwrap();
            prop_assert_eq!(found, expected);

            let mut wanted = window(origin, extent.clone(), dense(&extent, 2), target(2 * size));
            download(&mut wanted, &dims, tensor.memory()).unwrap();
            prop_assert_eq!(written(&wanted), HostSlice::of(&values).to_vec());
        }
    }

    #[test]
    fn broadcast_array_fills_the_box() {
        let mut tensor = Storage::new(2 * 12).unwrap();
        let mut given = window(vec![1, 1], vec![2, 3], vec![0, 0], source(&[7]));
        upload(&mut given, &[3, 4], tensor.memory_mut()).unwrap();
        let mut found = vec![0_u16; 12];
        tensor.memory().read_into(0, &mut found).unwrap();
        assert_eq!(found, [0, 0, 0, 0, 0, 7, 7, 7, 0, 7, 7, 7]);
    }

    #[test]
    fn boxes_outside_are_refused() {
        let mut tensor = Storage::new(2 * 12).unwrap();
        let code = |outcome: Result<(), RuntimeError>| outcome.unwrap_err().code();
        for (origin, extent) in [
            (vec![2, 0], vec![2, 2]),
            (vec![0, 3], vec![2, 2]),
            (vec![usize::MAX, 0], vec![2, 2]),
            (vec![0], vec![4]),
        ] {
            let mut given = window(origin, extent.clone(), dense(&extent, 2), source(&[0; 4]));
            assert_eq!(code(upload(&mut given, &[3, 4], tensor.memory_mut())), "call.argument");
        }
        let short = |array| window(vec![0, 0], vec![3, 4], dense(&[3, 4], 2), array);
        let mut given = short(source(&[0; 4]));
        assert_eq!(code(upload(&mut given, &[3, 4], tensor.memory_mut())), "call.argument");
        let mut wanted = short(target(8));
        assert_eq!(code(download(&mut wanted, &[3, 4], tensor.memory())), "call.argument");
    }

    #[test]
    fn arrays_of_the_other_side_are_refused() {
        let mut tensor = Storage::new(2 * 4).unwrap();
        let whole = |array| window(vec![0], vec![4], vec![2], array);
        assert!(upload(&mut whole(target(8)), &[4], tensor.memory_mut()).is_err());
        assert!(download(&mut whole(source(&[0; 4])), &[4], tensor.memory()).is_err());
    }
}
