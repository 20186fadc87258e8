"""An objective of one's own, from a Python file: docs/how-to/add-an-objective.md."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.objectives.base import ObjectiveConfig, Setting, Task
from bert_jax.python_file import run_file


@dataclass(frozen=True)
class CustomObjective:
    """The objective that a Python file defines under the name ``objective``.

    Attributes:
        file: Path of the file. ``objective`` there has a method ``task(setting)``.
    """

    file: str

    def task(self, setting: Setting) -> Task:
        """The file's objective for a setting.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It fails, or defines no objective.
        """
        found = run_file(self.file, "objective file").get("objective")
        if not isinstance(found, ObjectiveConfig):
            raise ValueError(
                f"{self.file} defines no `objective` with a method task(setting); end it with "
                f"objective = MyObjective(...)."
            )
        return found.task(setting)
