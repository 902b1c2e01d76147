use super::*;
#[test]
fn placeholder_is_replaced() {
    let _ = covers;
}
