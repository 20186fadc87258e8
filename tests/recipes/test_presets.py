"""Published encoders: parameter counts of the releases, and the numbers that set families apart."""

import dataclasses

import pytest

from bert_jax.models.config import AlibiPositions, SinusoidalPositions, Uniform
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.sizes import parameter_count
from bert_jax.models.task_heads import SequenceClassifier
from bert_jax.recipes import list_presets, preset

pytestmark = pytest.mark.sweep

# Counted on the released checkpoints' shapes; tied weights once.
COUNTS = [
    ("bert-base", MaskedLM, 109_514_298),
    ("bert-base", PreTraining, 110_106_428),
    ("bert-large", MaskedLM, 335_174_458),
    ("bert-large", PreTraining, 336_226_108),
    ("roberta-base", MaskedLM, 124_697_433),
    ("roberta-large", MaskedLM, 355_412_057),
    ("distilbert-base", MaskedLM, 66_985_530),
    ("electra-small", ReplacedTokenDetector, 13_549_057),
    ("electra-base", ReplacedTokenDetector, 109_483_009),
    ("electra-large", ReplacedTokenDetector, 335_142_913),
    ("deberta-v3-xsmall", EncoderModel, 70_682_112),
    ("deberta-v3-small", EncoderModel, 141_304_320),
    ("deberta-v3-base", EncoderModel, 183_831_552),
    ("deberta-v3-large", EncoderModel, 434_012_160),
    ("modernbert-base", MaskedLM, 149_655_232),
    ("modernbert-large", MaskedLM, 395_881_664),
    ("ettin-17m", MaskedLM, 16_913_600),
    ("ettin-32m", MaskedLM, 32_081_344),
    ("ettin-68m", MaskedLM, 68_457_664),
    ("ettin-150m", MaskedLM, 149_655_232),
    ("ettin-400m", MaskedLM, 395_881_664),
    ("ettin-1b", MaskedLM, 1_031_314_112),
]
# Bodies with their pooler: `AutoModel` of the release.
POOLED = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "bert-tiny": 4_385_920,
    "bert-mini": 11_170_560,
    "bert-small": 28_763_648,
    "bert-medium": 41_373_184,
    "albert-base-v2": 11_683_584,
    "albert-large-v2": 17_683_968,
    "albert-xlarge-v2": 58_724_864,
    "albert-xxlarge-v1": 222_595_584,
}


@pytest.mark.parametrize(("name", "model", "count"), COUNTS)
def test_parameter_count(name, model, count):
    assert parameter_count(model(preset(name))) == count


@pytest.mark.parametrize(("name", "count"), POOLED.items())
def test_parameter_count_of_body_and_pooler(name, count):
    config = preset(name)
    classifier = config.hidden_size + 1
    assert parameter_count(SequenceClassifier(config, num_labels=1)) - classifier == count


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def test_parameters_of_encoders_whose_releases_transformers_cannot_count():
    """From their modules, one by one; tied output tables once."""
    d, f, v = 768, 3072, 30522
    norm = 2 * d
    # bert_layers.py: Wqkv, dense, LayerNorm; gated_layers without a bias, wo, layernorm.
    layer = linear(d, 3 * d) + linear(d, d) + norm
    layer += linear(d, 2 * f, bias=False) + linear(f, d) + norm
    head = linear(d, d) + norm + v  # transform, its norm, one bias an entry
    mosaic = (v + 2) * d + norm + 12 * layer + head
    assert parameter_count(MaskedLM(preset("mosaicbert-base"))) == mosaic == 137_395_770
    assert mosaic + 6 * (d + 1) == 137_400_384  # with the six rows that are padding there

    # crammed_bert.py: norms with biases, maps without; the gate halves 3,072; one scale factor.
    layer = linear(d, 3 * d, bias=False) + linear(d, d, bias=False) + norm
    layer += linear(d, f, bias=False) + linear(f // 2, d, bias=False) + norm
    crammed = 32768 * d + 1 + norm + 16 * layer + norm
    assert parameter_count(MaskedLM(preset("crammed-bert"))) == crammed == 119_589_889

    # fairseq: 512 positions behind two rows, norms of embeddings and at the end, a vocabulary head.
    d, f, v, norm = 1024, 4096, 50265, 2048
    layer = 4 * linear(d, d) + norm + linear(d, f) + linear(f, d) + norm
    wettig = (v + 514) * d + norm + 24 * layer + norm + linear(d, d) + norm + v
    assert parameter_count(MaskedLM(preset("wettig-large"))) == wettig == 355_413_081


def test_the_ones_that_no_release_shows():
    """What their sources say, where it sets them apart from the family they come from."""
    mosaic, crammed, wettig = map(preset, ("mosaicbert-base", "crammed-bert", "wettig-large"))
    assert (mosaic.dropout.mlp_inner, mosaic.dropout.on_mlp_out) == (0.1, 0.0)
    assert (mosaic.mlp, mosaic.biases.mlp, mosaic.biases.attention) == ("gated", "out", "all")
    assert (mosaic.positions, mosaic.norm.placement) == (AlibiPositions(512), "post")
    assert crammed.positions == SinusoidalPositions(128, scale="learned")
    assert (crammed.intermediate_size, crammed.vocab_size) == (1536, 32768)
    assert (crammed.norm.placement, crammed.norm.on_embeddings) == ("pre", True)
    assert not crammed.heads.vocabulary.decoder_bias
    assert crammed.heads.vocabulary.transform == "none"
    assert (wettig.norm.placement, wettig.norm.on_embeddings) == ("pre", True)
    same = {"norm": wettig.norm, "type_vocab_size": 0}
    assert dataclasses.replace(preset("roberta-large"), **same) == wettig


@pytest.mark.parametrize("name", ["electra-small", "electra-small-generator"])
def test_electra_leaves_two_maps_at_tensorflow_s_default(name):
    config = preset(name)
    inputs, outputs = config.table_size, config.hidden_size
    assert config.outer_initializer(inputs, outputs) == Uniform((6 / (inputs + outputs)) ** 0.5)
    assert config.residual_initializer == config.initializer


def test_names():
    assert len(set(list_presets())) == len(list_presets()) >= 35
    for name in list_presets():
        assert preset(name).vocab_size > 30_000 - 1
    with pytest.raises(ValueError, match="no preset is called 'deberta-v3-bas'; did you mean 'deb"):
        preset("deberta-v3-bas")


def test_generators_share_the_discriminator_s_embedding_width():
    for size, width in (("small", 64), ("base", 256), ("large", 256)):
        generator = preset(f"electra-{size}-generator")
        assert generator.hidden_size == width
        assert generator.num_heads * 64 == width
        assert generator.table_size == preset(f"electra-{size}").table_size
    v3 = preset("deberta-v3-base"), preset("deberta-v3-base-generator")
    assert v3[0].num_layers == 2 * v3[1].num_layers
    assert [c.heads.vocabulary.mask_decoder for c in v3] == ["none", "enhanced"]
    assert preset("deberta-base").heads.vocabulary.mask_decoder == "enhanced"


# What changes results when it is wrong: (norm eps, activation, dropout after embeddings, attention
# probabilities, attention output).
TRAPS = {
    "bert-base": (1e-12, "gelu_tanh", 0.1, 0.1, 0.1),
    "roberta-base": (1e-5, "gelu", 0.1, 0.1, 0.1),
    "albert-base-v1": (1e-12, "gelu_tanh", 0.1, 0.1, 0.1),
    "albert-base-v2": (1e-12, "gelu_tanh", 0.0, 0.0, 0.0),
    "albert-xxlarge-v1": (1e-12, "gelu_tanh", 0.0, 0.0, 0.0),
    "distilbert-base": (1e-12, "gelu", 0.1, 0.1, 0.0),
    "electra-base": (1e-12, "gelu", 0.1, 0.1, 0.1),
    "deberta-v3-base": (1e-7, "gelu", 0.1, 0.1, 0.1),
    "modernbert-base": (1e-5, "gelu", 0.0, 0.0, 0.1),
    "neobert": (1e-5, "silu", 0.0, 0.0, 0.0),
    "nomic-bert": (1e-12, "silu", 0.0, 0.0, 0.0),
    "mosaicbert-base": (1e-12, "gelu", 0.1, 0.0, 0.1),
    "crammed-bert": (1e-12, "gelu", 0.0, 0.0, 0.0),
    "wettig-large": (1e-5, "gelu", 0.1, 0.1, 0.1),
}


@pytest.mark.parametrize(("name", "expected"), TRAPS.items())
def test_traps(name, expected):
    c = preset(name)
    rates = (c.dropout.on_embeddings, c.dropout.attention, c.dropout.on_attention_out)
    assert (c.norm.eps, c.activation, *rates) == expected
