//! Checks the metadata `FlatBuffer`s of this library and of the reference with the verifier of the
//! `flatbuffers` crate, an independent implementation: alignment, bounds and field types.

use flatbuffers::{
    ForwardsUOffset, InvalidFlatbuffer, Vector, Verifiable, Verifier, VerifierOptions,
    field_index_to_field_offset,
};
use proptest::prelude::*;
use qaic_qpc::metadata::Metadata;
use qaic_qpc::{Limits, elf};

use super::{fixture, generate};

type Tables<T> = ForwardsUOffset<Vector<'static, ForwardsUOffset<T>>>;
type List<T> = ForwardsUOffset<Vector<'static, T>>;

/// Declares a table as `id: type` and implements its verification.
macro_rules! table {
    ($name:ident { $($id:literal: $type:ty),* $(,)? }) => {
        struct $name;

        impl Verifiable for $name {
            fn run_verifier(verifier: &mut Verifier<'_, '_>, position: usize) -> Result<(), InvalidFlatbuffer> {
                verifier
                    .visit_table(position)?
                    $(.visit_field::<$type>(stringify!($id), field_index_to_field_offset($id), false)?)*
                    .finish();
                Ok(())
            }
        }
    };
}

table!(Root {
    0: u16, 1: u16,
    2: ForwardsUOffset<&str>,
    3: Tables<&'static str>,
    4: List<u32>,
    5: List<u8>,
    6: Tables<DmaRequest>,
    7: Tables<NspTable>,
    8: ForwardsUOffset<HostTable>,
    9: Tables<Thread>,
    10: Tables<Mapping>,
    11: u64, 12: u64, 13: u64, 14: u64, 15: u64,
    16: u32, 17: u32, 18: u16, 19: u16, 20: u16,
    21: u8, 22: u8, 23: u8, 24: u8, 25: u8, 26: u8, 27: u8, 28: u8, 29: u8,
    30: u32, 31: u32, 32: u64, 33: u64,
    34: ForwardsUOffset<Choice>,
    // Ports are structs of four bytes.
    35: List<u32>,
    36: List<u8>,
    37: Tables<Region>,
    38: u8,
    39: ForwardsUOffset<Choice>,
});
table!(DmaRequest {
    0: Tables<SemaphoreOp>, 1: Tables<DoorbellOp>,
    2: u64, 3: u64, 4: u32, 5: u16, 6: u16, 7: u8, 8: u8, 9: u16, 10: u32,
});
table!(SemaphoreOp { 0: u16, 1: u16, 2: u8, 3: u8, 4: u8, 5: u8 });
table!(DoorbellOp { 0: u64, 1: u32, 2: u16, 3: u8 });
table!(NspTable { 0: Tables<NspEntry>, });
table!(NspEntry { 0: u64, 1: u32, 2: u32, 3: u8, 4: u8 });
table!(HostTable { 0: Tables<HostEntry>, });
table!(HostEntry { 0: u32, 1: u32 });
table!(Thread { 0: u64, 1: u8 });
table!(Mapping { 0: u64, 1: u32, 2: u32 });
table!(Region { 0: u64, 1: u64, 2: u64 });
table!(Choice { 0: i8 });

fn verify(bytes: &[u8]) -> Result<(), InvalidFlatbuffer> {
    let options = VerifierOptions::default();
    <ForwardsUOffset<Root>>::run_verifier(&mut Verifier::new(&options, bytes), 0)
}

proptest! {
    #[test]
    fn written_metadata_passes_the_verifier(metadata in generate::metadata()) {
        verify(&metadata.encode_flatbuffer()).unwrap();
    }

    /// The reverse: the library reads every buffer that the verifier accepts, or refuses it for its contents
    /// and not for its structure.
    #[test]
    fn damaged_metadata_that_passes_the_verifier_is_read(
        metadata in generate::metadata(),
        at: prop::sample::Index,
        value: u8,
    ) {
        let mut bytes = metadata.encode_flatbuffer();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if verify(&bytes).is_ok() {
            let decoded = Metadata::decode_flatbuffer(&bytes, &Limits::default());
            let refused = decoded.err();
            let judged = ["qpc.metadata_version", "qpc.unknown_required_field"];
            prop_assert!(refused.as_ref().is_none_or(|error| judged.contains(&error.code())), "{:?}", refused);
        }
    }
}

#[test]
fn the_schema_here_is_that_of_the_recorded_metadata() {
    let mut verified = 0;
    for case in fixture::good() {
        let file = case.payload("network.elf");
        if let Some(range) = elf::section(file, "metadata_fb").unwrap() {
            verify(&file[range]).unwrap();
            verified += 1;
        }
    }
    assert!(verified >= 10, "only {verified} recorded metadata sections");
}
