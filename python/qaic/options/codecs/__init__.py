"""Value types of options: convert user input to typed values."""
