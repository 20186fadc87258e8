"""mask_tokens: rates, counts, words, replacements, and the same masks on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.objectives.masking import (
    Masked,
    Masking,
    mask_tokens,
    maskable_tokens,
    selection_table,
    selection_weights,
)
from bert_jax.objectives.selection import whole_words
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

# Special ids in no order and not at the start (P02); 10 and 11 are in use, 998 is one more.
SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5, additional=(998,))
VOCAB = 1000
ORDINARY = np.setdiff1d(np.arange(VOCAB), SPECIAL.ids)
KEY = jax.random.key(0, impl="threefry2x32")


FAST_COMPILE = {"xla_backend_optimization_level": 0}

# What is tested on a million tokens; every policy is compiled once.
POLICIES = [
    Masking(),
    Masking(count="stochastic"),
    Masking(count="bernoulli"),
    Masking(0.15, 0.5, 0.4),
    Masking(0.4, 1.0, 0.0),
    Masking(0.3, 0.0, 1.0, count="bernoulli"),
    Masking(0.15, 0.5, 0.4, unit="word"),
    Masking(unit="word", count="stochastic"),
    Masking(unit="word", count="bernoulli", max_predictions=60),
    Masking(0.15, 0.5, 0.4, unit="ngram"),
    Masking(unit="ngram", windowed=True),
    Masking(windowed=True, count_base="tokens"),
    Masking(count="ceil"),
]
every_policy = pytest.mark.parametrize(
    "masking", POLICIES, ids=lambda m: f"{m.unit}-{m.count}{'-windowed' * m.windowed}"
)


def mask(
    ids, masking, words=None, weights=None, key=KEY, special=SPECIAL, vocab_size=VOCAB
) -> Masked:
    return mask_tokens(
        key,
        ids,
        maskable_tokens(ids, ids != special.pad, masking, special),
        masking,
        special=special,
        vocab_size=vocab_size,
        word_ids=words,
        selection_weights=weights,
    )


run = jax.jit(
    mask, static_argnames=("masking", "special", "vocab_size"), compiler_options=FAST_COMPILE
)


def text(rows: int, length: int, padding: int = 4, seed: int = 0) -> np.ndarray:
    """Rows of ``[CLS] text [SEP]`` and padding."""
    ids = np.random.default_rng(seed).choice(ORDINARY, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, length - padding - 1] = SPECIAL.cls, SPECIAL.sep
    ids[:, length - padding :] = SPECIAL.pad
    return ids


def words_of(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    """A number that changes at word starts, for words of 1 to 5 tokens; -1 on special tokens."""
    starts = np.random.default_rng(seed).random(ids.shape) < 0.6
    lengths = np.cumsum(starts, axis=1).astype(np.int32)
    return np.where(np.isin(ids, SPECIAL.ids), -1, lengths)


def selected_of(masked: Masked, shape) -> np.ndarray:
    """Which tokens are predicted."""
    rows, slots = np.nonzero(np.asarray(masked.weights))
    selected = np.zeros(shape, bool)
    selected[rows, np.asarray(masked.positions)[rows, slots]] = True
    assert selected.sum() == len(rows)  # no token twice
    return selected


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    """8200 rows of 122 maskable tokens, a million in all; then a row of padding and one of
    special tokens.
    """
    return many_rows()


@functools.cache
def many_rows() -> np.ndarray:
    ids = text(8202, 128)
    ids[-2:] = SPECIAL.pad
    ids[-1, :3] = SPECIAL.cls, SPECIAL.mask, SPECIAL.sep
    return ids


@functools.cache
def outcome(masking, seed: int = 0) -> tuple[Masked, np.ndarray]:
    """What a policy makes of `many`, and which tokens it selects."""
    ids = many_rows()
    masked = run(ids, masking, words_of(ids), key=jax.random.fold_in(KEY, seed))
    masked = jax.tree.map(np.asarray, masked)
    return masked, selected_of(masked, ids.shape)


# ------------------------------------------------------------------------------------ rates


@every_policy
def test_what_becomes_of_the_selected(many, masking):
    """80/10/10 or any other probabilities, in token and word unit (P04, P05)."""
    masked_share, kept_share, selected_share = [], [], []
    for seed in range(2):  # two million maskable tokens: .002 is three standard deviations
        masked, selected = outcome(masking, seed)
        new, old = masked.input_ids[selected], many[selected]
        masked_share.append((new == SPECIAL.mask).mean())
        kept_share.append((new == old).mean())
        selected_share.append(selected.sum() / np.isin(many, ORDINARY).sum())
    masked_share, kept_share = np.mean(masked_share), np.mean(kept_share)
    kept_prob = 1 - masking.mask_prob - masking.random_prob
    assert abs(masked_share - masking.mask_prob) < 0.002
    # A random token is the original once in 994 times.
    assert abs(kept_share - kept_prob - masking.random_prob / len(ORDINARY)) < 0.002
    assert abs(1 - masked_share - kept_share - masking.random_prob) < 0.002
    if masking.unit == "token" and masking.count in ("stochastic", "bernoulli"):
        assert abs(np.mean(selected_share) - masking.rate) < 0.001
    else:  # a row's count is rounded; a word budget is not always filled (P07)
        assert abs(np.mean(selected_share) - masking.rate) < 0.01


@every_policy
def test_only_text_is_touched(many, masking):
    masked, selected = outcome(masking)
    assert not np.isin(many[selected], SPECIAL.ids).any()
    changed = np.asarray(masked.input_ids) != many
    assert not (changed & ~selected).any() and changed.any()
    rows, slots = np.nonzero(np.asarray(masked.weights))
    targets = np.asarray(masked.targets)[rows, slots]
    np.testing.assert_array_equal(targets, many[rows, np.asarray(masked.positions)[rows, slots]])
    assert set(np.unique(masked.weights)) <= {0.0, 1.0}


@every_policy
def test_rows_without_text(many, masking):
    """Only padding, and only special tokens: nothing is predicted, nothing changes."""
    masked, _ = outcome(masking)
    np.testing.assert_array_equal(masked.weights[-2:], 0)
    np.testing.assert_array_equal(masked.dropped[-2:], 0)
    np.testing.assert_array_equal(masked.input_ids[-2:], many[-2:])
    assert (np.sum(masked.weights[:-2], axis=1) > 0).mean() > 0.99


@pytest.mark.parametrize(
    "masking", [p for p in POLICIES if p.unit == "token" and not p.windowed], ids=str
)
def test_every_place_is_as_likely(masking):
    share = outcome(masking)[1][:-2, 1:123].mean(axis=0)
    sigma = np.sqrt(masking.rate * (1 - masking.rate) / 8200)
    assert np.abs(share - share.mean()).max() < 4.5 * sigma


def test_the_share_is_exact_whatever_the_length():
    """Stochastic counts of short rows: their mean is rate x length, not its rounding."""
    ids = text(60_000, 8, padding=3)  # 3 maskable tokens
    selected = selected_of(run(ids, Masking(count="stochastic")), ids.shape)
    counts = selected.sum(axis=1)
    assert set(counts) == {0, 1}
    assert abs(counts.mean() - 0.45) < 4 * np.sqrt(0.45 * 0.55 / len(ids))


# ----------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_fixed_counts_are_exact(rate):
    """``max(1, round(rate * n))`` for every n, with Python's rounding of halves."""
    length = 128
    ids = np.tile(text(1, length, padding=0), (length - 1, 1))
    for n, row in enumerate(ids):  # row n has n maskable tokens
        row[n + 1], row[n + 2 :] = SPECIAL.sep, SPECIAL.pad
    masked = run(ids, Masking(rate))
    expected = [max(1, round(rate * n)) if n else 0 for n in range(length - 1)]
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), expected)
    np.testing.assert_array_equal(selected_of(masked, ids.shape).sum(axis=1), expected)


def test_counts_can_be_taken_of_all_tokens():
    """Google BERT counts [CLS] and [SEP], though it masks neither: 3 of 12, not 2 of 10 tokens."""
    ids = text(2048, 32, padding=20)
    masked = run(ids, Masking(0.24, count_base="tokens"))
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), 3)
    assert not np.isin(ids[selected_of(masked, ids.shape)], SPECIAL.ids).any()
    masked = run(ids, Masking(0.24, count="stochastic", count_base="tokens"))
    counts = np.asarray(masked.weights).sum(axis=1)
    assert set(counts) == {2, 3}
    assert abs(counts.mean() - 2.88) < 4 * np.sqrt(0.88 * 0.12 / 2048)


@pytest.mark.parametrize("count", ["fixed", "stochastic"])
def test_never_more_than_max_predictions(count):
    ids = text(64, 64)
    masked = run(ids, Masking(0.5, count=count, max_predictions=7))
    assert masked.positions.shape == (64, 7)
    np.testing.assert_array_equal(np.sum(masked.weights, axis=1), 7)


def test_all_candidates_may_include_special_tokens():
    """fairseq's RoBERTa masks <s> and </s>; nobody masks padding."""
    ids = text(4000, 16)
    selected = selected_of(run(ids, Masking(0.5, candidates="all")), ids.shape)
    np.testing.assert_array_equal(selected.sum(axis=1), 6)  # of 12 real tokens
    assert not selected[:, 12:].any()
    share = selected[:, :12].mean(axis=0)  # [CLS] and [SEP] as often as any token
    assert np.abs(share - 0.5).max() < 4.5 * np.sqrt(0.25 / 4000)


def test_slots_leave_room_for_what_the_policy_can_ask():
    assert Masking().slots(512) == 77
    assert Masking().slots(1) == Masking().slots(2) == 1
    assert Masking(max_predictions=20).slots(128) == 19
    assert Masking(count="stochastic").slots(512) == 77
    assert Masking(count="bernoulli").slots(512) == 110  # 76.8 + 4 x 8.08
    assert Masking(0.9, count="bernoulli").slots(10) == 10


def test_default_slots_hold_a_bernoulli_selection():
    """Four standard deviations: about 3 rows of 100,000 overflow."""
    masked, _ = outcome(Masking(count="bernoulli"))
    assert (masked.dropped > 0).mean() < 0.001


# --------------------------------------------------------------------------------- overflow


@pytest.fixture(scope="module")
def overflow():
    """(ids, everything selected, what found a slot): 30 % of 59 tokens for 8 slots."""
    ids = text(20_000, 64, padding=3)
    whole = Masking(0.3, count="bernoulli", max_predictions=64)
    few = Masking(0.3, count="bernoulli", max_predictions=8)
    return ids, run(ids, whole), run(ids, few)


def test_overflow_is_dropped_restored_and_counted(overflow):
    ids, everything, few = overflow
    all_selected, kept = (selected_of(m, ids.shape) for m in (everything, few))
    assert not (kept & ~all_selected).any()
    np.testing.assert_array_equal(everything.dropped, 0)
    np.testing.assert_array_equal(few.dropped, (all_selected & ~kept).sum(axis=1))
    np.testing.assert_array_equal(kept.sum(axis=1), np.minimum(all_selected.sum(axis=1), 8))
    np.testing.assert_array_equal(np.asarray(few.input_ids)[~kept], ids[~kept])
    assert np.mean(few.dropped) > 8


def test_overflow_is_dropped_without_bias(overflow):
    """Every place in the row is dropped as often as any other, and kept likewise."""
    ids, everything, few = overflow
    all_selected, kept = (selected_of(m, ids.shape)[:, 1:60] for m in (everything, few))
    dropped = all_selected & ~kept
    for chosen in (kept, dropped):
        counts = chosen.sum(axis=0)
        share = counts / len(ids)
        # Of a row's 59 places some are chosen: variance at most that of independent choices.
        sigma = np.sqrt(share.mean() * (1 - share.mean()) / len(ids))
        assert np.abs(share - share.mean()).max() < 4.5 * sigma
        chi_square = ((counts - counts.mean()) ** 2).sum() / counts.mean()
        assert chi_square < 59 + 4 * np.sqrt(2 * 59)
    # Given the selection, all of its members have the same chance to be kept.
    early, late = all_selected[:, :29], all_selected[:, 29:58]
    rates = [(kept[:, :29][early]).mean(), (kept[:, 29:58][late]).mean()]
    assert abs(rates[0] - rates[1]) < 4.5 * np.sqrt(0.5 / early.sum())


def test_overflow_drops_whole_words():
    ids = text(4000, 64)
    words = words_of(ids)
    masked = run(ids, Masking(0.5, unit="word", count="bernoulli", max_predictions=8), words)
    selected = selected_of(masked, ids.shape)
    assert_words_together(selected, words)
    assert (np.asarray(masked.dropped) > 0).mean() > 0.99
    assert selected.sum(axis=1).max() <= 8 and selected.sum(axis=1).mean() > 7
    np.testing.assert_array_equal(np.asarray(masked.input_ids)[~selected], ids[~selected])


# ------------------------------------------------------------------------------------ words


def assert_words_together(selected, words):
    """Neighbours of one word are both selected or both not."""
    same = (words[:, 1:] == words[:, :-1]) & (words[:, 1:] >= 0)
    assert same.any()
    assert (selected[:, 1:][same] == selected[:, :-1][same]).all()


@pytest.mark.parametrize("masking", [p for p in POLICIES if p.unit != "token"], ids=str)
def test_words_are_selected_whole(many, masking):
    assert_words_together(outcome(masking)[1], words_of(many))


def word_lengths(words, row):
    """{first token: tokens} of a row's words."""
    starts = {}
    for i, word in enumerate(words[row]):
        if word >= 0:
            same = i > 0 and words[row, i - 1] == word
            start = max(s for s in starts if s < i) if same else i
            starts[start] = starts.get(start, 0) + 1
    return starts


def test_words_fill_the_budget_greedily(many):
    """Never more tokens than asked for, and no word left out that would still have fitted."""
    words = words_of(many)
    _, selected = outcome(Masking(0.15, 0.5, 0.4, unit="word"))
    budget = round(0.15 * 122)
    for row, chosen in enumerate(selected[:300]):
        left = budget - chosen.sum()
        assert left >= 0
        out = [size for start, size in word_lengths(words, row).items() if not chosen[start]]
        assert min(out) > left


def test_greedy_choice_equals_a_slow_one():
    """For given scores: words by rising score; one that does not fit any more is passed over."""
    rng = np.random.default_rng(5)
    rows, length = 400, 24
    words = np.cumsum(rng.random((rows, length)) < 0.5, axis=1).astype(np.int32)
    words[rng.random((rows, length)) < 0.1] = -1  # tokens that stand alone
    race = rng.random((rows, length)).astype(np.float32)
    for row in range(rows):  # a word has one score, its first token's
        for i in range(1, length):
            if words[row, i] >= 0 and words[row, i] == words[row, i - 1]:
                race[row, i] = race[row, i - 1]
    race[rng.random((rows, length)) < 0.15] = np.inf  # not maskable, also inside words
    budgets = rng.integers(0, 12, rows)
    got = jax.jit(jax.vmap(whole_words))(race, words, budgets)
    for row in range(rows):
        right = slow_whole_words(race[row], words[row], budgets[row])
        np.testing.assert_array_equal(np.isfinite(got[row]), right, err_msg=str(row))


def slow_whole_words(race, words, budget):
    groups: list[list[int]] = []
    for i, word in enumerate(words):
        if i and word >= 0 and word == words[i - 1]:
            groups[-1].append(i)
        else:
            groups.append([i])
    groups = [[i for i in group if np.isfinite(race[i])] for group in groups]
    taken = np.zeros(len(words), bool)
    for group in sorted((g for g in groups if g), key=lambda g: race[g[0]]):
        if len(group) <= budget:
            taken[group] = True
            budget -= len(group)
    return taken


def test_every_word_has_the_chance_of_a_slow_choice():
    """Shares of words of 1, 2, 4 and 8 tokens among 20,000 draws, against as many in numpy."""
    lengths = [1, 2, 4, 8, 1, 2, 4, 1]
    words = np.repeat(np.arange(8), lengths)
    ids = np.tile(ORDINARY[: len(words)].astype(np.int32), (20_000, 1))
    masked = run(ids, Masking(0.3, unit="word"), np.tile(words, (20_000, 1)))
    starts = np.cumsum([0, *lengths[:-1]])
    share = selected_of(masked, ids.shape)[:, starts].mean(axis=0)
    rng = np.random.default_rng(0)
    slow = np.zeros(8)
    for _ in range(20_000):
        left = round(0.3 * len(words))
        for word in rng.permutation(8):
            if lengths[word] <= left:
                left -= lengths[word]
                slow[word] += 1 / 20_000
    assert slow[3] == share[3] == 0  # eight tokens never fit into seven
    assert np.abs(share - slow).max() < 4.5 * np.sqrt(2 * 0.25 / 20_000)


def test_a_special_token_inside_a_word_does_not_hide_it():
    """Even in front; and it stays."""
    ids = np.tile(np.asarray([[SPECIAL.unk, 20, 21, SPECIAL.unk, 22, 23]], np.int32), (500, 1))
    words = np.tile(np.asarray([[1, 1, 1, 1, 1, 2]]), (500, 1))
    selected = selected_of(run(ids, Masking(0.75, unit="word"), words), ids.shape)
    first = selected[:, 1]
    np.testing.assert_array_equal(selected[:, [2, 4]], first[:, None].repeat(2, 1))
    np.testing.assert_array_equal(selected[:, 5], ~first)
    assert 0.4 < first.mean() < 0.6 and not selected[:, [0, 3]].any()


# ----------------------------------------------------------------------------- replacements


def random_tokens(masking, vocab_size=VOCAB, special=SPECIAL) -> np.ndarray:
    """What selected tokens become, when all become random."""
    ids = np.tile(ORDINARY[[3, 4]].astype(np.int32), (256, 128))
    masked = run(ids, masking, special=special, vocab_size=vocab_size)
    return np.asarray(masked.input_ids)[selected_of(masked, ids.shape)]


@pytest.mark.parametrize("vocab_size", [1000, 300])
def test_random_tokens_are_uniform_over_ordinary_ids(vocab_size):
    """Never special, never a padded row (the table has 1024 or 384), each as often (P31)."""
    drawn = random_tokens(Masking(0.9, 0.0, 1.0), vocab_size)
    ordinary = np.setdiff1d(np.arange(vocab_size), SPECIAL.ids)
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts.sum() == counts[ordinary].sum() > 50_000
    expected = counts.sum() / len(ordinary)
    chi_square = ((counts[ordinary] - expected) ** 2).sum() / expected
    assert abs(chi_square - len(ordinary)) < 4 * np.sqrt(2 * len(ordinary))


def test_random_tokens_by_recipe():
    """A range of ids, with special ones if the recipe has them (Google BERT: all of them)."""
    drawn = random_tokens(Masking(0.9, 0.0, 1.0, random_ids=(2, 8)))
    assert set(drawn) == {2, 3, 4, 5, 6, 7}


def test_special_ids_need_not_be_sorted_or_apart():
    special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4, additional=(999, 500, 501))
    drawn = random_tokens(Masking(0.9, 0.0, 1.0), special=special)
    assert set(drawn) == set(range(VOCAB)) - set(special.ids)


# --------------------------------------------------------------------------------- selection


def test_selection_weights_are_relative_chances():
    """Of one prediction: chances 0, 1, 2, 3, ...; of two: the second without the first."""
    ids = np.tile(ORDINARY[:6].astype(np.int32), (40_000, 1))
    weights = np.tile(np.arange(6, dtype=np.float32) * 7, (40_000, 1))
    chances = np.arange(6) / 15
    one = selected_of(run(ids, Masking(0.2), weights=weights), ids.shape).mean(axis=0)
    assert one[0] == 0
    assert np.abs(one - chances).max() < 4 * np.sqrt(0.25 / 40_000)
    two = selected_of(run(ids, Masking(0.3), weights=weights), ids.shape).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        second = [
            sum(p * q / (1 - p) for j, p in enumerate(chances) if j != i)
            for i, q in enumerate(chances)
        ]
    assert np.abs(two - (chances + second)).max() < 4 * np.sqrt(0.25 / 40_000)


def test_rows_have_their_own_masks():
    """Equal rows under one key are masked differently; one key a row decides all of it."""
    ids = np.tile(text(1, 64), (300, 1))
    masked = run(ids, Masking())
    assert len({row.tobytes() for row in np.asarray(masked.positions)}) == 300
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(300))
    jax.tree.map(np.testing.assert_array_equal, masked, run(ids, Masking(), key=keys))
    order = np.random.default_rng(0).permutation(300)
    moved = run(ids, Masking(), key=keys[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), masked, moved)


MESH_POLICIES = [
    Masking(unit="word"),
    Masking(count="bernoulli", max_predictions=8),
    Masking(unit="ngram"),
    Masking(unit="ngram", windowed=True),
    Masking(unit="span", count="ceil"),
    Masking(mask_prob=0.85, random_prob=0.0, with_replacement=True),
    Masking(0.3, final_rate=0.1, frequency_power=0.7),
]
COUNTS = np.arange(VOCAB) % 50


def both_policies(ids, words, keys, step):
    """Every policy, at a traced step of 10, with chances looked up in a table."""
    table = selection_table(COUNTS, 0.7, SPECIAL)
    maskable = maskable_tokens(ids, ids != SPECIAL.pad, Masking(), SPECIAL)
    return [
        mask_tokens(
            keys,
            ids,
            maskable,
            masking,
            special=SPECIAL,
            vocab_size=VOCAB,
            word_ids=words,
            selection_weights=selection_weights(table, ids) if masking.frequency_power else None,
            rate=masking.rate_at(step, 10),
        )
        for masking in MESH_POLICIES
    ]


@pytest.fixture(scope="module")
def on_one_device():
    ids = text(16, 64)
    arrays = [ids, words_of(ids), jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(16))]
    return arrays, jax.jit(both_policies, compiler_options=FAST_COMPILE)(*arrays, 4)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(MeshShape(1), marks=pytest.mark.slow),
        pytest.param(MeshShape(2), marks=pytest.mark.slow),
        pytest.param(MeshShape(2, 2), marks=pytest.mark.slow),
        MeshShape(1, 4, 2),
    ],
)
def test_masks_do_not_depend_on_the_mesh(on_one_device, shape):
    """Split over 1, 2, 4 and 8 devices, and in a region that is manual over the batch axes."""
    arrays, right = on_one_device
    devices = jax.devices()[: shape.data * shape.fsdp * shape.tensor]
    with jax.set_mesh(make_mesh(shape, devices)):
        region = jax.shard_map(
            both_policies,
            in_specs=(*[jax.P(specs.BATCH)] * 3, jax.P()),
            out_specs=jax.P(specs.BATCH),
            axis_names=set(specs.BATCH),
        )
        both = jax.jit(
            lambda i, w, k: (both_policies(i, w, k, 4), region(i, w, k, jnp.asarray(4))),
            compiler_options=FAST_COMPILE,
        )
        split, local = both(*(jax.device_put(x, jax.P(specs.BATCH)) for x in arrays))
    jax.tree.map(np.testing.assert_array_equal, split, right)
    jax.tree.map(np.testing.assert_array_equal, local, right)


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "masking, weights, message",
    [
        (Masking(random_ids=(5, 1001)), None, r"random_ids \(5, 1001\) reaches past .* 1000"),
        (Masking(unit="word"), None, "unit 'word' needs word_ids; pass them or use unit 'token'"),
        (Masking(count="bernoulli"), 1.0, "unit 'token' and count 'bernoulli'"),
        (Masking(unit="word"), 1.0, "masking.unit 'word' needs word_ids"),
        (Masking(unit="span"), None, "masking.unit 'span' needs word_ids"),
        (Masking(windowed=True), 1.0, "count 'fixed' and is windowed"),
        (Masking(frequency_power=0.7), None, "frequency_power 0.7 needs selection_weights"),
    ],
    ids=str,
)
def test_arguments_that_contradict_the_policy_are_refused(masking, weights, message):
    ids = text(2, 16)
    weights = None if weights is None else np.ones(ids.shape, np.float32)
    with pytest.raises(ValueError, match=message):
        run(ids, masking, weights=weights)
