"""The size of the source: lines of code of each crate and package, which only go down."""
