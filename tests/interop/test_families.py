"""The config mappings and key maps of every family: inverses, whole, and honest about limits."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.interop.arrays import to_checkpoint, whole_entries
from bert_jax.interop.convert import convert, parameter_shapes
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.fields import canonical
from bert_jax.models.config import (
    DisentangledPositions,
    Execution,
    GlobalAttention,
    Heads,
    LayerSharing,
    LearnedPositions,
    LocalAttention,
    NoPositions,
    Norm,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    Uniform,
    VocabularyHead,
)
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import from_paths

pytestmark = pytest.mark.sweep

PARITY = Path(__file__).parents[1] / "data" / "parity"
CASES = sorted(path.parent.name for path in PARITY.glob("*/config.json"))
BERT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
DEBERTA = BERT | {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
MODERNBERT = BERT | {"pad_token_id": 0}
DISTILBERT = {"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
# (model_type, config.json beyond the sizes)
VARIATIONS = [
    ("bert", BERT),
    ("bert", BERT | {"hidden_act": "relu", "classifier_dropout": 0.3, "type_vocab_size": 5}),
    ("bert", BERT | {"tie_word_embeddings": False, "hidden_act": "swish", "pad_token_id": 3}),
    ("roberta", BERT | {"pad_token_id": 4, "hidden_act": "gelu_new"}),
    ("xlm-roberta", BERT | {"classifier_dropout": 0.0, "max_position_embeddings": 66}),
    ("camembert", BERT),
    ("albert", BERT | {"embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 3}),
    ("albert", BERT),
    ("distilbert", DISTILBERT | {"sinusoidal_pos_embds": True, "activation": "relu"}),
    ("distilbert", DISTILBERT | {"dropout": 0.3, "seq_classif_dropout": 0.0}),
    ("electra", BERT | {"embedding_size": 32}),
    ("electra", BERT | {"hidden_act": "silu", "classifier_dropout": 0.2}),
    ("deberta", BERT),
    ("deberta", DEBERTA | {"max_relative_positions": 7, "cls_dropout": 0.4}),
    ("deberta", DEBERTA | {"pos_att_type": ["p2c"], "position_biased_input": True}),
    ("deberta-v2", BERT | {"position_biased_input": False}),
    ("deberta-v2", DEBERTA | {"position_buckets": 8, "share_att_key": True, "conv_kernel_size": 5}),
    ("deberta-v2", DEBERTA | {"pos_att_type": "c2p", "norm_rel_ebd": "layer_norm"}),
    ("deberta-v2", DEBERTA | {"embedding_size": 16, "type_vocab_size": 2, "legacy": False}),
    ("modernbert", MODERNBERT),
    ("modernbert", MODERNBERT | {"global_attn_every_n_layers": 2, "local_attention": 8}),
    ("modernbert", MODERNBERT | {"layer_types": ["full_attention"] * 4, "decoder_bias": False}),
    ("modernbert", MODERNBERT | {"attention_bias": True, "mlp_bias": True, "norm_bias": True,
                                 "classifier_bias": True, "classifier_activation": "tanh"}),
    ("modernbert", MODERNBERT | {"global_rope_theta": 5e4, "local_rope_theta": None}),
]  # fmt: skip


def stated(case):
    raw = json.loads((PARITY / case / "config.json").read_text())
    return FAMILIES[raw["model_type"]], raw


def everything():
    return [stated(case) for case in CASES] + [(FAMILIES[name], raw) for name, raw in VARIATIONS]


NAMES = [*CASES, *(f"{name}-{i}" for i, (name, _) in enumerate(VARIATIONS))]


@pytest.mark.parametrize(("family", "raw"), everything(), ids=NAMES)
def test_configs_go_there_and_back(family, raw):
    config = family.encoder_config(raw)
    fields = family.hf_config(config)
    assert family.encoder_config(fields) == config
    json.dumps(fields)  # plain numbers and words
    # How it runs and how it started are no part of what it is.
    other = dataclasses.replace(
        config, execution=Execution("scan"), compute_dtype="bfloat16", initializer=Uniform(0.1)
    )
    back = family.encoder_config(family.hf_config(other))
    assert canonical(back) == canonical(config)


def first_of_each_family():
    """The others run with the slow tests."""
    seen = set()
    for name, raw in VARIATIONS:
        marks = [pytest.mark.slow] if name in seen else []
        seen.add(name)
        yield pytest.param(name, raw, marks=marks)


@pytest.mark.parametrize(("name", "raw"), list(first_of_each_family()), ids=NAMES[len(CASES) :])
def test_key_maps_cover_each_model_and_invert(name, raw):
    """Every parameter once; arrays of random numbers come back from their layout unchanged."""
    family = FAMILIES[name]
    config = family.encoder_config(raw)
    rng = np.random.default_rng(0)
    classes = {family.base: EncoderModel} | {n: head.model for n, head in family.heads.items()}
    for name, kind in classes.items():
        entries = whole_entries(family, name, config)
        shapes = parameter_shapes(kind(config))
        assert sorted(entry.ours for entry in entries) == sorted(shapes)
        tree = {path: rng.normal(size=shape).astype("f4") for path, shape in shapes.items()}
        for path in tree:
            if path.endswith(("word/embedding", "decoder/embedding", "head_bias")):
                tree[path][config.vocab_size :] = 0
        arrays = to_checkpoint(from_paths(tree), entries, config)
        back, used = convert(arrays, entries, config, shapes)
        assert used == set(arrays)
        jax.tree.map(np.testing.assert_array_equal, back, tree)
        head = family.heads.get(name)
        if head is not None and config.heads.vocabulary.decoder == "tied":
            assert set(head.tied.values()) <= set(arrays)


def test_numbers_of_config_json_mean_what_they_do_there():
    """Spot checks against the classes of transformers 5.24, one or two a family."""
    bert = FAMILIES["bert"].encoder_config(BERT)
    assert bert.type_vocab_size == 2 and bert.norm == Norm("post", eps=1e-12)
    roberta = FAMILIES["roberta"].encoder_config(BERT | {"max_position_embeddings": 66})
    assert roberta.positions == LearnedPositions(64, 2) and roberta.pad_id == 1
    assert roberta.heads.pooler.input_dropout == 0.1
    albert = FAMILIES["albert"].encoder_config(BERT | {"num_hidden_groups": 2})
    assert albert.sharing == LayerSharing(2, 1) and albert.embedding_size == 128
    assert albert.activation == "gelu_tanh" and albert.dropout.hidden == 0
    electra = FAMILIES["electra"].encoder_config(BERT | {"hidden_act": "relu"})
    assert electra.heads.vocabulary.activation == electra.heads.pooler.activation == "gelu"
    distilbert = FAMILIES["distilbert"].encoder_config(DISTILBERT)
    assert distilbert.dropout.on_attention_out == 0 and distilbert.heads.pooler.activation == "relu"
    raw = DEBERTA | {"position_buckets": 8, "max_position_embeddings": 64, "share_att_key": True}
    assert FAMILIES["deberta-v2"].encoder_config(raw).positions == DisentangledPositions(
        64, 8, 64, ("p2c", "c2p"), "shared", "none", "none"
    )
    assert isinstance(
        FAMILIES["deberta"].encoder_config(BERT | {"position_biased_input": False}).positions,
        NoPositions,
    )
    modern = FAMILIES["modernbert"].encoder_config(MODERNBERT)
    assert modern.attention == LocalAttention(128, 3)
    assert modern.positions == RotaryPositions(8192, 160_000.0, 10_000.0)
    assert modern.initializer == TruncatedNormal(0.02, "by_depth")


@pytest.mark.parametrize(
    ("types", "every", "expected"),
    [
        ("fssf", None, LocalAttention(128, 3)),
        ("fsfs", 3, LocalAttention(128, 2)),
        ("ffff", None, GlobalAttention()),
        ("ffff", 3, GlobalAttention()),
        ("ffff", 1, LocalAttention(128, 1)),
        ("fsss", None, LocalAttention(128, 4)),
        ("fsss", 9, LocalAttention(128, 9)),
    ],
)
def test_layer_types_of_modernbert(types, every, expected):
    words = [{"f": "full_attention", "s": "sliding_attention"}[t] for t in types]
    raw = MODERNBERT | {"layer_types": words, "global_attn_every_n_layers": every}
    assert FAMILIES["modernbert"].encoder_config(raw).attention == expected


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("bert", BERT | {"hidden_act": "mish"}, "hidden_act 'mish'"),
        ("bert", BERT | {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert", BERT | {"is_decoder": True}, "is_decoder True"),
        ("bert", BERT | {"add_cross_attention": True}, "add_cross_attention"),
        ("bert", BERT | {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("bert", BERT | {"quantization_config": {}}, "quantization_config"),
        ("bert", BERT | {"attention_head_size": 16}, "attention_head_size 16"),
        ("bert", BERT | {"hidden_size": None}, "lacks hidden_size"),
        ("bert", BERT | {"vocab_size": "97"}, "vocab_size '97'; it must be a whole number"),
        ("roberta", BERT | {"pad_token_id": None}, "pad_token_id null"),
        ("albert", BERT | {"num_hidden_layers": 10**9}, "fewer than 10,000 layers are read"),
        ("albert", BERT | {"num_hidden_layers": 18, "num_hidden_groups": 14}, "divisor of 18"),
        ("distilbert", DISTILBERT | {"n_heads": None}, "lacks n_heads"),
        ("electra", BERT | {"summary_type": "mean"}, "summary_type 'mean'"),
        ("electra", BERT | {"summary_use_proj": False}, "summary_use_proj"),
        ("electra", BERT | {"summary_activation": "tanh"}, "summary_activation"),
        ("deberta", DEBERTA | {"talking_head": True}, "talking_head"),
        ("deberta", DEBERTA | {"pos_att_type": "c2p|p2p"}, "p2p is not implemented"),
        ("deberta", DEBERTA | {"relative_attention": False}, "only both or neither"),
        ("deberta-v2", DEBERTA | {"pos_att_type": None}, "only both or neither"),
        ("deberta-v2", DEBERTA | {"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups 2"),
        ("deberta-v2", DEBERTA | {"conv_kernel_size": 4}, "must be odd"),
        ("deberta-v2", DEBERTA | {"conv_kernel_size": 3, "conv_act": "mish"}, "conv_act"),
        ("deberta-v2", DEBERTA | {"pooler_hidden_size": 64}, "pooler_hidden_size 64"),
        ("deberta-v2", DEBERTA | {"pooler_hidden_act": "mish"}, "pooler_hidden_act"),
        ("deberta-v2", DEBERTA | {"attention_head_size": 64}, "attention_head_size 64"),
        ("modernbert", MODERNBERT | {"layer_types": [SLIDING, FULL] * 2}, "no other pattern"),
        ("modernbert", MODERNBERT | {"layer_types": [FULL, FULL, SLIDING, FULL]}, "no other"),
        ("modernbert", MODERNBERT | {"layer_types": [FULL]}, "1 layer_types for num_hidden_lay"),
        ("modernbert", MODERNBERT | {"rope_scaling": {"factor": 2}}, "rope_scaling"),
        ("modernbert", MODERNBERT | {"rope_parameters": {FULL: {"rope_type": "yarn"}}}, "'yarn'"),
        ("modernbert", MODERNBERT | {"rope_parameters": {"rope_theta": 1e4}}, "for rope_theta"),
        ("modernbert", MODERNBERT | {"classifier_activation": "mish"}, "classifier_activation"),
    ],
)
def test_what_we_do_not_have_is_refused_by_name(name, raw, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[name].encoder_config(raw)


def change(case, **parts):
    family, raw = stated(case)
    return family, dataclasses.replace(family.encoder_config(raw), **parts)


@pytest.mark.parametrize(
    ("case", "parts", "message"),
    [
        ("bert_mlm", {"type_vocab_size": 0}, "type_vocab_size is 0"),
        ("bert_mlm", {"norm": Norm("pre", eps=1e-12)}, "no way to say norm"),
        ("bert_mlm", {"mlp": "gated"}, "no way to say mlp gated; the nearest it has is plain"),
        ("bert_mlm", {"embedding_size": 16}, "no way to say embedding_size"),
        ("bert_mlm", {"positions": RotaryPositions(64)}, "no way to say positions"),
        ("bert_mlm", {"sharing": LayerSharing()}, "no way to say sharing"),
        ("bert_mlm", {"heads": Heads(VocabularyHead(activation="relu"))}, "no way to say heads"),
        ("roberta_mlm", {"activation": "relu"}, "no way to say heads"),
        ("albert_mlm", {"sharing": None}, "set sharing"),
        ("albert_mlm", {"embedding_size": None}, "set sharing and embedding_size"),
        ("distilbert_mlm", {"type_vocab_size": 2}, "no way to say type_vocab_size"),
        ("deberta_v1_mlm", {"positions": DisentangledPositions(64)}, "no way to say positions"),
        ("modernbert_mlm", {"positions": LearnedPositions(64)}, "has rotary positions"),
        ("modernbert_mlm", {"mlp": "plain"}, "no way to say mlp"),
    ],
)
def test_what_a_family_cannot_say_is_refused_by_name(case, parts, message):
    family, config = change(case, **parts)
    with pytest.raises(ValueError, match=message):
        family.hf_config(config)


def test_a_pooler_of_another_family_does_not_stop_an_encoder():
    """A masked LM has none, so whether it matters is asked where the model is known."""
    family, config = change("roberta_mlm", heads=Heads(pooler=Pooler(activation="gelu")))
    assert family.hf_config(config)["hidden_act"] == "gelu"
