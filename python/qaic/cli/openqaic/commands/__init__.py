"""The subcommands that ``openqaic`` alone has, a module each."""
