"""What every layer stands on: whole files, text for people, YAML and JSON as files hold them."""
