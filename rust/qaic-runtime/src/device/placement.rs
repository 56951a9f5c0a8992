//! Placement of a program: one device, or several that work on it as one.

use std::fmt;

use super::DeviceId;
use crate::error::{DeviceError, ErrorDetail, InputError, RuntimeError};

/// Devices of one program, in the order of its partitions. One of them is the usual case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Their ids. [`Placement::check`] says what is possible here.
    pub devices: Vec<DeviceId>,
}

/// Devices of a program, and whether its user chose them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The devices.
    pub placement: Placement,
    /// True if the user of the program named no device.
    pub is_chosen: bool,
}

impl Placement {
    /// A single device.
    pub fn one(id: DeviceId) -> Self {
        Self { devices: vec![id] }
    }

    /// Ids joined with `:`, as in the property `devMapping`. Whether the devices exist is asked of the
    /// context.
    pub fn parse(text: &str) -> Result<Self, RuntimeError> {
        let devices = text
            .split(':')
            .map(|part| {
                part.trim().parse().map(DeviceId).map_err(|_| ErrorDetail::Input(InputError::Argument {
                    what: format!(
                        "device mapping {text:?}: {part:?} is not a device id; ids joined with ':' are expected, \
                         as in \"0:1\""
                    ),
                }))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let placement = Self { devices };
        placement.check()?;
        Ok(placement)
    }

    /// Devices that a client names out of `existing`: `device`, else those of a `mapping`, else the first.
    pub fn named(
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

    /// At least one device, and none twice.
    pub fn check(&self) -> Result<(), RuntimeError> {
        if self.devices.is_empty() {
            return Err(InputError::Argument {
                what: "the device mapping is empty; at least one device id is expected".to_owned(),
            }
            .into());
        }
        let twice = self.devices.iter().enumerate().find(|(index, id)| self.devices[..*index].contains(id));
        match twice {
            None => Ok(()),
            Some((_, id)) => Err(ErrorDetail::Input(InputError::Argument {
                what: format!(
                    "device mapping \"{self}\" names device {} twice; each partition needs a device of its own",
                    id.0
                ),
            }).into()),
        }
    }

    /// The device that answers for all of them: the first.
    pub fn first(&self) -> Option<DeviceId> {
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
    use super::*;

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
        assert!(refused("2:0:2").contains("names device 2 twice"));
        let empty = Placement { devices: Vec::new() };
        assert!(empty.check().unwrap_err().to_string().contains("is empty"));
    }
}
