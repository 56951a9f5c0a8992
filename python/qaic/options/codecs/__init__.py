"""Value types of options: from what the user wrote to one typed value."""
