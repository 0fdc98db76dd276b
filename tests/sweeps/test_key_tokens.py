"""Key tokens of a tiny run: found as their definition says, kept, and scored in another's sweep."""

import csv
import io
import json
import shlex

import jax
import numpy as np
import pytest
import yaml

from rope_jax.commands.main import key_tokens as main
from rope_jax.config.load import validate
from rope_jax.config.sweep import KeyTokensConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import read_key_tokens
from rope_jax.session import Session
from rope_jax.sweeps.key_tokens import (
    find_key_tokens,
    is_key,
    near_windows,
    whole_windows,
)
from rope_jax.sweeps.model import chosen_checkpoints, load_model
from tests.sweeps.conftest import SMALL, STAGE, swept, trained

pytestmark = pytest.mark.usefixtures("blank_figures")

WINDOW, SHORT, STRIDE = 64, 12, 5
MODEL = SMALL | {"initializer_range": 0.3}  # so that attention is far from uniform
# an untrained model gains little, and nothing is likely
LOW = {"short": SHORT, "stride": STRIDE, "alpha": 0.1, "beta": -20.0}


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory):
    stages = [STAGE | {"seq_len": WINDOW}]
    return trained(tmp_path_factory.mktemp("long"), stages, name="long", model=MODEL)


def found(run, **settings):
    """Find key tokens; return the file and what was printed."""
    said = plain_console(file=io.StringIO(), width=200)
    path = find_key_tokens(*run, validate(KeyTokensConfig, LOW | settings, "test"), said)
    return path, said.file.getvalue()


@pytest.fixture(scope="module")
def mask(evaluator):
    return found(evaluator)


def test_key_tokens_are_those_of_the_definition(evaluator, mask):
    path, _ = mask
    run, training = evaluator
    said = plain_console(quiet=True)
    loaded = load_model(Session(run, training, said))
    _, checkpoints = chosen_checkpoints(run, None, loaded.memory.abstract_params, print)
    ((_, params),) = checkpoints
    layers, scaling = training.rotary_layers, training.stage_scaling(0)
    rotary = layers.rotary(scaling, np.arange(WINDOW, dtype=np.int32)[None], WINDOW)

    def log_p(stream, cases):
        """Return log-probabilities of tokens, given those from `begin` on: of (begin, place)."""
        # padded at the end, where no target sees it, so that one program does for all
        windows = np.zeros((len(cases), WINDOW + 1), np.int32)
        for window, (begin, place) in zip(windows, cases, strict=True):
            window[: place - begin + 1] = stream[begin : place + 1]
        nll = np.asarray(
            jax.jit(loaded.nll_of_last, static_argnums=3)(params, windows, rotary, WINDOW)
        )
        return [-row[place - begin - 1] for row, (begin, place) in zip(nll, cases, strict=True)]

    keys = read_key_tokens(str(path))
    assert (keys.corpus, keys.split) == (loaded.corpus.fingerprint, "test")
    assert (keys.evaluator.run, keys.evaluator.step, keys.evaluator.window) == ("long", 2, WINDOW)
    assert (keys.short, keys.stride, keys.alpha, keys.beta) == (SHORT, STRIDE, 0.1, -20.0)
    split = loaded.corpus.test
    assert [document.index for document in keys.documents] == list(range(len(split)))
    assert [document.id for document in keys.documents] == split.ids
    streams = [split.document(index) for index in range(len(split))]
    assert keys.candidates == sum(len(stream) - SHORT for stream in streams)

    document, stream = keys.documents[1], streams[1]
    half = WINDOW // 2
    ends = [WINDOW]  # the last target of each window
    while ends[-1] < len(stream) - 1:
        ends.append(min(ends[-1] + half, len(stream) - 1))
    places = range(1, 160)
    early = [place for place in places if place < SHORT]
    assert not {place - 1 for place in early} & set(document.tokens)
    later = places[len(early) :]
    whole_of = [(min(e for e in ends if e >= place) - WINDOW, place) for place in later]
    near_of = [((place - SHORT) // STRIDE * STRIDE, place) for place in later]
    log_ps = log_p(stream, [*whole_of, *near_of])
    gains = np.subtract(log_ps[: len(later)], log_ps[len(later) :])
    compared = 0
    for place, gain in zip(later, gains, strict=True):
        if abs(gain - 0.1) > 1e-4:  # rounding decides neither
            assert (place - 1 in document.tokens) == (gain > 0.1)
            compared += 1
    assert compared > 130
    assert 10 < sum(place < 159 for place in document.tokens) < 130


def test_the_file_lies_beside_the_tokens_and_is_written_once(evaluator, mask):
    path, said = mask
    assert path.name == "long-12.json"
    assert path.parent.name == "key_tokens"
    assert (path.parent.parent / "tokens").exists()
    keys = json.loads(path.read_text())
    count = sum(len(document["tokens"]) for document in keys["documents"])
    share = 100 * count / keys["candidates"]
    assert (
        f"{count:,} of {keys['candidates']:,} tokens ({share:.2g}%) are key tokens; written to"
        in said
    )
    before = path.stat().st_mtime_ns
    assert "already written" in found(evaluator)[1]
    assert path.stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"name: .* holds key tokens of another evaluator or other"):
        found(evaluator, alpha=0.2)
    assert found(evaluator, alpha=0.05, name="lower")[0].name == "lower.json"
    # the corpus is still complete
    load_model(Session(*evaluator, plain_console(quiet=True)))


def test_a_sweep_of_other_texts_scores_the_key_tokens_of_these(evaluator, run, tmp_path, capsys):
    words = np.random.default_rng(0).choice(["if", "for", "x", "=", "return"], (3, 120))
    for number, line in enumerate(words):
        (tmp_path / f"{number}.txt").write_text(" ".join(line))
    data = {"type": "text", "files": [str(tmp_path / "*.txt")]}
    main([str(evaluator[0].path), *(f"{k}={v}" for k, v in (LOW | {"data": data}).items())])
    *_, last = capsys.readouterr().out.splitlines()
    *_, tasks, texts = (yaml.safe_load(given.partition("=")[2]) for given in shlex.split(last))
    assert texts == data
    folder, _ = swept(run, name="texts", tasks=tasks, data=texts, scalings=["trained"])
    assert "longppl" in (folder / "tasks.csv").read_text()


def test_too_few_key_tokens_are_refused(evaluator):
    with pytest.raises(UserError) as error:
        found(evaluator, alpha=15.0, name="few")
    said = str(error.value)
    assert said.startswith("alpha: 0 of ")
    assert "fewer than 200 say little: " in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"short": 60, "stride": 4}, "short: 60 and the stride of 4 are not less than"),
        ({"step": 7}, "checkpoints: has no step 7; it has 2"),
        ({"data": {"type": "text", "files": ["*"], "test_fraction": 0.5}}, "data.test_fraction: "),
    ],
)
def test_bad_input(evaluator, settings, says):
    with pytest.raises(UserError, match=says):
        found(evaluator, **settings)


def test_a_sweep_of_another_run_scores_them(run, mask):
    path, _ = mask
    tasks = [{"task": "longppl", "mask": str(path), "samples": 5000}]
    folder, said = swept(run, name="far", tasks=tasks, scalings=["trained"])
    with (folder / "tasks.csv").open() as file:
        rows = list(csv.DictReader(file))
    keys = read_key_tokens(str(path))
    count = sum(place >= 64 for document in keys.documents for place in document.tokens)
    assert [(row["length"], row["metric"]) for row in rows] == [
        (length, "nats") for length in ("16", "64")
    ]
    assert {row["tokens"] for row in rows} == {str(count)}
    assert all(0 < float(row["value"]) < 10 for row in rows)
    assert f"perplexity of {count:,} key tokens" in said
    assert "## `longppl`" in (folder / "results.md").read_text()
    assert (folder / "longppl.png").is_file()


def test_a_mask_of_other_texts_is_refused(run, mask, tmp_path):
    content = json.loads(mask[0].read_text())
    path = tmp_path / "mask.json"
    tasks = [{"task": "longppl", "mask": str(path)}]
    path.write_text(json.dumps(content | {"corpus": "0" * 64}))
    with pytest.raises(UserError, match=r"tasks: mask: .* was made from another corpus"):
        swept(run, name="corpus", tasks=tasks)


# What is read with which context, and which tokens count


def places(windows):
    """All targets that count, as (document, place in it, position in the window), sorted."""
    return sorted(
        (document, start + position, position)
        for document, start, first, last in windows
        for position in range(first, last + 1)
    )


@pytest.mark.parametrize("sizes", [[5, 33, 64, 65, 66, 97, 300], [2]])
@pytest.mark.parametrize(("length", "least"), [(64, 32), (64, 63), (7, 4)])
def test_every_target_is_read_once_with_all_before_it_or_enough(sizes, length, least):
    windows = whole_windows(sizes, length, least)
    every = [(document, place) for document, size in enumerate(sizes) for place in range(1, size)]
    assert [(document, place) for document, place, _ in places(windows)] == every
    for _, place, position in places(windows):
        assert position == place or least < position <= length
    assert all(window.start >= 0 and window.last <= length for window in windows)


@pytest.mark.parametrize(("short", "stride"), [(16, 4), (16, 1), (5, 9)])
def test_near_context_has_short_to_short_plus_stride_minus_1_tokens(short, stride):
    sizes = [4, 16, 17, 18, 40, 41, 100]
    found = places(near_windows(sizes, short, stride))
    every = [(document, n) for document, size in enumerate(sizes) for n in range(short, size)]
    assert [(document, place) for document, place, _ in found] == every
    assert all(short <= position < short + stride for _, _, position in found)


def test_a_key_token_gains_more_than_alpha_and_is_likely():
    whole = np.float32([-1.0, -1.0, -1.9, -2.0, -1.0, np.nan])
    near = np.float32([-3.1, -3.0, -9.0, -9.0, np.nan, -9.0])
    assert is_key(whole, near, 2.0, -2.0).tolist() == [True, False, True, False, False, False]
