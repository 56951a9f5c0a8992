"""The basis of all layers: whole files, text for people, YAML and JSON as files hold them."""
