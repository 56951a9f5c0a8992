//! Memory that two arguments share.

use std::ops::Range;

/// Finds two pieces of memory that overlap; the first number in the result is the smaller one. Pieces are numbered
/// and in any order, and this function reorders them. Empty pieces overlap nothing.
pub(crate) fn first_overlap(pieces: &mut Vec<(usize, Range<usize>)>) -> Option<(usize, usize)> {
    pieces.retain(|(_, piece)| !piece.is_empty());
    pieces.sort_unstable_by_key(|(_, piece)| piece.start);
    // In order of their starts, a piece that overlaps any later piece overlaps the next one.
    let shared = pieces.windows(2).find(|pair| pair[1].1.start < pair[0].1.end)?;
    let (one, other) = (shared[0].0, shared[1].0);
    Some((one.min(other), one.max(other)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_that_share_a_byte_overlap(
            pieces in prop::collection::vec((0_usize..40, 0_usize..8), 0..8),
        ) {
            let pieces: Vec<_> = pieces.into_iter().map(|(start, len)| start..start + len).collect();
            let share = |one: &Range<usize>, other: &Range<usize>| one.clone().any(|byte| other.contains(&byte));
            let found = first_overlap(&mut pieces.iter().cloned().enumerate().collect());
            let exists = (0..pieces.len())
                .any(|other| (0..other).any(|one| share(&pieces[one], &pieces[other])));
            prop_assert_eq!(found.is_some(), exists);
            if let Some((one, other)) = found {
                prop_assert!(one < other && share(&pieces[one], &pieces[other]));
            }
        }
    }
}
