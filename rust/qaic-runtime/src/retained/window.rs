//! Copies between a box of a device tensor and an array of the host.
//!
//! The device tensor is C-contiguous. The host array may have any strides when it is read: a broadcast array has
//! stride 0. Rows that are contiguous on both sides are copied as one run.

use crate::buffer::{HostSlice, HostSliceMut};
use crate::error::RuntimeError;
use crate::wiring::Window;

/// Writes the host array into its box of the device tensor.
pub(crate) fn upload(window: &Window, dims: &[usize], tensor: HostSliceMut) -> Result<(), RuntimeError> {
    let rows = Rows::new(window, dims)?;
    let host = window.memory.as_const();
    rows.each(|device, array, bytes| {
        let target = tensor.subslice(device, bytes)?;
        let source = host.subslice(array, bytes)?;
        target.copy_from(source);
        Some(())
    })
}

/// Reads the box of the device tensor into the host array.
pub(crate) fn download(window: &Window, dims: &[usize], tensor: HostSlice) -> Result<(), RuntimeError> {
    let rows = Rows::new(window, dims)?;
    rows.each(|device, array, bytes| {
        let target = window.memory.subslice(array, bytes)?;
        let source = tensor.subslice(device, bytes)?;
        target.copy_from(source);
        Some(())
    })
}

/// The walk over a box: outer dims one element at a time, the inner ones as runs of bytes.
struct Rows<'a> {
    window: &'a Window,
    // Bytes between neighbours of the device tensor in each dim.
    device_strides: Vec<usize>,
    // Dims that are walked; the others form the run.
    outer: usize,
    run_bytes: usize,
}

impl<'a> Rows<'a> {
    fn new(window: &'a Window, dims: &[usize]) -> Result<Self, RuntimeError> {
        let rank = dims.len();
        let fits = window.origin.len() == rank
            && window.extent.len() == rank
            && window.strides.len() == rank
            && (0..rank).all(|dim| {
                window.origin[dim].checked_add(window.extent[dim]).is_some_and(|end| end <= dims[dim])
            });
        if !fits {
            return Err(RuntimeError::Argument {
                what: format!(
                    "a box of {:?} elements at {:?} does not lie in a tensor of {dims:?}",
                    window.extent, window.origin
                ),
            });
        }
        let mut device_strides = vec![0; rank];
        let mut step = window.item_bytes;
        for dim in (0..rank).rev() {
            device_strides[dim] = step;
            step = step.saturating_mul(dims[dim]);
        }
        // From the innermost dim outwards, as long as neighbours touch on both sides.
        let mut outer = rank;
        let mut run_bytes = window.item_bytes;
        while outer > 0 {
            let dim = outer - 1;
            let run = isize::try_from(run_bytes).unwrap_or(isize::MAX);
            if device_strides[dim] != run_bytes || window.strides[dim] != run {
                break;
            }
            run_bytes *= window.extent[dim];
            outer = dim;
            if window.extent[dim] != dims[dim] {
                break;
            }
        }
        Ok(Self { window, device_strides, outer, run_bytes })
    }

    /// Calls `copy` with the byte offsets in tensor and array and the length of every run.
    fn each(&self, mut copy: impl FnMut(usize, usize, usize) -> Option<()>) -> Result<(), RuntimeError> {
        let Self { window, device_strides, outer, run_bytes } = self;
        if window.extent.contains(&0) {
            return Ok(());
        }
        let outside = || RuntimeError::Argument {
            what: format!("a box of {:?} elements needs more memory than its array has", window.extent),
        };
        let base: usize = window.origin.iter().zip(device_strides).map(|(at, step)| at * step).sum();
        let mut position = vec![0_usize; *outer];
        loop {
            let device = position.iter().zip(device_strides).map(|(at, step)| at * step).sum::<usize>();
            let array = position
                .iter()
                .zip(&window.strides)
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
                if position[dim] < window.extent[dim] {
                    break;
                }
                position[dim] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use proptest::prelude::*;

    use super::*;
    use crate::buffer::Storage;

    fn window(origin: Vec<usize>, extent: Vec<usize>, strides: Vec<isize>, memory: HostSliceMut) -> Window {
        Window { binding: 0, origin, extent, item_bytes: 2, memory, strides, owner: None }
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

    /// Every position of a box, in C order.
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
            let tensor = Storage::new(2 * count).unwrap();
            let size: usize = extent.iter().product();
            let array = Storage::new(2 * size).unwrap();
            let values: Vec<u16> = (1..=u16::try_from(size).unwrap()).collect();
            array.memory().write_from(0, &values).unwrap();
            let given = window(origin.clone(), extent.clone(), dense(&extent, 2), array.memory());
            upload(&given, &dims, tensor.memory()).unwrap();

            let mut expected = vec![0_u16; count];
            for (value, position) in values.iter().zip(positions(&extent)) {
                let at: Vec<_> = position.iter().zip(&origin).map(|(a, b)| a + b).collect();
                expected[flat(&at, &dims)] = *value;
            }
            let mut found = vec![0_u16; count];
            tensor.memory().as_const().read_into(0, &mut found).unwrap();
            prop_assert_eq!(found, expected);

            let back = Storage::new(2 * size).unwrap();
            let wanted = window(origin, extent.clone(), dense(&extent, 2), back.memory());
            download(&wanted, &dims, tensor.memory().as_const()).unwrap();
            prop_assert_eq!(back.memory().as_const().to_vec(), array.memory().as_const().to_vec());
        }
    }

    #[test]
    fn broadcast_array_fills_the_box() {
        let tensor = Storage::new(2 * 12).unwrap();
        let one = Storage::new(2).unwrap();
        one.memory().write_from(0, &[7_u16]).unwrap();
        let given = window(vec![1, 1], vec![2, 3], vec![0, 0], one.memory());
        upload(&given, &[3, 4], tensor.memory()).unwrap();
        let mut found = vec![0_u16; 12];
        tensor.memory().as_const().read_into(0, &mut found).unwrap();
        assert_eq!(found, [0, 0, 0, 0, 0, 7, 7, 7, 0, 7, 7, 7]);
    }

    #[test]
    fn boxes_outside_are_refused() {
        let tensor = Storage::new(2 * 12).unwrap();
        let array = Storage::new(2 * 4).unwrap();
        for (origin, extent) in [
            (vec![2, 0], vec![2, 2]),
            (vec![0, 3], vec![2, 2]),
            (vec![usize::MAX, 0], vec![2, 2]),
            (vec![0], vec![4]),
        ] {
            let given = window(origin, extent.clone(), dense(&extent, 2), array.memory());
            assert_eq!(upload(&given, &[3, 4], tensor.memory()).unwrap_err().code(), "call.argument");
        }
        let short = window(vec![0, 0], vec![3, 4], dense(&[3, 4], 2), array.memory());
        assert_eq!(upload(&short, &[3, 4], tensor.memory()).unwrap_err().code(), "call.argument");
        assert_eq!(
            download(&short, &[3, 4], tensor.memory().as_const()).unwrap_err().code(),
            "call.argument"
        );
    }
}
