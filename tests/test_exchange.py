"""`bert-jax import` and `bert-jax export`: what they print, write and return."""

import datetime
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax import load_run
from bert_jax.cli import main
from bert_jax.config import digest
from bert_jax.data.packing import Packing
from bert_jax.data.prepare import prepare
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.exchange import run_facts
from bert_jax.experiment import Checkpoints, Evaluation, Experiment, Logging
from bert_jax.interop import import_hf
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path
from bert_jax.train.loop import train
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

PARITY = Path(__file__).parent / "data" / "parity"


def call(*words):
    return main([str(word) for word in words])


def sentence(capsys):
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removeprefix("bert-jax: ").rstrip("\n")


@pytest.fixture
def directory(tmp_path):
    """A copy of a Hugging Face directory with reference outputs."""
    shutil.copytree(PARITY / "bert_mlm", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps, with a real tokenizer: (directory, experiment)."""
    root = tmp_path_factory.mktemp("export")
    words = ["ba", "do", "ke", "li", "mu", "na", "po", "ri", "su", "te"]
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(words, 20)) + "." for _ in range(40)]
    (root / "corpus.txt").write_text("\n".join(documents))
    tokenizer = Tokenizer.train(texts=documents, kind="wordpiece", vocab_size=60)
    store = prepare(
        root / "corpus.txt",
        root / "words",
        tokenizer=tokenizer,
        format="lines",
        validation_fraction=0.2,
        workers=0,
        say=lambda _: None,
    )
    experiment = Experiment(
        name="tiny",
        model=EncoderConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            intermediate_size=32,
            type_vocab_size=2,
        ),
        data=str(store.path),
        packing=Packing(seq_length=32),
        batch_size=8,
        steps=3,
        optimizer=AdamW(learning_rate=2e-3),
        schedule=Linear(warmup=1),
        evaluation=Evaluation(every=0),
        checkpoints=Checkpoints(every=2),
        logging=Logging(every=1),
    )
    train(experiment, root / "run")
    return root / "run", experiment


# --------------------------------------------------------------------------------------- import


def test_import_reports_and_compares(directory, capsys):
    assert call("import", directory) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(directory)
    # The checkpoint's own count.
    count = sum(leaf.size for leaf in by_path(import_hf(directory).params).values())
    count -= (128 - 97) * (48 + 1)  # rows that pad the table and the bias
    assert lines[1:9] == [
        "architecture   BertForMaskedLM (bert), here MaskedLM",
        "encoder        3 layers, width 48, 4 heads, 97 vocabulary entries, inputs of up to 64 "
        "tokens",
        f"parameters     {count:,}",
        "tokenizer      none beside it",
        "new            none: every parameter is the checkpoint's",
        "unused         none",
        "unexpected     none",
        "renamed        none",
    ]
    assert lines[9] == f"parity         passed, against {directory / 'reference.npz'}"
    assert [line.split()[0] for line in lines[10:]] == ["pass"] * 5


def test_import_exits_with_1_if_a_number_is_out_of_its_bound(directory, tmp_path, capsys):
    with np.load(directory / "reference.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "other.npz", **arrays | {"out.loss": arrays["out.loss"] + 1})
    assert call("import", directory, "--reference", tmp_path / "other.npz") == 1
    out = capsys.readouterr().out
    assert "parity         FAILED, against" in out
    assert [line.split()[0] for line in out.splitlines()[10:]].count("FAIL") == 1


def test_import_without_a_reference_says_that_nothing_was_compared(directory, capsys):
    (directory / "reference.npz").unlink()
    Tokenizer.train(texts=["a b c"] * 3, kind="wordpiece", vocab_size=20).save(directory)
    assert call("import", directory) == 0
    out = capsys.readouterr().out
    assert out.endswith("parity         not checked: no reference.npz beside it\n")
    assert "tokenizer      Tokenizer(wordpiece, " in out


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model_type": "gpt2"}, "model_type 'gpt2'"), ({"hidden_act": "relu6"}, "relu6")],
)
def test_import_of_something_else_is_a_sentence(directory, change, message, capsys):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    assert call("import", directory) == 2
    assert message in sentence(capsys)
    assert call("import", directory / "nothing") == 2
    assert "config.json" in sentence(capsys)


# --------------------------------------------------------------------------------------- export


def test_a_run_is_exported_with_its_tokenizer_and_facts(run, tmp_path, capsys):
    run_dir, experiment = run
    options = ("--license", "Apache-2.0", "--language", "en", "de")
    assert call("export", run_dir, tmp_path / "out", *options) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'out'}: BertForMaskedLM\n"
        f"files  README.md, config.json, model.safetensors, special_tokens_map.json, "
        f"tokenizer.json, tokenizer_config.json\n"
    )
    opened, back = load_run(run_dir), import_hf(tmp_path / "out")
    assert isinstance(back.model, MaskedLM)
    theirs = by_path(back.params)
    vocab_size = experiment.model.vocab_size
    for path, leaf in by_path(opened.params).items():
        rows = slice(vocab_size if "word" in path or path == "head_bias" else None)
        np.testing.assert_array_equal(theirs[path][rows], leaf[rows], err_msg=path)
    assert back.tokenizer.digest() == opened.tokenizer.digest()
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| not stated |" not in text
    for part in ("# tiny\n", "| Steps | 3 of 3 |", 'license: "apache-2.0"', '- "de"', "0.002"):
        assert part in text, part


def test_facts_of_a_run(run):
    run_dir, experiment = run
    today = datetime.date(2030, 1, 2)
    facts = run_facts(run_dir, load_run(run_dir), today)
    assert facts["Name"] == "tiny"
    assert facts["Training data"].startswith("the store words: 3")
    assert facts["Objective"] == (
        "masked language modelling: 15% of tokens (fixed count), of which 80% masked, 10% random, "
        "10% unchanged"
    )
    assert facts["Rows a step"] == "8" and facts["Sequence length"] == "32 tokens"
    expected = "peak 0.002, Linear: warmup 1.0, warmup from 0.0, final 0.0; in steps, to 3"
    assert facts["Learning rate"] == expected
    assert facts["Optimizer"].startswith("AdamW: learning rate 0.002, b1 0.9, b2 0.999, eps 1e-08")
    assert facts["Configuration digest"] == digest(experiment)
    assert facts["Exported"].startswith("2030-01-02")
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    held = [record for record in records if record["kind"] == "evaluation"][-1]
    assert facts["Held-out results"] == (
        f"masked cross-entropy {held['loss']:.3f} nats (standard error "
        f"{held['standard_error']:.3f}, {held['targets']} targets), accuracy "
        f"{held['accuracy']:.3f}, at step 3"
    )
    # An earlier checkpoint: what was measured later is not its result.
    early = run_facts(run_dir, load_run(run_dir, step=2), today)
    assert early["Steps"] == "2 of 3" and "Held-out results" not in early
    assert early["Training loss"].endswith("at step 2")


def test_the_encoder_of_a_run_alone_and_another_family(run, tmp_path, capsys):
    run_dir, _ = run
    assert call("export", run_dir, tmp_path / "a", "--part", "encoder", "--step", 2) == 0
    assert "note   BertModel has a pooler" in capsys.readouterr().out
    assert type(import_hf(tmp_path / "a").model) is EncoderModel
    assert "2 of 3" in (tmp_path / "a" / "README.md").read_text()
    assert call("export", run_dir, tmp_path / "b", "--family", "electra") == 0
    assert import_hf(tmp_path / "b").report.architecture == "ElectraForMaskedLM"


def test_a_hugging_face_directory_is_written_anew(directory, tmp_path, capsys):
    assert call("export", directory, tmp_path / "out") == 0
    a, b = import_hf(directory), import_hf(tmp_path / "out")
    assert a.model == b.model
    for path, leaf in by_path(a.params).items():
        np.testing.assert_array_equal(by_path(b.params)[path], leaf)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| Source | the Hugging Face directory model |" in text
    assert "| Steps | not stated |" in text


def test_names_of_classes_are_kept_or_given(directory, tmp_path):
    from bert_jax.interop import export
    from bert_jax.models.task_heads import SequenceClassifier

    named = import_hf(directory, model=SequenceClassifier, num_labels=3)
    labels = ["no", "maybe", "yes"]
    export.export_hf(tmp_path / "a", named.model, named.params, labels=labels)
    assert call("export", tmp_path / "a", tmp_path / "b") == 0
    assert call("export", tmp_path / "a", tmp_path / "c", "--labels", "x", "y", "z") == 0
    for name, expected in (("b", labels), ("c", ["x", "y", "z"])):
        written = json.loads((tmp_path / name / "config.json").read_text())
        assert list(written["id2label"].values()) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{tmp}", "{tmp}/out"], "holds no config.json; give a run directory of `bert-jax train`"),
        (["{model}", "{model}"], "is not empty; name a new directory"),
        (["{model}", "{tmp}/out", "--step", "3"], "is a Hugging Face directory and has no steps"),
        (["{model}", "{tmp}/out", "--part", "head"], "--part is 'head'; expected one of model,"),
        (["{model}", "{tmp}/out", "--family", "distilbert"], "distilbert has no way to say"),
        (["{model}", "{tmp}/out", "--labels", "a"], "MaskedLM has no classes to name"),
        (["{model}", "{tmp}/out", "--language", "English!"], "is no code of ISO 639"),
        (["{model}"], "OUT is missing; the command is bert-jax export SOURCE OUT"),
    ],
)
def test_mistakes_of_export_are_sentences(words, message, directory, tmp_path, capsys):
    words = [word.format(tmp=tmp_path, model=directory) for word in words]
    assert call("export", *words) == 2
    assert message in sentence(capsys)
    assert not (tmp_path / "out").exists()
