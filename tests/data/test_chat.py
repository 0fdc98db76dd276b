"""Conversations by the chat template of a tokenizer: as transformers' apply_chat_template."""

import json

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from rope_jax.config.data import JsonLinesData
from rope_jax.config.tokenizer import FileTokenizerConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.chat import ChatTemplate, find_template, render_plainly
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import open_tokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from tests.data.test_corpora import whole

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": None}]
# in the manner of ChatML
TEMPLATE = """{{ bos_token }}
{%- for m in messages %}
    {%- if m.tool_calls is defined %}{{ raise_exception("no tools") }}{% endif %}
    {% if m.role == "system" %}{% continue %}{% endif %}
<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}
{%- endfor %}"""
TEXT = "<s><user>a</s><assistant>b</s>"


def test_a_template_is_rendered_as_by_transformers():
    template = ChatTemplate(TEMPLATE, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render([{"role": "system", "content": "?"}, *CHAT]) == TEXT
    assert (
        ChatTemplate("{{ messages | tojson }}", {}).render([{"role": "é<"}]) == '[{"role": "é<"}]'
    )
    # null is dropped where a table has it for an absent key, but content may be none
    nulls = [{"role": "user", "name": None, "content": None}]
    told = "{% for m in messages %}{{ m.content is none, m.name is defined }}{% endfor %}"
    assert ChatTemplate(told, {}).render(nulls) == "(True, False)"
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render([]) == "2024"
    with pytest.raises(ValueError, match=r"chat template refuses it \(no tools\)"):
        template.render([{"role": "user", "tool_calls": []}])
    with pytest.raises(ValueError, match=r"refuses it \(.*unsafe"):
        ChatTemplate("{{ ''.__class__.__mro__ }}", {}).render([])


def test_a_message_may_have_its_text_in_parts_or_none():
    parts = ["a", {"type": "image"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert render_plainly(messages) == "user: ab\n\nassistant: "


@pytest.mark.parametrize("place", ["", "huggingface"])
def test_a_corpus_of_conversations_has_control_tokens(tmp_path, place):
    made = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.add_special_tokens(["<s>", "</s>", "<user>", "<assistant>"])
    folder = tmp_path / "model"
    (folder / place).mkdir(parents=True)
    (folder / "tokenizer.json").write_text(made.to_str())
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (folder / place / "tokenizer_config.json").write_text(json.dumps(settings))
    assert find_template(folder) is None
    (folder / place / "chat_template.jinja").write_text(TEMPLATE)

    (tmp_path / "chats.json").write_text(json.dumps([{"messages": CHAT}]))
    files = {"train": [str(tmp_path / "chats.json")]}
    data = JsonLinesData(
        **whole(files=files, column="messages", eos="</s>", split_special_tokens=False)
    )
    config = FileTokenizerConfig(path=str(folder / "tokenizer.json"), bos="<s>")
    tokenizer = open_tokenizer(config, data)
    # the start and the end of the template's text are those of the document, too
    corpus = open_corpus(data, tokenizer)
    assert corpus.train.tokens.tolist() == [3, 5, 1, 4, 6, 2, 4]
    with pytest.raises(UserError, match=r"^data\.column: 'messages' of .*:0: .*split_special_toke"):
        open_corpus(data.model_copy(update={"split_special_tokens": True}), tokenizer)

    # a run keeps the template beside its tokenizer
    stage = {"steps": 1, "seq_len": 4, "batch_size": 1}
    training = TrainingConfig(name="run", stages=[stage], data=data, tokenizer=config)
    run = RunDirectory(tmp_path / "run")
    with run.prepared(training, tokenizer):
        assert find_template(run.path) == tokenizer.chat
