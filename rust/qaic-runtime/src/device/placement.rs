//! Selection of devices by id: lookup of one device, lists of ids in text, and the placement of a program.

use std::fmt;
use std::sync::Arc;

use super::{Device, DeviceId};
use crate::error::{DeviceError, RuntimeError};

pub(crate) fn find(devices: &[Arc<dyn Device>], id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
    devices.iter().find(|device| device.id() == id).ok_or_else(|| {
        DeviceError::NotFound { id: id.0, existing: devices.iter().map(|device| device.id().0).collect() }
            .into()
    })
}

/// Parses ids with `separator` between them; each id may occur once. `subject` names the text in errors.
fn parse_ids(subject: &str, text: &str, separator: char) -> Result<Vec<DeviceId>, RuntimeError> {
    let refused = |why: String| {
        RuntimeError::argument(format!(
            "{subject} {text:?}: {why}; device ids joined with '{separator}' are expected, as in \
                 \"0{separator}1\""
        ))
    };
    let mut ids = Vec::new();
    for part in text.split(separator).map(str::trim) {
        let id = part.parse().map(DeviceId).map_err(|_| refused(format!("{part:?} is not a device id")))?;
        if ids.contains(&id) {
            return Err(refused(format!("device {} occurs twice", id.0)));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// Returns the devices that `listed`, the value of `QAIC_VISIBLE_DEVICES`, contains, in the order of `devices`. An
/// empty list means all devices.
pub(crate) fn visible(
    devices: &[Arc<dyn Device>],
    listed: Option<&str>,
) -> Result<Vec<Arc<dyn Device>>, RuntimeError> {
    let Some(listed) = listed.map(str::trim).filter(|listed| !listed.is_empty()) else {
        return Ok(devices.to_vec());
    };
    let ids = parse_ids("QAIC_VISIBLE_DEVICES", listed, ',')?;
    let exists = |id: &DeviceId| devices.iter().any(|device| device.id() == *id);
    if let Some(unknown) = ids.iter().find(|id| !exists(id)) {
        let existing: Vec<_> = devices.iter().map(|device| device.id().0).collect();
        return Err(RuntimeError::argument(format!(
            "QAIC_VISIBLE_DEVICES names device {}, which does not exist; existing ids: {existing:?}; use existing \
                 ids, or raise QAIC_CPU_DEVICES, the number of virtual and emulated cards",
            unknown.0
        )));
    }
    Ok(devices.iter().filter(|device| ids.contains(&device.id())).map(Arc::clone).collect())
}

/// Devices of one program, in the order of its partitions; usually one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Ids of the devices, each once; at least one.
    pub devices: Vec<DeviceId>,
}

/// Devices of a program, and how they were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The devices.
    pub placement: Placement,
    /// True if the user of the program named no device.
    pub is_chosen: bool,
}

impl Placement {
    /// Returns a placement on a single device.
    pub fn one(id: DeviceId) -> Self {
        Self { devices: vec![id] }
    }

    /// Parses ids separated by `:`, as in the property `devMapping`. The context checks that the devices exist.
    pub(crate) fn parse(text: &str) -> Result<Self, RuntimeError> {
        Ok(Self { devices: parse_ids("device mapping", text, ':')? })
    }

    /// Returns the devices that a client names out of `existing`: `device`, or the devices of `mapping`, or the first
    /// device.
    pub(crate) fn named(
        existing: &[DeviceId],
        device: Option<DeviceId>,
        mapping: &str,
    ) -> Result<Self, RuntimeError> {
        let placement = match device {
            Some(device) => Self::one(device),
            None if mapping.is_empty() => Self::one(existing.first().copied().unwrap_or(DeviceId(0))),
            None => Self::parse(mapping)?,
        };
        match placement.devices.iter().find(|id| !existing.contains(id)) {
            Some(id) => {
                Err(DeviceError::NotFound { id: id.0, existing: existing.iter().map(|id| id.0).collect() }
                    .into())
            }
            None => Ok(placement),
        }
    }

    /// Fails if the placement has no devices, or has a device twice.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        if self.devices.is_empty() {
            return Err(RuntimeError::argument(
                "the device mapping is empty; at least one device id is expected",
            ));
        }
        let twice = self.devices.iter().enumerate().find(|(index, id)| self.devices[..*index].contains(id));
        match twice {
            None => Ok(()),
            Some((_, id)) => Err(RuntimeError::argument(format!(
                "device mapping \"{self}\" names device {} twice; each partition needs its own device",
                id.0
            ))),
        }
    }

    /// Id of the device that represents the placement: the first one.
    pub(crate) fn first(&self) -> Option<DeviceId> {
        self.devices.first().copied()
    }
}

impl From<DeviceId> for Placement {
    fn from(id: DeviceId) -> Self {
        Self::one(id)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.devices.iter().enumerate() {
            if index > 0 {
                formatter.write_str(":")?;
            }
            write!(formatter, "{}", id.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
        let shown = visible(&devices(count).devices, listed).map_err(|error| error.to_string())?;
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
    fn refused_lists_name_what_is_wrong() {
        for (listed, what) in [
            ("0:1", "\"0:1\" is not a device id"),
            ("0,", "\"\" is not a device id"),
            ("-1", "\"-1\" is not a device id"),
            ("all", "\"all\" is not a device id"),
            ("1,0,1", "device 1 occurs twice"),
            ("0,3", "names device 3, which does not exist; existing ids: [0, 1, 2]"),
        ] {
            let refusal = shown(3, Some(listed)).unwrap_err();
            assert!(refusal.contains(what) && refusal.contains("QAIC_VISIBLE_DEVICES"), "{refusal}");
        }
    }

    #[test]
    fn reads_what_it_writes() {
        for text in ["0", "3:1:2", "63"] {
            assert_eq!(Placement::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Placement::parse(" 1 : 0 ").unwrap().devices, [DeviceId(1), DeviceId(0)]);
    }

    #[test]
    fn a_named_device_counts_before_a_mapping_and_that_before_the_first() {
        let existing = [DeviceId(2), DeviceId(0), DeviceId(5)];
        let named = |device: Option<u32>, mapping| {
            Placement::named(&existing, device.map(DeviceId), mapping).map(|found| found.to_string())
        };
        assert_eq!(named(Some(5), "0:2").unwrap(), "5");
        assert_eq!(named(None, "0:2").unwrap(), "0:2");
        assert_eq!(named(None, "").unwrap(), "2");
        for unknown in [named(Some(1), ""), named(None, "0:1")] {
            let refusal = unknown.unwrap_err();
            assert_eq!(refusal.to_string(), "device 1 does not exist; existing ids: [2, 0, 5]");
        }
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        let refused = |text| Placement::parse(text).unwrap_err().to_string();
        assert!(refused("").contains("\"\" is not a device id"));
        assert!(refused("0:").contains("\"\" is not a device id"));
        assert!(refused("0,1").contains("\"0,1\" is not a device id"));
        assert!(refused("-1").contains("\"-1\" is not a device id"));
        assert!(refused("2:0:2").contains("device 2 occurs twice"));
        let empty = Placement { devices: Vec::new() };
        assert!(empty.check().unwrap_err().to_string().contains("is empty"));
    }
}
