//! Defects of protobuf messages.

use qaic_qpc::{Limits, NetworkDesc, QpcError, WireDefect};

fn decode(bytes: &[u8]) -> Result<NetworkDesc, QpcError> {
    NetworkDesc::decode(bytes, &Limits::default())
}

fn wire_defect(bytes: &[u8]) -> WireDefect {
    match decode(bytes) {
        Err(QpcError::Wire { defect, .. }) => defect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rejects_damaged_messages() {
    assert_eq!(wire_defect(&[0x08]), WireDefect::VarintTruncated);
    assert_eq!(wire_defect(&[&[0x08][..], &[0xff; 10]].concat()), WireDefect::VarintOverflow);
    assert_eq!(wire_defect(&[0x1a, 5, b'a']), WireDefect::LengthPastEnd);
    assert_eq!(wire_defect(&[&[0x1a][..], &[0xff; 9], &[1]].concat()), WireDefect::LengthPastEnd);
    assert_eq!(wire_defect(&[0x00, 0]), WireDefect::FieldNumber);
    assert_eq!(wire_defect(&[0x0e]), WireDefect::WireType(6));
    assert_eq!(wire_defect(&[0x0d, 1, 2]), WireDefect::FixedTruncated);
    assert_eq!(wire_defect(&[0x1a, 1, 0xff]), WireDefect::NotUtf8(3));
    assert_eq!(wire_defect(&[0x0c]), WireDefect::Group);
    assert_eq!(wire_defect(&[0x0b, 0x14]), WireDefect::Group);
    assert_eq!(wire_defect(&[0x0b]), WireDefect::Group);
}

#[test]
fn errors_of_nested_messages_name_the_message_and_the_byte() {
    // inputs[0].io_initial ends inside its first field.
    let error = decode(&[0x08, 9, 0x22, 3, 0x12, 1, 0x08]).unwrap_err();
    let expected =
        QpcError::Wire { message: "IO descriptor", offset: 7, defect: WireDefect::VarintTruncated };
    assert_eq!(error, expected);
}

#[test]
fn rejects_unbounded_nesting() {
    let groups = vec![0x0b; 1 << 20];
    assert_eq!(decode(&groups).unwrap_err(), QpcError::LimitExceeded { what: "nesting", max: 32 });
}

#[test]
fn rejects_messages_that_unfold_beyond_the_budget() {
    // Two bytes in the file for each binding, which needs hundreds of bytes in memory.
    let bindings = [0x22, 0].repeat(1 << 20);
    let limits = Limits { max_decoded_bytes: 1 << 20, ..Limits::default() };
    let error = NetworkDesc::decode(&bindings, &limits).unwrap_err();
    assert_eq!(error, QpcError::LimitExceeded { what: "decoded bytes", max: 1 << 20 });
}
