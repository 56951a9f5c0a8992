//! Integers of callers. A number out of range is an error with a name, not a silent overflow.

use std::ops::RangeInclusive;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::status::{Answer, refused};

/// Reads an integer and clamps it to the type. No device, binding or count is as large as the limits.
pub(crate) fn whole(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            let is_negative = value.call_method0("__index__")?.lt(0)?;
            Ok(if is_negative { i64::MIN } else { i64::MAX })
        }
        number => number,
    }
}

/// Reads the attribute `name` of some properties, which must be in `range`.
pub(crate) fn property(properties: &Bound<'_, PyAny>, name: &str, range: RangeInclusive<u32>) -> Answer<u32> {
    let value = properties.getattr(name)?;
    let number = whole(&value).ok().and_then(|number| u32::try_from(number).ok());
    Ok(number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (first, last) = range.into_inner();
        refused(format!("{name} is {value:?}; a number from {first} to {last} is expected"))
    })?)
}
