"""The subcommands of ``openqaic``, one per module."""
