"""What a compiled program moves between devices, read from its HLO text.

`collectives` lists the collective operations of an optimized module (``Compiled.as_text()``), with
the bytes each moves and how often a run of the program executes it. The text is the only account
of them that every backend gives: ``cost_analysis()`` knows no collectives and counts loop bodies
once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
REDUCTIONS = ("all-reduce", "reduce-scatter")

# Widths of the types whose name does not end in it, as f32 and bf16 do.
_BITS = {"pred": 8, "token": 0, "opaque": 0}

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)", re.DOTALL)
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|\b(?:branch_computations|called_computations)=\{([^}]*)\}"
)
# replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'a','b':(1)2}
_MESH_GROUPS = re.compile(
    r"replica_groups=@?\w*\[((?:'[^']+'=\d+,?)*)\](?:, device_ids=\(.*?\))? \{([^}]*)\}"
)
# A TPU spreads one transfer over several fusions, each of which repeats the instruction; the first
# has the flag -1.
_LATER_PIECE = re.compile(r'"async_collective_fusion_config":\{"flag_start":"\d')


@dataclass(frozen=True)
class Collective:
    """A collective operation of a program, one element type of it.

    An operation that moves several arrays at once is one record for each element type among them;
    a ``-start`` and its ``-done`` are one operation.

    Attributes:
        kind: One of `KINDS`.
        bytes: Payload of one execution on one device: the larger of what the device puts in and
            what it gets out. So the whole array for an all-reduce (operand), an all-gather
            (result) and a reduce-scatter (operand), and what a device sends in the others. It is
            not what crosses the wires, which depends on the algorithm: a ring sends ``2 (n-1)/n``
            payloads for an all-reduce, ``(n-1)/n`` for the two halves of it.
        dtype: Element type in HLO's notation: ``f32``, ``bf16``, ``s32``, ...
        group_size: Devices that exchange with each other.
        trips: How often one run of the program executes it: the product of the trip counts of the
            loops around it.
        name: Of the instruction.
    """

    kind: str
    bytes: int
    dtype: str
    group_size: int
    trips: int
    name: str

    @property
    def total_bytes(self) -> int:
        """Payload of a run of the program: all executions together."""
        return self.bytes * self.trips


def collectives(text: str) -> list[Collective]:
    """Lists the collectives of a module, in the order in which they stand in the program.

    Every branch of a conditional counts, as if all were taken: an upper bound. Exchanges within
    groups of one device move nothing and are left out.

    Args:
        text: An HLO module, as ``Compiled.as_text()`` gives it.

    Raises:
        ValueError: If the text is no HLO module, or a loop around a collective has no constant
            trip count.
    """
    module = _Module.parse(text)
    return list(module.collectives(module.entry, 1))


def total_bytes(operations: list[Collective]) -> int:
    """Payload of all operations, executions included."""
    return sum(operation.total_bytes for operation in operations)


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def called(self) -> list[str]:
        """Computations this instruction runs."""
        names = []
        for one, several in _CALLED.findall(self.attributes):
            names += [one] if one else [name.strip().lstrip("%") for name in several.split(",")]
        return names


@dataclass
class _Module:
    """Computations by name, in order; ``devices`` is replicas x partitions."""

    devices: int
    entry: str = ""
    computations: dict[str, dict[str, _Instruction]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> _Module:
        lines = _logical_lines(text)
        header = next(lines, "")
        if not header.startswith("HloModule"):
            raise ValueError(f"not an HLO module: it begins with {header[:40]!r}.")
        counts = re.findall(r"\b(?:replica_count|num_partitions)=(\d+)", header)
        module = cls(math.prod(map(int, counts)))
        current: dict[str, _Instruction] = {}
        for line in lines:
            if head := _COMPUTATION.fullmatch(line):
                current = module.computations.setdefault(head[1], {})
                if line.startswith("ENTRY"):
                    module.entry = head[1]
            elif found := _INSTRUCTION.fullmatch(line):
                current[found[1]] = _instruction(found[1], found[2])
        return module

    def collectives(self, computation: str, trips: int) -> Iterator[Collective]:
        """Those that one call of ``computation`` runs; each as often as ``trips`` times that."""
        for instruction in self.computations[computation].values():
            opcode = instruction.opcode.removesuffix("-start")
            if opcode in KINDS:
                if _LATER_PIECE.search(instruction.attributes):
                    continue
                yield from self._records(instruction, opcode, computation, trips)
            elif opcode == "while":
                yield from self._loop(instruction, trips)
            elif not opcode.endswith(("-done", "-update")):  # these name their start's computation
                for called in instruction.called():
                    yield from self.collectives(called, trips)

    def _loop(self, instruction: _Instruction, trips: int) -> Iterator[Collective]:
        inside = [c for name in instruction.called() for c in self.collectives(name, trips)]
        if not inside:
            return
        count = self._trip_count(instruction)
        if count is None:
            raise ValueError(
                f"the loop {instruction.name} runs {inside[0].kind} {inside[0].name} and has no "
                f"constant trip count; what it moves cannot be counted."
            )
        for c in inside:
            yield Collective(c.kind, c.bytes, c.dtype, c.group_size, c.trips * count, c.name)

    def _trip_count(self, loop: _Instruction) -> int | None:
        """The compiler's own count, or the bound in the condition (jax counts from 0 by 1)."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = re.search(r"\bcondition=%?([\w.\-]+)", loop.attributes)
        pending, bounds = [condition[1]] if condition else [], set()
        while pending:
            for instruction in self.computations[pending.pop()].values():
                pending += instruction.called()
                if instruction.opcode == "constant" and instruction.operands[0].isdigit():
                    bounds.add(int(instruction.operands[0]))
        return bounds.pop() if len(bounds) == 1 else None

    def _records(
        self, instruction: _Instruction, kind: str, computation: str, trips: int
    ) -> Iterator[Collective]:
        group = self._group_size(instruction)
        if group == 1:
            return
        sizes: dict[str, int] = {}
        scope = self.computations[computation]
        for operand in instruction.operands:
            for dtype, size in _arrays(scope[operand].type):
                sizes[dtype] = sizes.get(dtype, 0) + size
        factor = group if kind == "all-gather" else 1
        for dtype, size in sizes.items():
            yield Collective(kind, size * factor, dtype, group, trips, instruction.name)

    def _group_size(self, instruction: _Instruction) -> int:
        """Devices a group, from each way the text has of writing groups."""
        text = instruction.attributes
        if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", text):
            moved = [a for a, b in re.findall(r"(\d+),(\d+)", pairs[1]) if a != b]
            return max(1, len(moved))
        if explicit := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
            return explicit[1].count(",") + 1
        if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", text):
            return int(iota[1])
        if named := _MESH_GROUPS.search(text):
            sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
            axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])  # ('a', ''), ('b', '2')
            return math.prod(int(part or sizes[axis]) for axis, part in axes)
        if "replica_groups={}" in text:
            return self.devices
        raise ValueError(f"cannot read the groups of {instruction.name}: {text[:200]!r}.")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines of the module; a string in an attribute may hold raw newlines, which are joined."""
    joined = ""
    for line in text.splitlines():
        joined = f"{joined}\n{line}" if joined else line
        quotes = joined.count('"') - joined.count('\\"')
        if quotes % 2 == 0:
            yield joined
            joined = ""


def _instruction(name: str, right: str) -> _Instruction:
    """``name = TYPE opcode(operands), attributes``."""
    type_end = _closing(right, 0) if right.startswith("(") else _type_end(right)
    found = _OPCODE.match(right, type_end)
    if not found:
        raise ValueError(f"cannot read the HLO instruction {name} = {right[:60]!r}.")
    end = _closing(right, found.end() - 1)
    operands = right[found.end() : end - 1]
    if found[1] in ("constant", "parameter"):
        names = (operands,)
    else:
        names = tuple(re.findall(r"%([\w.\-]+)", operands))
    return _Instruction(name, right[:type_end], found[1], names, right[end:])


def _type_end(text: str) -> int:
    """End of an array type with its layout: the first blank (layouts hold none)."""
    return text.index(" ")


def _closing(text: str, start: int) -> int:
    """Index after the bracket that closes the one at ``start``."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError(f"unbalanced brackets in HLO: {text[start : start + 60]!r}.")


def _arrays(type_text: str) -> Iterator[tuple[str, int]]:
    """Element type and bytes of every array in a type, which may be a tuple."""
    for dtype, dims in _ARRAY.findall(type_text):
        bits = _BITS[dtype] if dtype in _BITS else int(re.findall(r"\d+", dtype)[0])
        yield dtype, math.prod(int(d) for d in dims.split(",") if d) * bits // 8
