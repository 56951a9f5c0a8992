//! Memory to which an output is bound.

use super::*;
use crate::echo;

/// Pieces of one buffer, by their first byte. No test reads their content.
struct Pieces(Vec<u8>);

impl Arrays for Pieces {
    fn memory(&self, ArrayId(first): ArrayId) -> HostSlice<'_> {
        HostSlice::of(&self.0[first..first + 4 * echo::ELEMENTS as usize])
    }

    fn memory_mut(&self, _: ArrayId) -> HostSliceMut<'_> {
        panic!("nothing is written before it runs")
    }
}

#[test]
fn array_is_written_by_the_device_unless_an_input_or_blocks_are_in_the_way() {
    let pieces = Pieces(vec![0; 1024]);
    let is_deferred = |tensors: &ArrayTensors, first| {
        let mut bound = BoundArrays::for_tensors(tensors);
        bound.begin(0);
        bound.push_input(tensors, &pieces, Some(ArrayId(0))).unwrap();
        bound.push_output(tensors, &pieces, Destination::Array(ArrayId(first))).unwrap();
        matches!(bound.outputs[..], [Target::Deferred(..)])
    };
    let tensors = ArrayTensors::new(&echo::resizable(), 1).unwrap();
    assert_eq!([0, 4, 252, 256].map(|first| is_deferred(&tensors, first)), [true, true, true, false]);
    let blocks = ArrayTensors::new(&echo::blocks(), 1).unwrap();
    assert!(is_deferred(&blocks, 512));
}
