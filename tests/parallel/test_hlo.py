"""Collectives read from HLO: snippets written by hand, and programs compiled for 8 CPU devices."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.parallel.hlo import Collective, collectives, total_bytes
from bert_jax.parallel.mesh import MeshShape, make_mesh

HEADER = "HloModule test, is_scheduled=true, replica_count=1, num_partitions=8\n\n"
ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

"""


def entry(body: str, before: str = "") -> str:
    """A module whose entry computation has the instructions ``body``."""
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    return f"{HEADER}{ADD}{before}ENTRY %main (p: f32[4,128]) -> f32[] {{\n{lines}\n}}\n"


def loop(trips: str, body: str) -> str:
    """A ``while`` with ``body`` inside and an attribute or a bound that says how often."""
    bound, known = (trips, "") if trips.isdigit() else ("0", trips)
    limit = (
        f"s32[] constant({bound})" if trips.isdigit() else "s32[] get-tuple-element(%q), index=1"
    )
    computations = f"""%body (t: (s32[], f32[256])) -> (s32[], f32[256]) {{
  %t = (s32[], f32[256]{{0:T(256)S(1)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%t), index=0
  %g = f32[256]{{0:T(256)S(1)}} get-tuple-element(%t), index=1
  {body}
  ROOT %out = (s32[], f32[256]) tuple(%i, %g)
}}

%condition (q: (s32[], f32[256])) -> pred[] {{
  %q = (s32[], f32[256]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = {limit}
  ROOT %less = pred[]{{:T(512)}} compare(%j, %limit), direction=LT
}}

"""
    return entry(
        f"%w = (s32[], f32[256]) while(%p), condition=%condition, body=%body{known}", computations
    )


REDUCE = "all-reduce(%g), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add"


@pytest.mark.parametrize(
    ("kind", "result", "groups", "expected"),
    [
        ("all-reduce", "f32[4,128]{1,0}", "replica_groups={{0,1,2,3},{4,5,6,7}}", (2048, 4)),
        ("all-reduce", "f32[4,128]", "replica_groups={}", (2048, 8)),
        # The payload of a gather is its result, of a scatter its operand: the larger side.
        ("all-gather", "f32[16,128]", "replica_groups=[2,4]<=[4,2]T(1,0)", (4 * 2048, 4)),
        ("reduce-scatter", "f32[2,128]", "replica_groups=[4,2]<=[8]", (2048, 2)),
        (
            "all-to-all",
            "f32[4,128]",
            "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
            (2048, 4),
        ),
        ("all-to-all", "f32[4,128]", "replica_groups=mesh['a'=2,'b'=4] {'a','b':(1)2}", (2048, 4)),
        (
            "collective-permute",
            "f32[4,128]",
            "source_target_pairs={{0,1},{1,2},{2,0},{3,3}}",
            (2048, 3),
        ),
    ],
)
def test_payload_and_group(kind, result, groups, expected):
    text = entry(
        "%p = f32[4,128]{1,0:T(8,128)S(1)} parameter(0)\n"
        f"%r = {result} {kind}(%p), channel_id=1, {groups}, dimensions={{0}}, to_apply=%add"
    )
    assert collectives(text) == [Collective(kind, expected[0], "f32", expected[1], 1, "r")]


def test_a_group_of_one_moves_nothing():
    text = entry(
        "%p = f32[4,128] parameter(0)\n"
        "%r = f32[4,128] all-reduce(%p), replica_groups={{0},{1},{2},{3}}, to_apply=%add\n"
        "%c = f32[4,128] collective-permute(%p), source_target_pairs={{0,0},{1,1}}"
    )
    assert collectives(text) == []


def test_variadic_operation_is_counted_by_element_type():
    text = entry("""
        %p = f32[4,128] parameter(0)
        %b = bf16[7]{0:T(128)(2,1)} convert(%p)
        %c = f32[] constant(0)
        %r = (f32[4,128], bf16[7], /*index=2*/f32[]) all-reduce(%p, %b, /*=2*/%c), replica_groups={}
    """)
    assert collectives(text) == [
        Collective("all-reduce", 2048 + 4, "f32", 8, 1, "r"),
        Collective("all-reduce", 14, "bf16", 8, 1, "r"),
    ]


def test_start_and_done_are_one_operation():
    text = entry("""
        %p = f32[4,128] parameter(0)
        %s = (f32[4,128], f32[32,128]) all-gather-start(%p), replica_groups={}, dimensions={0}
        %d = f32[32,128] all-gather-done(%s)
        %t = f32[4,128] all-reduce-start(%p), replica_groups={}, to_apply=%add
        %e = f32[4,128] all-reduce-done(%t)
    """)
    assert [(c.kind, c.bytes) for c in collectives(text)] == [
        ("all-gather", 32 * 128 * 4),
        ("all-reduce", 2048),
    ]


def test_wrapped_asynchronous_operation_and_fusion_are_entered_once():
    inside = """%wrapped (a: bf16[8]) -> bf16[1] {
  %a = bf16[8] parameter(0)
  ROOT %r = bf16[1] reduce-scatter(%a), replica_groups={}, dimensions={0}, to_apply=%add
}

%fused (b: f32[8]) -> f32[1] {
  %b = f32[8] parameter(0)
  %f = f32[8] all-reduce(%b), replica_groups={}, to_apply=%add
  ROOT %sl = f32[1] slice(%f), slice={[0:1]}
}

"""
    text = entry(
        """
        %p = f32[4,128] parameter(0)
        %s = ((bf16[8]), bf16[1], s32[]) async-start(%p), calls=%wrapped
        %u = ((bf16[8]), bf16[1], s32[]) async-update(%s), calls=%wrapped
        %d = bf16[1] async-done(%u), calls=%wrapped
        %x = f32[1] fusion(%p), kind=kLoop, calls=%fused
        """,
        inside,
    )
    assert [(c.kind, c.bytes, c.dtype) for c in collectives(text)] == [
        ("reduce-scatter", 16, "bf16"),
        ("all-reduce", 32, "f32"),
    ]


def test_transfer_that_a_tpu_spreads_over_fusions_is_one_operation():
    def piece(name: str, flag: str) -> str:
        config = f'"async_collective_fusion_config":{{"flag_start":"{flag}","flag_end":"{flag}"}}'
        return f"""%{name} (a: f32[8]) -> f32[64] {{
  %a = f32[8] parameter(0)
  ROOT %{name}.g = f32[64] all-gather(%a), replica_groups={{}}, dimensions={{0}}, backend_config={{{config}}}
}}

"""  # noqa: E501

    text = entry(
        """
        %p = f32[8] parameter(0)
        %async-collective-start = f32[64] fusion(%p), kind=kCustom, calls=%start
        %between = f32[64] fusion(%p), kind=kOutput, calls=%middle
        %async-collective-done = f32[64] fusion(%p), kind=kCustom, calls=%end
        """,
        piece("start", "-1") + piece("middle", "2") + piece("end", "2"),
    )
    assert collectives(text) == [Collective("all-gather", 256, "f32", 8, 1, "start.g")]


@pytest.mark.parametrize(
    "trips", ["12", ', backend_config={"known_trip_count":{"n":"12"},"known_init_step":{}}']
)
def test_loop_bodies_count_as_often_as_they_run(trips):
    found = collectives(loop(trips, f"%r = f32[256] {REDUCE}"))
    assert found == [Collective("all-reduce", 1024, "f32", 4, 12, "r")]
    assert found[0].total_bytes == total_bytes(found) == 12 * 1024


def test_loop_without_a_constant_count():
    no_count = ", frontend_attributes={}"
    assert collectives(loop(no_count, "%r = f32[256] negate(%g)")) == []  # nothing to count
    with pytest.raises(ValueError, match="loop w runs all-reduce r and has no constant trip count"):
        collectives(loop(no_count, f"%r = f32[256] {REDUCE}"))


def test_every_branch_of_a_conditional_counts():
    branch = """%one (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  ROOT %r = f32[8] all-reduce(%a), replica_groups={}, to_apply=%add
}

"""
    both = branch + branch.replace("%one", "%two").replace("8]", "2]")
    text = entry(
        "%p = s32[] parameter(0)\n"
        "%c = f32[8] conditional(%p, %p, %p), branch_computations={%one, %two}",
        both,
    )
    assert [c.bytes for c in collectives(text)] == [32, 8]


def test_strings_may_hold_newlines_brackets_and_names_of_operations():
    text = entry("%p = f32[4,128] parameter(0)").replace(
        "parameter(0)\n}",
        'parameter(0)\n  %k = f32[4,128] custom-call(%p), metadata={op_name="all-reduce(%p)"}, '
        'kernel_metadata={"a": "first\n  %x = f32[] all-reduce(%p), replica_groups={}\n\\"("}\n}',
    )
    assert collectives(text) == []


def test_what_is_no_hlo_is_refused():
    with pytest.raises(ValueError, match="not an HLO module: it begins with 'module @jit_f'"):
        collectives("module @jit_f")
    with pytest.raises(ValueError, match="cannot read the groups of r"):
        collectives(entry("%p = f32[] parameter(0)\n%r = f32[] all-reduce(%p), replica_groups=?"))


# Programs compiled for 8 CPU devices: a mesh of data 2 x fsdp 4, arrays of float32.


def compiled(function, *shape: int) -> list[Collective]:
    """Collectives of ``function`` over shards of an array of ``shape``, split on its first axis."""
    mesh = make_mesh(MeshShape(2, 4, 1))
    spec = jax.P(("data", "fsdp"))
    with jax.set_mesh(mesh):
        mapped = jax.shard_map(function, in_specs=spec, out_specs=spec, check_vma=False)
        x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        text = jax.jit(mapped).lower(x).compile().as_text()
    return collectives(text)


def in_a_loop(x):
    return jax.lax.scan(lambda c, _: (jax.lax.psum(c, "fsdp") * 0.1, None), x, length=5)[0]


def in_two_loops(x):
    def outer(_, x):
        return jax.lax.fori_loop(0, 7, lambda _, y: jax.lax.psum(y, "data") * 0.1, x)

    return jax.lax.fori_loop(0, 3, outer, x)


SHARD = 4 * 6 * 16  # bytes a device


@pytest.mark.parametrize(
    ("function", "kind", "size", "group", "trips"),
    [
        (lambda x: jax.lax.psum(x, ("data", "fsdp")), "all-reduce", SHARD, 8, 1),
        (lambda x: jax.lax.psum(x, "data"), "all-reduce", SHARD, 2, 1),
        (lambda x: jax.lax.all_gather(x, "fsdp"), "all-gather", 4 * SHARD, 4, 1),
        (
            lambda x: jax.lax.psum_scatter(x, "fsdp", scatter_dimension=1, tiled=True),
            *("reduce-scatter", SHARD, 4, 1),
        ),
        (
            lambda x: jax.lax.all_to_all(x, "fsdp", 1, 0, tiled=True),
            *("all-to-all", SHARD, 4, 1),
        ),
        (
            lambda x: jax.lax.ppermute(x, "fsdp", [(i, (i + 1) % 4) for i in range(4)]),
            *("collective-permute", SHARD, 8, 1),
        ),
        (in_a_loop, "all-reduce", SHARD, 4, 5),
        (in_two_loops, "all-reduce", SHARD, 2, 21),
    ],
)
def test_compiled_programs(function, kind, size, group, trips):
    (found,) = compiled(function, 8 * 6, 16)
    assert found == Collective(kind, size, "f32", group, trips, found.name)


def test_compiled_program_without_collectives():
    assert compiled(lambda x: x * 2, 16) == []


def test_compiled_gradient_of_a_split_matrix_product():
    """Sums of a data-parallel gradient, made by the partitioner: two arrays, maybe combined."""
    mesh = make_mesh(MeshShape(8, 1, 1))
    with jax.set_mesh(mesh):
        x = jnp.ones((32, 24), out_sharding=jax.P("data"))
        w = jnp.ones((24, 40))
        b = jnp.ones((40,))
        loss = lambda w, b: jnp.sum(jnp.sin(x @ w + b))  # noqa: E731
        text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(w, b).compile().as_text()
    assert total_bytes(collectives(text)) == 4 * (24 * 40 + 40)
    assert {c.kind for c in collectives(text)} == {"all-reduce"}
