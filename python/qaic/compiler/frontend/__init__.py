"""Models as users give them: checked, with symbols and specializations."""
