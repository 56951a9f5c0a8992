//! Matching of the nodes of a loaded graph to described operations.
//!
//! The compiler describes the graph that the engine created in the compiler's process. The engine creates the graph
//! again at each load. The names of added nodes then differ, even on the same host, because their numbers depend on
//! object addresses. Two nodes therefore match if they produce the same value of the program. If the engine has named
//! the values itself, nodes match if they have the same position between matching nodes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::optimized_graph::GraphNode;

/// Returns, for each node of `loaded`, its index in `described`.
///
/// No index occurs twice. A node has no index if the other graph has no such node, for example with another engine or
/// on another processor.
pub(super) fn match_nodes(described: &[GraphNode], loaded: &[GraphNode]) -> Vec<Option<usize>> {
    let mut matching = Matching {
        described: Side { nodes: described, pairs: vec![None; described.len()] },
        loaded: Side { nodes: loaded, pairs: vec![None; loaded.len()] },
    };
    matching.by_value();
    matching.by_place();
    matching.by_name();
    matching.loaded.pairs
}

struct Matching<'a> {
    described: Side<'a>,
    loaded: Side<'a>,
}

/// Nodes of one graph.
struct Side<'a> {
    nodes: &'a [GraphNode],
    // Indexed by node; the index of the matching described node.
    pairs: Vec<Option<usize>>,
}

impl Matching<'_> {
    fn pair(&mut self, described: usize, loaded: usize) {
        if self.described.pairs[described].is_none() && self.loaded.pairs[loaded].is_none() {
            self.described.pairs[described] = Some(described);
            self.loaded.pairs[loaded] = Some(described);
        }
    }

    /// Pairs nodes of one kind that produce a value of the same name. The description contains only names of program
    /// values.
    fn by_value(&mut self) {
        let values: HashMap<(&str, &str), usize> = self
            .described
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(place, node)| node.outputs.iter().map(move |name| ((&*node.kind, &**name), place)))
            .collect();
        for (place, node) in self.loaded.nodes.iter().enumerate() {
            let described = node.outputs.iter().find_map(|name| values.get(&(&*node.kind, &**name)));
            if let Some(&described) = described {
                self.pair(described, place);
            }
        }
    }

    /// Pairs nodes of one kind with the same predecessors and successors.
    fn by_place(&mut self) {
        let mut groups: HashMap<u64, [Vec<usize>; 2]> = HashMap::new();
        for (side, number) in [(&self.described, 0), (&self.loaded, 1)] {
            for (place, surroundings) in side.unpaired().zip(side.surroundings()) {
                groups.entry(surroundings).or_default()[number].push(place);
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_unstable();
        for [described, loaded] in groups {
            // The compared properties do not distinguish these nodes, so equal names decide.
            let names: HashMap<&str, usize> =
                described.iter().map(|&place| (&*self.described.nodes[place].name, place)).collect();
            for &place in &loaded {
                if let Some(&same) = names.get(&*self.loaded.nodes[place].name) {
                    self.pair(same, place);
                }
            }
            let left = |side: &Side<'_>, places: &[usize]| -> Vec<usize> {
                places.iter().copied().filter(|&place| side.pairs[place].is_none()).collect()
            };
            let pairs = left(&self.described, &described).into_iter().zip(left(&self.loaded, &loaded));
            pairs.for_each(|(described, loaded)| self.pair(described, loaded));
        }
    }

    /// Pairs nodes of one kind and name, in graphs that differ. Names with numbers of the engine are ignored.
    fn by_name(&mut self) {
        let names: HashMap<(&str, &str), usize> = self
            .described
            .unpaired()
            .map(|place| (place, &self.described.nodes[place]))
            .filter(|(_, node)| !is_numbered(node))
            .map(|(place, node)| ((&*node.kind, &*node.name), place))
            .collect();
        for place in self.loaded.unpaired().collect::<Vec<_>>() {
            let node = &self.loaded.nodes[place];
            if let Some(&described) = names.get(&(&*node.kind, &*node.name)) {
                self.pair(described, place);
            }
        }
    }
}

impl Side<'_> {
    fn unpaired(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&place| self.pairs[place].is_none())
    }

    /// Returns, for each unpaired node, a number that represents the node and its neighbors up to paired nodes.
    fn surroundings(&self) -> impl Iterator<Item = u64> {
        let mut consumers = vec![Vec::new(); self.nodes.len()];
        for (place, node) in self.nodes.iter().enumerate() {
            node.producers.iter().for_each(|&producer| consumers[producer].push(place));
        }
        let count = self.nodes.len();
        let before = self.numbers(0..count, |place| &self.nodes[place].producers);
        let behind = self.numbers((0..count).rev(), |place| &consumers[place]);
        self.unpaired().map(|place| hash((before[place], behind[place]))).collect::<Vec<_>>().into_iter()
    }

    /// Computes a number for each node from the numbers of its neighbors on one side, which precede the node in
    /// `order`.
    fn numbers<'n>(
        &self,
        order: impl Iterator<Item = usize>,
        neighbors: impl Fn(usize) -> &'n Vec<usize>,
    ) -> Vec<u64> {
        let mut numbers = vec![0; self.nodes.len()];
        for place in order {
            numbers[place] = if let Some(pair) = self.pairs[place] {
                hash((0_u8, pair))
            } else {
                let mut around: Vec<u64> = neighbors(place).iter().map(|&next| numbers[next]).collect();
                around.sort_unstable();
                hash((1_u8, &self.nodes[place].kind, around))
            };
        }
        numbers
    }
}

fn is_numbered(node: &GraphNode) -> bool {
    node.name.strip_prefix(&*node.kind).is_some_and(|rest| {
        rest.is_empty()
            || rest
                .strip_prefix("_token_")
                .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

fn hash(value: impl Hash) -> u64 {
    // The order is the same in every process, so that ambiguous cases have the same result.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, kind: &str, outputs: &[&str], producers: &[usize]) -> GraphNode {
        GraphNode {
            name: name.to_owned(),
            kind: kind.to_owned(),
            outputs: outputs.iter().map(|&output| output.to_owned()).collect(),
            producers: producers.to_vec(),
        }
    }

    fn places(described: &[GraphNode], loaded: &[GraphNode]) -> Vec<Option<usize>> {
        match_nodes(described, loaded)
    }

    /// Two convolutions in a layout of the engine; a node after each of them produces the value of the
    /// program.
    fn laid_out(names: [&str; 6], values: [&str; 4]) -> Vec<GraphNode> {
        let [into, first, out, into2, second, out2] = names;
        let [laid_out, result, laid_out2, result2] = values;
        vec![
            node(into, "ReorderInput", &[laid_out], &[]),
            node(first, "Conv", &[result], &[0]),
            node(out, "ReorderOutput", &["r1"], &[1]),
            node(into2, "ReorderInput", &[laid_out2], &[2]),
            node(second, "Conv", &[result2], &[3]),
            node(out2, "ReorderOutput", &["r2"], &[4]),
        ]
    }

    #[test]
    fn nodes_with_exchanged_names_are_matched_by_their_values_and_places() {
        let names = ["ReorderInput", "a_nchwc", "ReorderOutput", "ReorderInput_token_3", "b_nchwc"];
        let [into, first, out, into2, second] = names;
        let out2 = "ReorderOutput_token_4";
        let mut described = laid_out([into, first, out, into2, second, out2], ["", "", "", ""]);
        for node in &mut described {
            node.outputs.retain(|output| !output.is_empty());
        }
        let loaded = laid_out([into2, first, out2, into, second, out], ["t1", "t2", "t3", "t4"]);
        assert_eq!(places(&described, &loaded), [0, 1, 2, 3, 4, 5].map(Some));
        let backwards: Vec<GraphNode> = vec![
            // The order of the graph may differ too.
            node("z", "ReorderInput", &["t1"], &[]),
            node(first, "Conv", &["t2"], &[0]),
            node(out2, "ReorderOutput", &["r1"], &[1]),
        ];
        assert_eq!(places(&described, &backwards), [0, 1, 2].map(Some));
    }

    #[test]
    fn branches_that_join_are_matched_by_what_is_behind_them() {
        let described = [
            node("p", "Reorder", &[], &[]),
            node("q", "Reorder", &[], &[]),
            node("c", "Conv", &["left"], &[0]),
            node("d", "Conv", &["right"], &[1]),
        ];
        let loaded = [
            node("q", "Reorder", &["t"], &[]),
            node("x", "Conv", &["right"], &[0]),
            node("p", "Reorder", &["u"], &[]),
            node("y", "Conv", &["left"], &[2]),
        ];
        assert_eq!(places(&described, &loaded), [1, 3, 0, 2].map(Some));
    }

    #[test]
    fn nodes_that_only_one_graph_has_are_left_over() {
        let described = [
            node("a", "Conv", &["v"], &[]),
            node("own", "Mul", &[], &[0]),
            node("Reorder_token_1", "Reorder", &[], &[1]),
        ];
        let loaded = [
            // The same value with another operator, a name of the model, a number of the engine, a new name.
            node("a", "FusedConv", &["v"], &[]),
            node("own", "Mul", &["t"], &[0]),
            node("Reorder_token_1", "Reorder", &["u"], &[0]),
            node("b", "Neg", &["w"], &[2]),
        ];
        assert_eq!(places(&described, &loaded), [None, Some(1), None, None]);
        assert_eq!(places(&[], &loaded), [None; 4]);
        assert!(places(&described, &[]).is_empty());
    }

    fn graphs() -> impl Strategy<Value = Vec<GraphNode>> {
        let any_node = (0..3_usize, any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..3));
        prop::collection::vec(any_node, 0..24).prop_map(|drawn| {
            let made = |(place, (kind, is_known, read)): (usize, (usize, bool, Vec<prop::sample::Index>))| {
                let producers =
                    if place == 0 { Vec::new() } else { read.iter().map(|at| at.index(place)).collect() };
                let output = format!("v{place}");
                let outputs = if is_known { vec![output] } else { Vec::new() };
                GraphNode { name: format!("n{place}"), kind: format!("K{kind}"), outputs, producers }
            };
            drawn.into_iter().enumerate().map(made).collect()
        })
    }

    proptest! {
        #[test]
        fn graphs_match_themselves_however_their_nodes_are_called(graph in graphs(), names in any::<u64>()) {
            let renamed: Vec<GraphNode> = graph
                .iter()
                .enumerate()
                .map(|(place, node)| GraphNode { name: format!("n{}", hash((names, place)) % 24), ..node.clone() })
                .collect();
            let pairs = match_nodes(&graph, &renamed);
            let mut taken: Vec<usize> = pairs.iter().copied().flatten().collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..graph.len()).collect::<Vec<_>>());
            for (place, pair) in pairs.iter().enumerate() {
                let pair = pair.unwrap();
                prop_assert_eq!(&graph[pair].kind, &graph[place].kind);
                prop_assert!(graph[place].outputs.is_empty() || pair == place);
            }
        }

        #[test]
        fn no_place_is_given_twice(described in graphs(), loaded in graphs()) {
            let mut taken: Vec<usize> = match_nodes(&described, &loaded).into_iter().flatten().collect();
            let count = taken.len();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), count);
        }
    }
}
