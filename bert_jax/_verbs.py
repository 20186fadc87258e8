"""Packages that share their name with the one function they are about.

`bert_jax.train` is a function to those who call it and a package to those who import
`bert_jax.train.step`. Python keeps one object under that name: after the import of a submodule,
the package. So the package answers a call.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class VerbPackage(ModuleType):
    """A package that can be called: `bert_jax.train(...)` is `bert_jax.train.loop.train(...)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the package's own name, from the module the public surface names."""
        surface, _, verb = self.__name__.rpartition(".")
        home = sys.modules[surface]._HOMES[verb]
        return getattr(import_module(home), verb)(*args, **kwargs)


def make_callable(package: str) -> None:
    """Let the package being imported (its `__name__`) be called by its verb."""
    sys.modules[package].__class__ = VerbPackage
