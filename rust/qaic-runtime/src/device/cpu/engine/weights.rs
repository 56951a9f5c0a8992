//! The initializers of a plan as tensors, used where they are mapped.

use std::ffi::CString;

use qaic_qpc::plan::Plan;

use super::encoded::{self, Elements};
use super::graph::Purpose;
use super::library::Engine;
use super::value::{Shape, Value, c_name, element_type};
use crate::device::cpu::executable::Constants;

/// The initializers of a plan as tensors, with the memory that they are in.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) names: Vec<CString>,
    pub(super) values: Vec<Value>,
    // Those that the container has in blocks.
    _decoded: Vec<Elements>,
    _constants: Constants,
}

impl Weights {
    /// Tensors over the bytes, or over what they decode to; over zeros of that size where it only has to be built.
    pub(super) fn of_plan(
        engine: &'static Engine,
        plan: &Plan,
        constants: &Constants,
        purpose: Purpose,
    ) -> Result<Self, String> {
        let mut names = Vec::with_capacity(plan.initializers.len());
        let mut values = Vec::with_capacity(plan.initializers.len());
        let mut decoded = Vec::new();
        for initializer in &plan.initializers {
            let bytes = initializer.bytes(constants.bytes()).map_err(|error| error.to_string())?;
            let name = c_name(&initializer.name)?;
            let shape = Shape::new(&initializer.name, initializer.dtype, &initializer.dims)?;
            let address = match initializer.encoding.as_deref() {
                None => bytes.as_ptr(),
                Some(encoding) => {
                    let elements = match purpose {
                        Purpose::Run => encoded::decode(initializer, encoding, bytes)?,
                        Purpose::Check => encoded::zeros(initializer, encoding, bytes)?,
                    };
                    let address = elements.address();
                    decoded.push(elements);
                    address
                }
            };
            let dtype = element_type(initializer.dtype);
            // SAFETY: the bytes are those of the shape and aligned for its type, as `Initializer::bytes` and `encoded`
            // check; `Constants` never move and elements lie on the heap, and both live as long as the value. The C
            // interface has no const tensors; kernels never write initializers.
            values.push(unsafe { Value::new(engine, dtype, &shape, address.cast_mut()) }?);
            names.push(name);
        }
        Ok(Self { names, values, _decoded: decoded, _constants: constants.clone() })
    }
}
