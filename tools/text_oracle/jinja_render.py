#!/usr/bin/env python3
"""Renders template cases with Jinja2, set up as `transformers` does for chat templates.

Usage: jinja_render.py CASES.json > RESULTS.json
A case is [template, variables]; a result is the text, or null where rendering fails. Needs
Debian's python3-jinja2.
"""
import datetime
import functools
import json
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1764460800  # 2025-11-30T00:00:00Z, what the tests give as the time


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_through"), [], [], body).set_lineno(line)

    def _through(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


@functools.lru_cache(None)
def compiled(template):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return env.from_string(template)


def render(template, variables):
    try:
        return compiled(template).render(**variables)
    except Exception:
        return None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        data = json.load(f)
    results = [render(data["templates"][t] if isinstance(t, int) else t, v) for t, v in data["cases"]]
    json.dump(results, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
