"""Renders conversations with the sample model's chat template (the one stored in the GGUF file)."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import jinja2
import jinja2.sandbox

TEMPLATE_PATH = pathlib.Path(__file__).with_name("chat_template.jinja")
Message = dict[str, Any]


def template_text() -> str:
    return TEMPLATE_PATH.read_text().rstrip("\n")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


@functools.cache
def _template() -> jinja2.Template:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = _raise
    return env.from_string(template_text())


def render(messages: list[Message], tools: list[dict[str, Any]] | None = None, *, generation: bool = False,
           **variables: Any) -> str:
    """The text of a conversation; ``generation`` appends the assistant's opening."""
    return _template().render(messages=messages, tools=tools, add_generation_prompt=generation, **variables)


def segments(messages: list[Message], tools: list[dict[str, Any]] | None = None,
             **variables: Any) -> list[tuple[str, bool]]:
    """Splits a rendered conversation into (text, answer?) pieces.

    An answer piece is what the model writes itself: from the generation prompt to ``<|im_end|>``.
    """
    pieces: list[tuple[str, bool]] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render(messages[:index], tools, generation=True, **variables)
        whole = render(messages[:index + 1], tools, **variables)
        if not (prompt.startswith(done) and whole.startswith(prompt)):
            raise ValueError("the template does not extend its own prefix")
        pieces += [(prompt[len(done):], False), (whole[len(prompt):-1], True)]
        done = whole[:-1]
    pieces.append(("\n", False))
    return pieces
