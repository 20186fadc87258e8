"""Code in the guides runs as it stands there."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Constant
from bert_jax.train.state import init_state
from bert_jax.train.step import StepConfig, make_train_step

DOCS = Path(__file__).parents[1] / "docs"


def _code(page: str, replaced: tuple[str, str] = ("", "")) -> dict:
    """Names defined by the page's first Python block."""
    block = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names: dict = {"__name__": "guide"}
    exec(compile(block[1].replace(*replaced), page, "exec", dont_inherit=True), names)
    return names


def test_the_objective_of_the_guide_trains():
    objective = _code("how-to/add-an-objective.md")["SpotTheIntruder"](vocab_size=50)
    rng = np.random.default_rng(0)
    rows = {
        "input_ids": rng.integers(5, 50, (16, 12)).astype(np.int32),
        "segment_ids": np.ones((16, 12), np.int32),
        "example_ids": np.arange(16, dtype=np.uint32),
    }
    rows["segment_ids"][:, 10:] = 0

    def apply(params, batch, key):
        return params["embedding"].at[batch["input_ids"]].get()

    optimizer = AdamW(1e-2)
    results = []
    for devices, microbatches in ((1, 1), (8, 2)):
        mesh = make_mesh(MeshShape(), jax.devices()[:devices])
        with jax.set_mesh(mesh):
            state = init_state({"embedding": jnp.zeros(50)}, objective, optimizer)
            step = jax.jit(
                make_train_step(objective, apply, StepConfig(optimizer, Constant(), 10, 0))
            )
            _, metrics = step(state, put_batch(rows, mesh, microbatches))
            results.append(jax.device_get((metrics["sums"], metrics["gradient_norm"])))
    (total, weight), norm = results[0][0]["loss"], results[0][1]
    assert weight == 160  # padding is not counted
    # Logits are 0: every token costs ln 2. float32 sums of 160 terms.
    np.testing.assert_allclose(total, 160 * np.log(2), rtol=1e-6)
    assert norm > 0
    np.testing.assert_allclose(results[1][1], norm, rtol=1e-5)


def test_every_test_that_the_guides_name_exists():
    """`tests/file.py::test_name` in any page: the file is there and defines the test."""
    root = DOCS.parent
    named = {
        (page.name, path, test)
        for page in DOCS.rglob("*.md")
        for path, test in re.findall(r"`(t[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    }
    assert len(named) >= 12
    for page, path, test in named:
        assert (root / path).is_file(), (page, path)
        assert not test or f"def {test}(" in (root / path).read_text(), (page, path, test)


def test_the_table_of_families_has_every_preset_s_family():
    from bert_jax.recipes import list_presets

    table = (DOCS / "reference" / "families.md").read_text()
    for name in list_presets():
        family = re.sub(r"-(v1|v2)$", "", name) if name.startswith("albert") else name
        family = family.removesuffix("-generator")
        assert f"`{family}" in table or f"`{family.rpartition('-')[0]}-" in table, name


def test_the_fine_tuning_step_of_the_guide_learns():
    model = DOCS.parent / "tests" / "data" / "parity" / "bert_mlm"
    names = _code("how-to/use-a-model.md", ("models/bert-base-uncased", str(model)))
    ids = np.random.default_rng(0).integers(5, 97, (6, 9)).astype(np.int32)
    labels, mask = np.asarray([0, 1, 2, 0, 1, 2]), np.ones_like(ids)
    state, params, losses = names["state"], names["params"], []
    for i in range(40):
        key = jax.random.key(i)
        params, state, loss = names["step"](params, state, ids, mask, labels, key)
        losses.append(float(loss))
    # At 2e-5 a step moves little; forty of them go down on six texts all the same.
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
