//! Reads any bytes as stored weights of a format; multiplies and gathers weights that have the size of their
//! shape.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_mem::convert::Isa;
use qaic_mem::stored::{Form, Layout, Product, Rounding, StoredRows};

const NAMES: [&str; 7] = ["float32", "float16", "bfloat16", "mxfp6_e2m3", "int8", "uint4", "mxint8"];
/// Sizes of groups that kernels read.
const GROUPS: [usize; 4] = [0, 32, 64, 128];
/// Maximum number of elements in a computation.
const MOST: usize = 1 << 12;

fuzz_target!(|input: (u8, usize, usize, usize, &[u8])| {
    let (form, group, rows, len, bytes) = input;
    let name = NAMES[usize::from(form) % NAMES.len()];
    let layout = if rows % 2 == 0 { Layout::Rows } else { Layout::Tiles };
    // Given sizes, and small sizes that usually match the bytes.
    for (group, rows, len) in [(group, rows, len), (GROUPS[group % GROUPS.len()], rows % 5, len % 200)] {
        let Some(form) = Form::from_name(name, group) else { return };
        let found = StoredRows::new(form, layout, rows, len, bytes);
        assert!(found.is_err() || form.bytes(layout, rows, len) == Some(bytes.len()));
        let needed = form.bytes(layout, rows, len).unwrap_or(usize::MAX);
        let Some(Ok(stored)) =
            bytes.get(..needed).map(|bytes| StoredRows::new(form, layout, rows, len, bytes))
        else {
            continue;
        };
        if rows.max(1).saturating_mul(len) > MOST {
            continue;
        }
        let mut numbers = vec![0.0; len];
        stored.gather(Isa::best(), rows.saturating_sub(1), &mut numbers);
        stored.gather(Isa::best(), 0, &mut vec![0.0; rows * len]);
        if let Some(part) = stored.part(rows / 2..rows) {
            part.gather(Isa::best(), 0, &mut numbers);
        }
        for count in [1, 3, 6] {
            let activations = numbers.repeat(count);
            let Ok(product) = Product::new(stored, &activations, &[], Rounding::Float16) else { continue };
            for block in 0..product.blocks() {
                let of = |isa| {
                    let bits = |sum: &f32| if sum.is_nan() { u32::MAX } else { sum.to_bits() };
                    let mut found = Vec::new();
                    product.block(isa, block, |_, _, sums| found.extend(sums.iter().map(bits)));
                    found
                };
                assert_eq!(of(Isa::best()), of(Isa::Portable));
            }
        }
    }
});
