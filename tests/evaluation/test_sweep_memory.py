"""A sweep that needs more memory than there is is refused before it runs."""

import importlib

import jax
import pytest

from rope_jax.errors import UserError
from tests.evaluation.toy_model import cheap_nll, run


def test_the_longest_length_is_refused_by_the_compilers_figure(monkeypatch):
    monkeypatch.setattr("rope_jax.evaluation.measure.least_available", lambda: 64)
    read = []
    with pytest.raises(UserError) as caught:
        run(["trained"], [8, 64], nll=cheap_nll, progress=lambda *now: read.append(now[1]))
    assert str(caught.value).startswith("lengths: ")
    assert "× 64 tokens at a time take at least" in str(caught.value)
    assert str(caught.value).endswith("but there are only 6e-08; lower memory_gib")
    assert read == [0]


def test_a_single_window_that_does_not_fit_is_too_long(monkeypatch):
    monkeypatch.setattr("rope_jax.evaluation.measure.least_available", lambda: 64)
    with pytest.raises(UserError, match=r"^lengths: 1 × 64 .*; leave out the longest length$"):
        run(["trained"], [8, 64], nll=cheap_nll, memory_gib=1e-9)


def test_windows_that_the_host_cannot_hold_are_refused_before_any_work(monkeypatch):
    def nll(params, tokens, rotary):
        raise AssertionError("traced")

    module = importlib.import_module("rope_jax.evaluation.measure")
    monkeypatch.setattr(module, "host_bytes", lambda: 2**16)
    with pytest.raises(UserError) as caught:
        run(["trained"], [8, 64], nll=nll, protocols=["sliding"], stride=1, max_blocks=100)
    assert str(caught.value).startswith("sliding: ")
    assert str(caught.value).endswith("; raise stride, or lower max_blocks or max_documents")


def test_a_program_that_ran_was_compiled_once(monkeypatch):
    compiled = []
    whole = jax.stages.Lowered.compile

    def compile_and_count(lowered, **options):
        compiled.append(1)
        return whole(lowered, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_and_count)
    assert run(["trained"], [8, 64], nll=cheap_nll).compilations == len(compiled)
