"""The encoder and its heads: Linen modules over a plain nested dict of parameters."""
