//! Which devices of a process are shown to it.

use std::sync::Arc;

use super::{Device, DeviceId};
use crate::error::{ErrorDetail, InputError, RuntimeError};

/// The devices that `listed`, the value of `QAIC_VISIBLE_DEVICES`, names: ids separated by commas. All without a value,
/// and for one without characters. They keep their ids and their order, whatever the order of the list.
pub(crate) fn visible(
    devices: &[Arc<dyn Device>],
    listed: Option<&str>,
) -> Result<Vec<Arc<dyn Device>>, RuntimeError> {
    let Some(listed) = listed.map(str::trim).filter(|listed| !listed.is_empty()) else {
        return Ok(devices.to_vec());
    };
    let ids = parse(listed)?;
    let exists = |id: &DeviceId| devices.iter().any(|device| device.id() == *id);
    if let Some(unknown) = ids.iter().find(|id| !exists(id)) {
        let existing: Vec<_> = devices.iter().map(|device| device.id().0).collect();
        return Err(InputError::Argument {
            what: format!(
                "QAIC_VISIBLE_DEVICES names device {}, which does not exist; existing ids: {existing:?}; name some of \
                 these, or raise QAIC_CPU_DEVICES, the number of virtual and emulated cards",
                unknown.0
            ),
        }.into());
    }
    Ok(devices.iter().filter(|device| ids.contains(&device.id())).map(Arc::clone).collect())
}

fn parse(listed: &str) -> Result<Vec<DeviceId>, RuntimeError> {
    let mut ids = Vec::new();
    for part in listed.split(',') {
        let refused = |why: String| {
            ErrorDetail::Input(InputError::Argument {
                what: format!(
                    "QAIC_VISIBLE_DEVICES is {listed:?}: {why}; device ids separated by ',' are expected, as in \"0,1\""
                ),
            })
        };
        let id = part.trim().parse().map(DeviceId);
        let id = id.map_err(|_| refused(format!("{:?} is not a device id", part.trim())))?;
        if ids.contains(&id) {
            return Err(refused(format!("device {} is named twice", id.0)).into());
        }
        ids.push(id);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use proptest::prelude::*;

    use super::*;
    use crate::device::{Registry, RegistryOptions};

    fn devices(count: u32) -> Registry {
        let options = RegistryOptions {
            kind: Some("noop".to_owned()),
            virtual_cards: Some(count),
            ..RegistryOptions::default()
        };
        Registry::new(&options).unwrap()
    }

    fn shown(count: u32, listed: Option<&str>) -> Result<Vec<u32>, String> {
        let shown = visible(devices(count).devices(), listed).map_err(|error| error.to_string())?;
        Ok(shown.iter().map(|device| device.id().0).collect())
    }

    proptest! {
        #[test]
        fn what_is_listed_is_shown_under_its_own_id(
            ids in Just((0..8_u32).collect::<Vec<_>>()).prop_shuffle(), count in 1..=8_usize, space in "[ ]{0,2}",
        ) {
            let listed: Vec<_> = ids[..count].iter().map(|id| format!("{space}{id}{space}")).collect();
            let mut expected = ids[..count].to_vec();
            expected.sort_unstable();
            prop_assert_eq!(shown(8, Some(&listed.join(","))), Ok(expected));
        }
    }

    #[test]
    fn without_a_list_all_are_shown() {
        for listed in [None, Some(""), Some(" ")] {
            assert_eq!(shown(3, listed), Ok(vec![0, 1, 2]));
        }
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        for (listed, what) in [
            ("0:1", "\"0:1\" is not a device id"),
            ("0,", "\"\" is not a device id"),
            ("-1", "\"-1\" is not a device id"),
            ("all", "\"all\" is not a device id"),
            ("1,0,1", "device 1 is named twice"),
            ("0,3", "names device 3, which does not exist; existing ids: [0, 1, 2]"),
        ] {
            let refusal = shown(3, Some(listed)).unwrap_err();
            assert!(refusal.contains(what) && refusal.contains("QAIC_VISIBLE_DEVICES"), "{refusal}");
        }
    }
}
