//! The graph that the engine optimized: its file, and the nodes in that file.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::engine::SavePaths;
use super::engine::protobuf::{Fields, Value};
use super::profile::ProfileFolder;
use crate::error::{ErrorDetail, RuntimeError};

/// Maximum depth of nested messages, as in other protobuf readers.
const DEEPEST: usize = 100;

/// Location of the engine's graph in a folder.
#[derive(Debug)]
pub(super) struct SavePlace {
    graph: PathBuf,
    sink: PathBuf,
    /// The paths to pass to the engine.
    pub(super) paths: SavePaths,
}

impl SavePlace {
    /// Returns a file in `folder`, and a sink for constants in the same folder, because the engine cannot omit them.
    pub(super) fn inside(folder: &Path) -> Result<Self, RuntimeError> {
        let c_path = |path: &Path| {
            CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| {
                RuntimeError::argument(format!("the folder {} has a zero byte in its name", folder.display()))
            })
        };
        let graph = folder.join("optimized.onnx");
        let constants = Path::new("constants");
        let paths = SavePaths { graph: c_path(&graph)?, constants: c_path(constants)? };
        let sink = folder.join(constants);
        symlink("/dev/null", &sink)
            .map_err(|source| ErrorDetail::Io { path: sink.clone(), source: Arc::new(source) })?;
        Ok(Self { graph, sink, paths })
    }

    /// Removes the sink for constants after the engine has written the graph, and returns the path of the graph.
    pub(super) fn finish(self) -> PathBuf {
        // Some engines remove the file themselves.
        let _ = fs::remove_file(self.sink);
        self.graph
    }
}

/// A node, with the properties that identify it regardless of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GraphNode {
    pub(super) name: String,
    pub(super) kind: String,
    /// Names of the values that the node produces.
    pub(super) outputs: Vec<String>,
    /// Indices of the nodes that produce its inputs.
    pub(super) producers: Vec<usize>,
}

/// A graph that the engine writes to a temporary folder during its optimization.
#[derive(Debug)]
pub(super) struct SavedGraph {
    place: SavePlace,
    // Removes the folder with its files when dropped.
    _folder: ProfileFolder,
}

impl SavedGraph {
    /// Creates the temporary folder.
    pub(super) fn new() -> Result<Self, String> {
        let folder = ProfileFolder::new().map_err(|error| error.to_string())?;
        let place = SavePlace::inside(&folder.path).map_err(|error| error.to_string())?;
        Ok(Self { place, _folder: folder })
    }

    /// Returns the paths to pass to the engine.
    pub(super) fn paths(&self) -> &SavePaths {
        &self.place.paths
    }

    /// Returns the nodes that the engine has written; each node precedes those of its nested graphs.
    pub(super) fn nodes(self) -> Result<Vec<GraphNode>, String> {
        let bytes = fs::read(self.place.finish()).map_err(|error| error.to_string())?;
        nodes_of_model(&bytes)
    }
}

/// Returns the nodes of a serialized model. Memory use is bounded by the length of the model.
fn nodes_of_model(bytes: &[u8]) -> Result<Vec<GraphNode>, String> {
    let mut nodes = Vec::new();
    for field in Fields(bytes) {
        if let (7, Value::Bytes(graph)) = field? {
            add_graph(graph, &mut nodes, &mut Scopes::default(), 0)?;
        }
    }
    Ok(nodes)
}

/// Maps visible values to the nodes that produce them; the last map is that of the innermost graph.
#[derive(Default)]
struct Scopes<'a>(Vec<HashMap<&'a [u8], Option<usize>>>);

impl<'a> Scopes<'a> {
    fn producer(&self, value: &[u8]) -> Option<usize> {
        self.0.iter().rev().find_map(|scope| scope.get(value)).copied().flatten()
    }

    fn note(&mut self, value: &'a [u8], producer: Option<usize>) {
        if let Some(scope) = self.0.last_mut() {
            scope.insert(value, producer);
        }
    }
}

fn add_graph<'a>(
    graph: &'a [u8],
    nodes: &mut Vec<GraphNode>,
    scopes: &mut Scopes<'a>,
    depth: usize,
) -> Result<(), String> {
    if depth > DEEPEST {
        return Err(format!("the graph is not an ONNX model: graphs are nested more than {DEEPEST} deep"));
    }
    scopes.0.push(HashMap::new());
    for field in Fields(graph) {
        // Inputs hide values with the same name in outer graphs.
        if let (11, Value::Bytes(input)) = field? {
            for field in Fields(input) {
                if let (1, Value::Bytes(name)) = field? {
                    scopes.note(name, None);
                }
            }
        }
    }
    for field in Fields(graph) {
        if let (1, Value::Bytes(node)) = field? {
            add_node(node, nodes, scopes, depth)?;
        }
    }
    scopes.0.pop();
    Ok(())
}

fn add_node<'a>(
    bytes: &'a [u8],
    nodes: &mut Vec<GraphNode>,
    scopes: &mut Scopes<'a>,
    depth: usize,
) -> Result<(), String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut node = GraphNode::default();
    let mut outputs = Vec::new();
    let mut attributes = Vec::new();
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(input)) => node.producers.extend(scopes.producer(input)),
            (2, Value::Bytes(output)) if !output.is_empty() => outputs.push(output),
            (3, Value::Bytes(name)) => node.name = text(name),
            (4, Value::Bytes(kind)) => node.kind = text(kind),
            (5, Value::Bytes(attribute)) => attributes.push(attribute),
            _ => {}
        }
    }
    node.producers.sort_unstable();
    node.producers.dedup();
    node.outputs = outputs.iter().map(|output| text(output)).collect();
    let place = nodes.len();
    nodes.push(node);
    for attribute in attributes {
        for field in Fields(attribute) {
            if let (6 | 11, Value::Bytes(graph)) = field? {
                add_graph(graph, nodes, scopes, depth + 1)?;
            }
        }
    }
    for output in outputs {
        scopes.note(output, Some(place));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let [length, high] = [bytes.len() & 0x7f, bytes.len() >> 7].map(|part| u8::try_from(part).unwrap());
        [&[number << 3 | 2, length | 0x80, high], bytes].concat()
    }

    fn node(kind: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
        let rest = [field(2, output.as_bytes()), field(3, b"same"), field(4, kind.as_bytes())].concat();
        let attributes: Vec<u8> = attributes.iter().flat_map(|bytes| field(5, bytes)).collect();
        field(1, &[inputs, rest, attributes].concat())
    }

    fn input(name: &str) -> Vec<u8> {
        field(11, &field(1, name.as_bytes()))
    }

    fn seen(model: &[u8]) -> Vec<(String, Vec<usize>)> {
        let nodes = nodes_of_model(model).unwrap();
        assert!(nodes.iter().all(|node| node.name == "same" && node.outputs.len() == 1));
        nodes.into_iter().map(|node| (node.kind, node.producers)).collect()
    }

    #[test]
    fn nodes_of_nested_graphs_read_what_is_around_them() {
        let body = [
            node("Neg", &["hidden"], "n", &[]),
            node("Add", &["n", "a"], "o", &[]),
            // The inputs may follow the nodes in the file.
            input("hidden"),
        ];
        let attribute = field(6, &body.concat());
        let graph = [
            node("Abs", &["x"], "a", &[]),
            node("Exp", &["a"], "hidden", &[]),
            node("Loop", &["", "a", "hidden", "a"], "l", &[attribute]),
            node("Sub", &["l", "o"], "y", &[]),
        ];
        let expected = [
            ("Abs", vec![]),
            ("Exp", vec![0]),
            ("Loop", vec![0, 1]),
            ("Neg", vec![]),
            ("Add", vec![0, 3]),
            // Names inside a subgraph are not visible outside.
            ("Sub", vec![2]),
        ]
        .map(|(kind, producers)| (kind.to_owned(), producers));
        assert_eq!(seen(&field(7, &graph.concat())), expected);
    }

    #[test]
    fn graphs_too_deep_in_each_other_are_refused() {
        let deep = (0..40).fold(Vec::new(), |graph, _| field(1, &field(5, &field(6, &graph))));
        assert_eq!(nodes_of_model(&field(7, &deep)).unwrap().len(), 40);
        assert!(nodes_of_model(&[0x3a]).is_err());
    }

    proptest! {
        #[test]
        fn nodes_of_any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = nodes_of_model(&bytes);
            let _ = nodes_of_model(&field(7, &bytes));
            let _ = nodes_of_model(&field(7, &field(1, &bytes)));
        }
    }
}
