"""What is learned from a batch: how it is corrupted, and losses as sums with their weights."""
