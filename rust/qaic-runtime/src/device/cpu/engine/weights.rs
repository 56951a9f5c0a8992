//! Tensors over the initializers of a plan, in their mapped memory.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use qaic_qpc::plan::Plan;
use qaic_qpc::wire::put_bytes;

use super::encoded::{self, Elements};
use super::graph::Purpose;
use super::library::Engine;
use super::value::{Shape, Value, c_name, element_type};
use crate::device::cpu::executable::Constants;

/// Field number of `ModelProto.graph`.
const MODEL_GRAPH: u32 = 7;
/// Field number of `GraphProto.output`.
const GRAPH_OUTPUT: u32 = 12;
/// Field number of `ValueInfoProto.name`.
const VALUE_INFO_NAME: u32 = 1;

/// Tensors over the initializers of a plan, together with their memory.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) names: Vec<CString>,
    pub(super) values: Vec<Value>,
    // Weights that the container stores in blocks.
    _decoded: Vec<Elements>,
    _constants: Constants,
}

impl Weights {
    /// Creates tensors over the initializers' bytes, or over their decoded values. For a check of the graph, creates
    /// zeros of the same size instead.
    pub(super) fn of_plan(
        engine: &'static Engine,
        plan: &Plan,
        constants: &Constants,
        purpose: Purpose,
    ) -> Result<Self, String> {
        let mut names = Vec::with_capacity(plan.initializers.len());
        let mut values = Vec::with_capacity(plan.initializers.len());
        let mut decoded = Vec::new();
        // The engine has no tensor for a weight with a layout (`own_operators`).
        for initializer in plan.initializers.iter().filter(|initializer| initializer.layout.is_none()) {
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
            // check; `Constants` never move and elements are on the heap, and both live as long as the value. The C
            // interface has no const tensors; kernels never write initializers.
            values.push(unsafe { Value::new(engine, dtype, &shape, address.cast_mut()) }?);
            names.push(name);
        }
        Ok(Self { names, values, _decoded: decoded, _constants: constants.clone() })
    }

    /// Returns the graph with every weight as an additional output, which no inference requests.
    ///
    /// The engine's transpose optimizer permutes or reshapes a constant in place if it knows all readers of the
    /// constant. The session would then use the original value under the same name, which is not permuted. The
    /// optimizer does not know the reader of an output, so it creates a new constant instead (docs/adr/0005).
    pub(super) fn pinned_in<'a>(&self, graph: &'a [u8], plan: &Plan) -> Cow<'a, [u8]> {
        if self.names.is_empty() {
            return Cow::Borrowed(graph);
        }
        let is_output =
            |name: &CStr| plan.outputs.iter().any(|output| output.name.as_bytes() == name.to_bytes());
        let mut outputs = Vec::new();
        for name in self.names.iter().filter(|name| !is_output(name)) {
            let mut value_info = Vec::new();
            put_bytes(&mut value_info, VALUE_INFO_NAME, name.to_bytes());
            put_bytes(&mut outputs, GRAPH_OUTPUT, &value_info);
        }
        // Parsers join a message that is written in two parts.
        let mut pinned = graph.to_vec();
        put_bytes(&mut pinned, MODEL_GRAPH, &outputs);
        Cow::Owned(pinned)
    }
}
