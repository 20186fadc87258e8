"""Parameter trees as flat dicts: a parameter's path is its words joined by ``/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flax.traverse_util import flatten_dict, unflatten_dict


def by_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path, such as ``encoder/layers/query/kernel``."""
    return cast(dict[str, Any], flatten_dict(params, sep="/"))


def from_paths(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested tree that `by_path` has flattened."""
    return unflatten_dict(dict(leaves), sep="/")
