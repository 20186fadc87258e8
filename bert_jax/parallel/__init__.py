"""The device mesh, and the few named PartitionSpecs of parameters and activations."""
