"""What a run's model answers in lm-evaluation-harness, and what of it is the harness's own way."""

import jax.numpy as jnp
import lm_eval.api.registry
import numpy as np
import pytest
from lm_eval.api.instance import Instance

import rope_jax.harness
from rope_jax.config.entries import parse_entries
from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.chat import ChatTemplate
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import scores_of_last
from rope_jax.generation.opening import open_model
from rope_jax.generation.sampling import Sampling
from rope_jax.harness.model import HarnessModel, _sampling
from rope_jax.positions.bands import of_tokens
from rope_jax.session import Session
from tests.generation.test_run import BYTES, QUIET, likeliest
from tests.sweeps.conftest import run

__all__ = ["run"]
START = 256
GIVEN = {"batch_size": "2", "device": "cuda:0", "max_batch_size": None}  # by its command
MAPPED = {"type": "yarn", "factor": 4, "map": {"type": "rerope", "window": 8}}
PAIRS = [("rope", " turns"), ("", "slow pair"), ("slow " * 9 + "s", "x"), ("a", " fast\n" * 3)]


def asked(*arguments):
    return [Instance("generate_until", {}, each, 0) for each in arguments]


@pytest.fixture
def opened(run):
    return open_model(Session(*run, QUIET))


def model(opened, entry="trained", length=64, batch_size=1):
    return HarnessModel(opened, parse_entries(entry)[0], length, batch_size)


@pytest.mark.parametrize("entry", ["trained", "yarn", MAPPED])
def test_loglikelihoods_are_those_of_each_text_alone_in_the_window(opened, entry):
    read = scores_of_last(opened.model, opened.placement)
    rotary = opened.rotary(parse_entries(entry)[0], 64)
    expected = []
    for context, continuation in PAIRS:
        tokens = np.array([[START, *f"{context}{continuation}".encode()]], np.int32)
        of_text = of_tokens(rotary, lambda x, n=tokens.shape[1] - 1: x[..., :n])
        scores = read(opened.params, jnp.asarray(tokens), of_text, len(continuation))
        expected.append((-float(scores.nll.sum()), bool(scores.is_top1.all())))
    for batch_size in (1, 3):
        answers = model(opened, entry, batch_size=batch_size).loglikelihood(asked(*PAIRS))
        assert [is_first for _, is_first in answers] == [is_first for _, is_first in expected]
        found, wanted = ([score for score, _ in each] for each in (answers, expected))
        assert found == pytest.approx(wanted, rel=1e-5)


def test_spaces_go_to_the_continuation_and_a_text_has_one_start(opened):
    harness = model(opened)
    assert harness.tok_encode("ab") == [START, 97, 98] == harness.tok_encode(f"{START_TOKEN}ab")
    assert harness.tok_encode("ab", add_special_tokens=False) == [97, 98]
    moved, given = harness.loglikelihood(asked(("rope  ", "turns"), ("rope", "  turns")))
    assert moved == given


def test_a_rolling_text_is_scored_once_and_too_long_a_context_cut(opened, capsys):
    text = "slow pair turns " * 9
    tokens = BYTES.encode(text).tolist()
    harness = model(opened, length=64, batch_size=2)
    windows = [([START], [START, *tokens[:63]]), ([tokens[62]], tokens[63:127])]
    windows.append((tokens[79:127], tokens[127:]))
    parts = harness._loglikelihood_tokens([(None, *window) for window in windows])
    rolled = harness.loglikelihood_rolling(asked((text,), ("fast",)))
    assert rolled[0] == pytest.approx(sum(score for score, _ in parts), rel=1e-6)
    short = [START, *b"fast"]
    ((whole, _),) = harness._loglikelihood_tokens([(None, [START], short)])
    assert rolled[1] == pytest.approx(whole, rel=1e-6)
    long, short = harness.loglikelihood(asked((text, "x"), (text[-64:], "x")))
    assert long == short


def test_generation_is_greedy_until_a_stop_string(opened):
    prompts = ["rope turns", "a"]
    settings = {"until": [], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
    harness = model(opened, "yarn", length=40, batch_size=2)
    made = harness.generate_until(asked(*((prompt, settings) for prompt in prompts)))
    for prompt, text in zip(prompts, made, strict=True):
        expected = likeliest(opened, harness.tok_encode(prompt), 12, "yarn", 40)
        end = expected.index(START) if START in expected else 12
        assert text == BYTES.decode(np.array(expected[:end]))
    stop = made[0][3:5]
    (stopped,) = harness.generate_until(asked((prompts[0], settings | {"until": [stop]})))
    assert stopped == made[0].split(stop)[0]
    ((_, is_first),) = harness.loglikelihood(asked((prompts[0], made[0])))
    assert is_first


def test_a_prompt_too_long_is_cut_and_counted_in_one_warning(opened, monkeypatch):
    warnings = []
    monkeypatch.setattr(Session, "warn", lambda _, message: warnings.append(message))
    prompts, settings = ["slow pair " * 9, "turns " * 20, "a"], {"max_gen_toks": 8}
    harness = model(opened, length=40)
    made = harness.generate_until(asked(*((prompt, settings) for prompt in prompts)))
    assert warnings == ["2 of 3 texts do not fit into max_length 40, and lost their beginnings"]
    expected = likeliest(opened, harness.tok_encode(prompts[0])[-32:], 8, "trained", 40)
    assert made[0] == BYTES.decode(np.array(expected))


def test_settings_without_effect_or_room_are_refused(opened):
    with pytest.raises(UserError, match="max_gen_toks: must be less than max_length 64"):
        model(opened).generate_until(asked(("a", {"max_gen_toks": 64})))
    with pytest.raises(UserError, match="generation_kwargs: num_beams: unknown; there are"):
        model(opened).generate_until(asked(("a", {"num_beams": 4, "max_gen_toks": 4})))


def test_a_continuation_longer_than_the_window_is_refused(opened):
    whole, longer = (model(opened, length=16).loglikelihood, "x" * 17)
    assert len(whole(asked(("a", longer[1:])))) == 1
    with pytest.raises(UserError, match="max_length: 16, but a continuation has 17"):
        whole(asked(("a", longer)))


def test_settings_of_sampling_may_have_their_defaults_in_words():
    given = {"until": [], "max_gen_toks": 4, "num_beams": 1}
    assert _sampling(given | {"do_sample": False, "temperature": 0.5}) == Sampling()
    drawn = given | {"do_sample": True, "top_k": 0, "top_p": 0.9}
    assert _sampling(drawn) == Sampling(temperature=1.0, top_p=0.9)


def test_a_conversation_may_end_in_an_answer_that_is_begun(opened, monkeypatch):
    harness, said = model(opened), [{"role": "user", "content": "Hi"}]
    with pytest.raises(UserError, match="apply_chat_template: the run's tokenizer has no"):
        harness.apply_chat_template(said)
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    monkeypatch.setattr(opened.session.tokenizer, "chat", ChatTemplate(template, {}))
    assert harness.apply_chat_template(said) == "[user]Hi[end][assistant]"
    said.append({"role": "assistant", "content": "The answer is "})
    begun = harness.apply_chat_template(said, add_generation_prompt=False)
    assert begun == "[user]Hi[end][assistant]The answer is "
    monkeypatch.setattr(
        opened.session.tokenizer, "chat", ChatTemplate("{{ messages[1].content | trim }}", {})
    )
    assert harness.apply_chat_template(said, add_generation_prompt=False) == "The answer is"


def test_the_harness_finds_it_by_name(run, opened):
    assert rope_jax.harness.RegisteredModel is lm_eval.api.registry.get_model("rope_jax")
    keys = f"run={run[0].path},strategy=yarn,max_length=64,tokenizer=here"
    registered = rope_jax.harness.RegisteredModel.create_from_arg_string(keys, GIVEN)
    answers = registered.loglikelihood(asked(*PAIRS))
    assert answers == model(opened, "yarn", batch_size=2).loglikelihood(asked(*PAIRS))
