//! Description of a device for device lists.

use serde::Serialize;

use super::{Device, DeviceStatus, Resources};

/// Kind, resources and state of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceDescription {
    id: u32,
    kind: &'static str,
    name: String,
    family: &'static str,
    status: &'static str,
    // Reason why the device cannot be used.
    reason: Option<String>,
    #[serde(flatten)]
    resources: Resources,
}

impl DeviceDescription {
    /// Queries the device.
    ///
    /// Blocking: at most a minute, while a card answers.
    pub(crate) fn of(device: &dyn Device) -> Self {
        let resources = device.resources();
        let (status, reason) = match device.status() {
            DeviceStatus::Ready => ("ready", None),
            DeviceStatus::Error { reason } => ("error", Some(reason)),
        };
        Self {
            id: device.id().0,
            kind: device.kind().name(),
            name: device.name(),
            family: device.family(),
            status,
            reason,
            resources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceId, Registry, RegistryOptions};

    fn described(registry: &Registry) -> serde_json::Value {
        let device = registry.device(DeviceId(0)).unwrap();
        serde_json::to_value(DeviceDescription::of(&**device)).unwrap()
    }

    #[test]
    fn a_description_has_the_state_and_the_resources_beside_each_other() {
        let options = RegistryOptions { kind: Some("noop".to_owned()), ..RegistryOptions::default() };
        let registry = Registry::new(&options).unwrap();
        let found = described(&registry);
        assert_eq!((&found["kind"], &found["status"]), (&"noop".into(), &"ready".into()));
        assert_eq!((&found["nsp_total"], &found["nsp_free"]), (&16.into(), &16.into()));
        assert!(found["reason"].is_null());
        registry.noop_control(DeviceId(0)).unwrap().lose().unwrap();
        let found = described(&registry);
        assert_eq!(found["status"], "error");
        assert!(found["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    }
}
