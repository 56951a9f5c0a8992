//! Compares the library's results for the recorded containers with those of the open reference code (see
//! `tests/data/qpc/README.md`).

use qaic_qpc::metadata::{Encoding, LocatedMetadata, Metadata};
use qaic_qpc::transform::{TransferPlan, is_copy_only};
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{
    ConstantsDesc, Container, IoDesc, Limits, NetworkDesc, QpcInfo, Severity, dma_mappings, user_mappings,
    validate,
};
use serde_json::{Value, json};

use super::fixture::{bad, buffers, good, hex, sha256};

#[test]
fn container_has_the_recorded_header_and_segments() {
    for case in good() {
        let (container, expected) = (case.container(), &case.expected["container"]);
        let header = &container.header;
        assert_eq!(expected["major_version"], header.major_version, "{}", case.name);
        assert_eq!(expected["minor_version"], header.minor_version, "{}", case.name);
        assert_eq!(expected["compression_type"], header.compression_type, "{}", case.name);
        assert_eq!(expected["size"], header.size, "{}", case.name);
        assert_eq!(expected["base"], header.base, "{}", case.name);
        assert_eq!(expected["num_images"], header.num_images, "{}", case.name);
        assert_eq!(expected["rel_images"], header.table_offset, "{}", case.name);
        let mut entry = header.table_offset;
        let mut found = Vec::new();
        for segment in &container.segments {
            found.push(json!({
                "name": segment.name,
                "size": segment.size(),
                "offset": segment.offset,
                "rel_entry": entry,
                "rel_name": segment.name_offset,
                "rel_start": segment.range.start,
                "sha256": sha256(segment.payload(&case.bytes)),
            }));
            entry += 32;
        }
        assert_eq!(expected["segments"], Value::from(found), "{}", case.name);
        assert_eq!(container.warnings, [], "{}", case.name);
        container.require_program().unwrap();
    }
}

#[test]
fn writers_reproduce_the_recorded_containers() {
    for case in good() {
        let container = case.container();
        let segments: Vec<SegmentData<'_>> = container
            .segments
            .iter()
            .map(|segment| SegmentData {
                name: &segment.name,
                offset: segment.offset,
                payload: segment.payload(&case.bytes),
            })
            .collect();
        let file_writer = case.expected["produced_by"] == "reference file writer";
        let mut built = if file_writer {
            writer::build_file(&segments).unwrap()
        } else {
            writer::build_in_memory(&segments, 8).unwrap()
        };
        writer::rebase(&mut built, container.header.base).unwrap();
        assert!(built == case.bytes, "{}: the container is not rebuilt byte for byte", case.name);
    }
}

#[test]
fn damaged_containers_are_rejected_for_their_reason() {
    let expected = [
        ("bad01_magic", "qpc.bad_magic"),
        ("bad02_truncated", "qpc.size_mismatch"),
        ("bad03_segment_past_end", "qpc.payload_out_of_bounds"),
        ("bad04_missing_networkdesc", "qpc.missing_segment"),
    ];
    for (case, (name, code)) in bad().iter().zip(expected) {
        assert_eq!(case.name, name);
        let opened = Container::parse(&case.bytes, &Limits::default()).and_then(|c| c.require_program());
        assert_eq!(opened.unwrap_err().code(), code, "{name}");
        let findings = validate(&case.bytes);
        assert!(
            findings.iter().any(|f| f.code == code && f.severity == Severity::Error),
            "{name}: {findings:?}"
        );
    }
}

/// The fixtures write 64-bit numbers as strings, as protobuf's JSON does.
fn with_plain_numbers(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(with_plain_numbers).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) if name == "output_size" => {
                    (name.clone(), text.parse::<u64>().unwrap().into())
                }
                other => (name.clone(), with_plain_numbers(other)),
            })
            .collect(),
        other => other.clone(),
    }
}

#[test]
fn network_descriptor_decodes_to_the_recorded_json_and_back() {
    for case in good() {
        let expected: NetworkDesc =
            serde_json::from_value(with_plain_numbers(&case.expected["network_descriptor"])).unwrap();
        let network = case.network();
        assert_eq!(network, expected, "{}", case.name);
        assert_eq!(hex(&network.encode()), hex(case.payload("networkdesc.bin")), "{}", case.name);
        let json = serde_json::to_string(&network).unwrap();
        assert_eq!(serde_json::from_str::<NetworkDesc>(&json).unwrap(), network, "{}", case.name);
    }
}

#[test]
fn program_and_constants_info_are_the_recorded_ones() {
    for case in good() {
        let info = QpcInfo::new(&case.container(), &case.bytes, &case.network()).unwrap();
        let [program] = info.programs.as_slice() else { panic!("{}", case.name) };
        let found = json!({
            "name": program.name,
            "programIndex": program.program_index,
            "numCores": program.num_cores,
            // The reference code leaves the size at 0.
            "size": program.size - case.container().required("network.elf").unwrap().size(),
            "batchSize": program.batch_size,
        });
        assert_eq!(case.expected["program"], found, "{}", case.name);
        assert_eq!(case.expected["stats_available"], program.stats_available, "{}", case.name);
        let constants = serde_json::to_value(&info.constants).unwrap();
        assert_eq!(case.expected["constants_info"], constants, "{}", case.name);
        if case.expected["metadata"]["decode"] == "ok" {
            assert_eq!(case.expected["metadata"]["numSemaphores"], program.num_semaphores, "{}", case.name);
            assert_eq!(case.expected["metadata"]["numMcid"], program.num_mc_id, "{}", case.name);
        }
    }
}

#[test]
fn constants_split_and_lookup_are_the_recorded_ones() {
    for case in good() {
        let container = case.container();
        let ranges = container.constants().unwrap();
        let part = |range: std::ops::Range<usize>| json!({ "size": range.len(), "sha256": sha256(&case.bytes[range]) });
        assert_eq!(case.expected["constants_static"], part(ranges.static_part.clone()), "{}", case.name);
        assert_eq!(case.expected["constants_dynamic"], part(ranges.dynamic_part), "{}", case.name);
        for lookup in case.expected["lookup_sizes"].as_array().unwrap() {
            let name = lookup["name"].as_str().unwrap();
            let segment = container.required(name).unwrap();
            // The lookup of the reference code returns only the static part.
            let found = if name == "constants.bin" { ranges.static_part.len() } else { segment.range.len() };
            assert_eq!(lookup["size"], found, "{}: {name}", case.name);
        }
        let descriptor = case.payload("constantsdesc.bin");
        let decoded = ConstantsDesc::decode(descriptor).unwrap();
        assert_eq!(decoded.encode(), descriptor, "{}", case.name);
        if case.expected["metadata"]["decode"] == "ok" {
            let metadata = &case.expected["metadata"];
            assert_eq!(metadata["staticConstantsSize"], decoded.static_constants_size, "{}", case.name);
            assert_eq!(metadata["dynamicConstantsSize"], decoded.dynamic_constants_size, "{}", case.name);
        }
    }
}

#[test]
fn mappings_are_the_recorded_ones() {
    for case in good() {
        let network = case.network();
        let user = serde_json::to_value(user_mappings(&network).unwrap()).unwrap();
        assert_eq!(case.expected["buffer_mappings"], user, "{}", case.name);
        let dma = serde_json::to_value(dma_mappings(&network)).unwrap();
        assert_eq!(case.expected["buffer_mappings_dma"], dma, "{}", case.name);
    }
}

#[test]
fn io_desc_is_the_recorded_one_to_the_byte() {
    for case in good() {
        let io_desc = IoDesc::from_network(&case.network()).unwrap();
        assert_eq!(case.expected["iodesc_hex"], hex(&io_desc.encode()), "{}", case.name);
        let recorded: IoDesc = serde_json::from_value(case.expected["iodesc"].clone()).unwrap();
        assert_eq!(recorded, io_desc, "{}", case.name);
        assert_eq!(IoDesc::decode(&io_desc.encode(), &Limits::default()).unwrap(), io_desc, "{}", case.name);
    }
}

#[test]
fn metadata_fields_are_the_recorded_ones() {
    for case in good() {
        let file = case.payload("network.elf").to_vec();
        let located = LocatedMetadata::from_elf(&file, &Limits::default()).unwrap();
        let (metadata, expected) = (&located.metadata, &case.expected["metadata"]);
        assert_eq!(expected["section"], located.section, "{}", case.name);
        assert_eq!(expected["section_size"], located.section_size, "{}", case.name);
        let json = serde_json::to_value(metadata).unwrap();
        assert_eq!(serde_json::from_value::<Metadata>(json.clone()).unwrap(), *metadata, "{}", case.name);
        if expected["decode"] == "error" {
            // The reference code removes a terminator without a check, and does not read the legacy struct.
            assert_eq!(located.encoding, Encoding::Legacy, "{}", case.name);
            continue;
        }
        let stripped = if located.encoding == Encoding::TerminatedFlatBuffer { 8 } else { 0 };
        assert_eq!(expected["stripped"], stripped, "{}", case.name);
        assert_eq!(expected["numMcid"], metadata.num_mc_id(), "{}", case.name);
        let covered_elsewhere =
            ["section", "section_size", "stripped", "numMcid", "decode", "elf", "dmaRequests"];
        for (field, value) in expected.as_object().unwrap() {
            if !covered_elsewhere.contains(&field.as_str()) {
                assert_eq!(&json[field], value, "{}: {field}", case.name);
            }
        }
        let requests = expected["dmaRequests"].as_array().unwrap();
        assert_eq!(metadata.dma_requests.len(), requests.len(), "{}", case.name);
        for (request, expected) in metadata.dma_requests.iter().zip(requests) {
            let mut found = serde_json::to_value(request).unwrap();
            for list in ["semaphoreOps", "doorbellOps"] {
                found[list] = found[list].as_array().unwrap().len().into();
            }
            assert_eq!(&found, expected, "{}", case.name);
        }
        let again = Metadata::decode_flatbuffer(&metadata.encode_flatbuffer(), &Limits::default()).unwrap();
        assert_eq!(again, *metadata, "{}", case.name);
    }
}

/// The legacy container has the same program as the first one, so its struct must have the same contents.
#[test]
fn legacy_metadata_says_what_the_flatbuffer_says() {
    let cases = good();
    let metadata = |name: &str| {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        LocatedMetadata::from_elf(case.payload("network.elf"), &Limits::default()).unwrap().metadata
    };
    let legacy = metadata("s13_metadata_legacy");
    let modern = metadata("s01_simple_f32_file");
    let expected = Metadata {
        // The struct has no such fields.
        required_fields: Vec::new(),
        raw_struct_version_length: 0,
        ..modern
    };
    assert_eq!(legacy, expected);
}

#[test]
fn executability_is_the_recorded_one() {
    for case in good() {
        let network = case.network();
        let refused = if is_copy_only(&network) { 0 } else { 6 };
        assert_eq!(case.expected["run_transform_check"], refused, "{}", case.name);
        // The reference code refuses some of these cases; a transfer plan exists for all of them.
        TransferPlan::new(&network).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn plans_put_every_byte_where_the_reference_put_it() {
    let mut runs = 0;
    for case in good() {
        for run in case.expected["runs"].as_array().into_iter().flatten() {
            runs += 1;
            let what = format!("{} {}", case.name, run["comment"]);
            check_run(&case.network(), run, &what);
        }
    }
    assert!(runs >= 10, "only {runs} recorded runs");
}

fn check_run(network: &NetworkDesc, run: &Value, what: &str) {
    let plan = TransferPlan::new(network).unwrap();
    let inputs = buffers(&run["inputs"]);
    let sizes: Vec<u64> = inputs.iter().map(|input| input.len() as u64).collect();
    let layout = plan.pack(&sizes).unwrap();
    assert_eq!(run["dma_extent"], json!(layout.extents), "{what}");
    assert_eq!(run["dma_resize"], json!(layout.resize), "{what}");

    let mut dma = buffers(&run["dma_before"]);
    for (input, binding) in inputs.iter().zip(&plan.inputs) {
        if let (Some(place), None) = (binding.place, binding.partial_align) {
            put(&mut dma, place.buffer, place.offset, &input[..usize::try_from(place.bytes).unwrap()]);
        }
    }
    for slice in layout.slices.iter().filter(|slice| slice.bytes != 0) {
        put(&mut dma, slice.buffer, slice.header_offset, &slice.header());
        put(&mut dma, slice.buffer, slice.data_offset, &inputs[slice.input][..slice.bytes as usize]);
    }
    assert_eq!(dma, buffers(&run["dma_after"]), "{what}");

    let device = buffers(&run["dma_device"]);
    let mut outputs = buffers(&run["outputs_before"]);
    for (output, binding) in outputs.iter_mut().zip(&plan.outputs) {
        let Some(place) = binding.place else { continue };
        let bytes = output.len().min(usize::try_from(place.bytes).unwrap());
        let start = place.offset as usize;
        output[..bytes].copy_from_slice(&device[place.buffer as usize][start..start + bytes]);
    }
    assert_eq!(outputs, buffers(&run["outputs_after"]), "{what}");
}

fn put(dma: &mut [Vec<u8>], buffer: u32, offset: u32, bytes: &[u8]) {
    dma[buffer as usize][offset as usize..][..bytes.len()].copy_from_slice(bytes);
}

#[test]
fn validation_finds_no_error_in_what_the_reference_wrote() {
    for case in good() {
        let findings = validate(&case.bytes);
        let errors: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", case.name);
    }
}
