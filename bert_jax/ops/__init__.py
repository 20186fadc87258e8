"""Numerics: each with its fast form and its reference side by side."""
