"""scripts/aot.py: how targets are read. Its compilers are not in the development environment."""

import importlib.util

import pytest

from rope_jax.errors import UserError
from scripts.aot import parse_target


@pytest.mark.parametrize(
    ("text", "shape"),
    [("v5e:1x1", (1, 1)), ("V6E:2x4", (2, 4)), ("h200:1", (1, 1)), ("b200:32", (4, 8))],
)
def test_a_target_is_a_chip_and_the_shape_of_a_slice(text, shape):
    assert (parse_target(text).text, parse_target(text).shape) == (text.lower(), shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5", r"'v5' is not one of v4, v5e, .*; did you mean v5p or v5e\?; as in v5e:4x4"),
        ("v5e", r"v5e: give a size as in v5e:4x4$"),
        ("v5p:4x4", r"v5p:4x4: give a size as in v5p:2x2x4$"),
        ("h100:2x4", r"h100:2x4: give a size as in h100:8$"),
        ("h100:12", r"h100:12: more than 8 GPUs are a multiple of that$"),
    ],
)
def test_a_target_that_does_not_exist_is_answered_with_those_that_do(text, message):
    with pytest.raises(UserError, match=f"^target: {message}"):
        parse_target(text)


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x2", "tpu"), ("h100:8", "cuda12")])
def test_without_its_compiler_a_line_says_what_to_install(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"^target: {text}.*pip install 'rope-jax\[{extra}\]'"):
        parse_target(text).devices()
