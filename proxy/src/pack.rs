//! Rebuilds trees that have grown, so that their nodes are full.

/// Makes a map or a set anew. A tree that is made all at once has full nodes. In one that grows by entries in their order,
/// as it does from a full batch, nearly half of the room stays empty.
pub(crate) fn pack<T: Default + IntoIterator + FromIterator<T::Item>>(tree: &mut T) {
    *tree = std::mem::take(tree).into_iter().collect();
}
