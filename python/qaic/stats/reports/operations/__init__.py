"""Reports about operations: by kind, node and layer of the model."""
