"""Conversations as texts: by the chat template of a tokenizer, or in a plain form without one.

A conversation is a list of messages with the keys `role` and `content`; templates may read others.
"""

import datetime
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from rope_jax.errors import UserError
from rope_jax.extras import needs_extra

Messages = Sequence[Mapping[str, Any]]
Render = Callable[[Messages], str]

SETTINGS = "tokenizer_config.json"
_FOLDERS = "", "huggingface"  # an imported run keeps the files of its checkpoint in the second
_TODAY = datetime.datetime(2024, 7, 26)  # what Llama 3's template says where there is no clock
_GENERATION = re.compile(r"{%(-?)\s*(end)?generation\s*(-?)%}")


def is_chat(value: object) -> TypeGuard[Messages]:
    """Return whether a value of a column is a conversation."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(message, dict) and "role" in message for message in value)


def render_plainly(messages: Messages) -> str:
    """Return "ROLE: CONTENT" of each message, with an empty line between two.

    ValueError: a content is neither text nor a list of parts.
    """
    return "\n\n".join(f"{m['role']}: {_text_of(m.get('content'))}" for m in messages)


def _text_of(content: object) -> str:
    """Return the text of a message, which may be in parts; those that are not text are left out."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    for text in texts:
        if not isinstance(text, str | None):
            raise ValueError(f"a message's content is of type {type(text).__name__}, not text")
    return "".join(text for text in texts if isinstance(text, str))


class ChatTemplate(NamedTuple):
    """A chat template in Jinja, and the texts of the control tokens that it may name."""

    template: str
    tokens: Mapping[str, str]
    """Such as bos_token."""

    def settings(self) -> str:
        """Return the content of a tokenizer_config.json from which `find_template` reads it."""
        return json.dumps({"chat_template": self.template, **self.tokens}, indent=2) + "\n"

    def render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """Return what transformers' `apply_chat_template` gives, on a day that is always the same.

        add_generation_prompt: with the beginning of an assistant's answer.
        ValueError: the template refuses the messages, or is not valid.
        """
        # a table has null where a message lacks a key; that of `content` is the message's own
        given = [
            {key: x for key, x in m.items() if x is not None or key == "content"} for m in messages
        ]
        try:
            return _compiled(self.template).render(
                messages=given,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.tokens,
            )
        except UserError:  # jinja2 is missing
            raise
        except Exception as error:
            why = " ".join(str(error).split())
            raise ValueError(f"the tokenizer's chat template refuses it ({why})") from error


@functools.cache
def _compiled(template: str) -> Any:
    with needs_extra("chat", "the tokenizer's chat template"):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals |= {"raise_exception": refuse, "strftime_now": _TODAY.strftime}
    # marks what an assistant says, for masks of the loss
    return environment.from_string(
        _GENERATION.sub(lambda m: f"{{%{m[1]} {'endif' if m[2] else 'if true'} {m[3]}%}}", template)
    )


def find_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template in the folder of a tokenizer.json, if there is one.

    UserError: a file with settings is not JSON.
    """
    for directory in (folder / name for name in _FOLDERS):
        settings: dict[str, Any] = {}
        for name in (SETTINGS, "chat_template.json"):
            if (path := directory / name).is_file():
                try:
                    settings |= json.loads(path.read_text("utf-8"))
                except ValueError as error:
                    raise UserError(f"tokenizer.path: {path} is not JSON ({error})") from None
        template, jinja = settings.get("chat_template"), directory / "chat_template.jinja"
        if jinja.is_file():
            template = jinja.read_text("utf-8")
        if isinstance(template, list):  # several, by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        if template is not None:
            tokens = {
                key: token["content"] if isinstance(token, dict) else token
                for key, token in settings.items()
                if key.endswith("_token") and isinstance(token, str | dict)
            }
            return ChatTemplate(template, tokens)
    return None
