//! Plans that the `cpu` device refuses before it loads its engine.

use qaic_runtime::device::{DeviceId, LoadOptions, Placement, RegistryOptions};
use qaic_runtime::{Context, RuntimeError};

use crate::echo;

/// Returns the error of a load with this plan and 256 bytes of constants, without an engine.
fn load(plan: &str) -> RuntimeError {
    let options = RegistryOptions {
        kind: Some("cpu".to_owned()),
        engine_candidates: vec!["no engine".into()],
        ..RegistryOptions::default()
    };
    let context = Context::isolated(&options).unwrap();
    let image = echo::cpu_program(plan, &[0; 256]);
    context.load(&image, &Placement::one(DeviceId(0)), &LoadOptions::default()).unwrap_err()
}

fn with_weights(offset: u64, rest: &str) -> String {
    let tensor = |name| format!(r#"{{"name":"{name}","dtype":"float32","dims":[1,{}]}}"#, echo::ELEMENTS);
    format!(
        r#"{{"version":1,"target":"cpu","inputs":[{}],"outputs":[{}],
        "initializers":[{{"name":"w","dtype":"float32","dims":[2],"offset":{offset},"size":8}}]{rest}}}"#,
        tensor("x"),
        tensor("y")
    )
}

#[test]
fn load_with_weights_at_an_odd_offset_is_refused() {
    assert_ne!(load(&with_weights(64, "")).code(), "qpc.initializer_alignment");
    let error = load(&with_weights(65, ""));
    assert_eq!(error.code(), "qpc.initializer_alignment");
    let text = error.to_string();
    assert!(text.contains("`w`") && text.contains("byte 65") && text.contains("compile"), "{text}");
}

#[test]
fn load_of_a_plan_that_disagrees_with_its_container_is_refused() {
    for (plan, what) in [
        (with_weights(256, ""), "outside constants.bin, which has 256 bytes"),
        (with_weights(64, r#","variants":[{"inputs":[],"outputs":[]}]"#), "the plan has 1 specialization,"),
        (with_weights(64, "").replace(r#""x""#, r#""z""#), "the plan has tensor `z`"),
        (with_weights(64, "").replace(r#""version":1"#, r#""version":5"#), "has version 5"),
        ("[]".to_owned(), "is not a plan"),
    ] {
        let error = load(&plan);
        assert_eq!(error.code(), "engine.graph", "{plan}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(load(&with_weights(64, "").replace("cpu", "card")).code(), "device.wrong_target");
    assert_eq!(load(&with_weights(64, r#","hardware":"ai200""#)).code(), "device.hardware_family");
}
