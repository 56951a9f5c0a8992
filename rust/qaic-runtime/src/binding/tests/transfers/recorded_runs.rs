//! The recorded runs of the fixture containers, byte for byte (tests/data/qpc).

use std::path::Path;

use super::dma::Dma;
use qaic_qpc::NetworkDesc;
use qaic_runtime::binding::TransferPlan;
use serde_json::Value;

fn bytes(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("hex string");
    (0..text.len()).step_by(2).map(|k| u8::from_str_radix(&text[k..k + 2], 16).expect("hex digits")).collect()
}

fn buffers(run: &Value, field: &str) -> Vec<Vec<u8>> {
    run[field].as_array().expect("list of buffers").iter().map(bytes).collect()
}

fn numbers(run: &Value, field: &str) -> Vec<u64> {
    run[field].as_array().expect("list of numbers").iter().map(|n| n.as_u64().expect("number")).collect()
}

fn check(name: &str, plan: &TransferPlan, run: &Value) {
    let inputs = buffers(run, "inputs");
    let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
    let mut dma = Dma::whole(buffers(run, "dma_before"));
    let resize = dma.stage(plan, &inputs).unwrap();
    assert_eq!(dma.bytes(), buffers(run, "dma_after"), "{name}: DMA buffers");
    assert_eq!(
        resize.into_iter().map(u64::from).collect::<Vec<_>>(),
        numbers(run, "dma_resize"),
        "{name}: resize"
    );
    let given: Vec<_> = inputs.iter().map(|input| input.len() as u64).collect();
    assert_eq!(plan.lay_out(&given).unwrap().extents, numbers(run, "dma_extent"), "{name}: extents");

    let mut dma = Dma::whole(buffers(run, "dma_device"));
    let mut outputs = buffers(run, "outputs_before");
    let mut user: Vec<_> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    dma.fetch(plan, &mut user).unwrap();
    assert_eq!(outputs, buffers(run, "outputs_after"), "{name}: outputs");
    assert_eq!(dma.bytes(), buffers(run, "dma_device"), "{name}: DMA buffers are only read");
}

#[test]
fn recorded_runs_are_reproduced() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/qpc");
    let (mut cases, mut runs) = (0, 0);
    for entry in std::fs::read_dir(&folder).expect("fixture folder") {
        let path = entry.expect("fixture entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut case: Value = serde_json::from_slice(&std::fs::read(&path).expect("fixture")).expect("JSON");
        let name = case["name"].as_str().unwrap_or_default().to_owned();
        let Some(network) = case.get_mut("network_descriptor").and_then(Value::as_object_mut) else {
            continue;
        };
        // Statistics do not affect transfers, and their JSON contains 64-bit numbers as text.
        network.remove("stats");
        let network: NetworkDesc =
            serde_json::from_value(Value::Object(network.clone())).expect("descriptor");
        let plan = TransferPlan::new(&network).unwrap_or_else(|error| panic!("{name}: {error}"));
        cases += 1;
        for run in case["runs"].as_array().into_iter().flatten() {
            check(&name, &plan, run);
            runs += 1;
        }
    }
    assert!(cases >= 13 && runs >= 15, "only {cases} cases with {runs} runs were found");
}
