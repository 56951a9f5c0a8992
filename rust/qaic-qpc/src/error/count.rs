//! Numbers of things in messages.

use std::fmt::Display;

/// Returns a number of things, such as `1 core` and `2 cores`.
pub fn counted(number: impl Copy + Display, name: &str) -> String {
    let number = number.to_string();
    let ending = if number == "1" { "" } else { "s" };
    format!("{number} {name}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thing_is_singular() {
        assert_eq!(
            ["0 cores", "1 core", "2 cores", "11 cores"].map(str::to_owned),
            [0, 1, 2, 11].map(|number| counted(number, "core"))
        );
    }
}
