#!/usr/bin/env python3
"""Writes the chat template tests' cases and Jinja2's results: tests/text/data/template_*.json.

Usage: make_template_cases.py DATA_DIRECTORY. Whole templates are in DATA_DIRECTORY/templates; the
snippets below take one construct each. Needs Debian's python3-jinja2.
"""
import json
import os
import sys

import jinja_render

SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 // 3 % 5 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 123456789.125 }} {{ 1.5e300 }} {{ 2 ** 0.5 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}
{{ true }} {{ false }} {{ none }} {{ True + 1 }} {{ not x }} {{ not 0 }} {{ [] or 'e' }} {{ '' and 1 }} {{ 0 or none }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'é' > 'z' }} {{ (1, 2) == [1, 2] }} {{ none == false }}
{{ 2 in [1, 2] }} {{ 'b' in 'abc' }} {{ 'k' in d }} {{ 'x' not in d }}
{{ 1 in s }}
{{ 'a' in u }} {{ u in [u] }} {{ none in [none] }}
{{ 'a' ~ 1 ~ none ~ 1.5 ~ [1, 'b'] ~ u }} {{ 'a' 'b' "c" }} {{ 'ab' * 3 }} {{ 3 * [1] }} {{ [1] + [2] }} {{ 'x' + s }}
{{ 'a' + 1 }}
{{ u }}|{{ u.x }}
{{ u }}|{{ d.missing }}|{{ d['missing'] }}|{{ l[99] }}|{{ s[99] }}|{{ (d.missing or 'none') }}
{{ d.missing.deeper }}
{{ u + 1 }}
{{ u < 1 }}
{{ u == u }} {{ u is defined }} {{ u is undefined }} {{ d.k is defined }} {{ d.zz is defined }} {{ u is none }} {{ n is none }} {{ u | length }} {{ u | list }} [{% for x in u %}x{% endfor %}]
{{ u | tojson }}
{{ d.k }} {{ d['k'] }} {{ d.items() | list }} {{ d['items'] }} {{ e.keys() | list }} {{ d.values() | list }} {{ d.get('k') }} {{ d.get('zz') }} {{ d.get('zz', 7) }} {{ d.get('zz', default=8) if false else '' }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[3:1:-1] }} {{ l[:] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[10:2] }} {{ (1, 2, 3)[1:] }} {{ l.0 }} {{ l[true] }}
{{ l[::0] }}
{{ n[0:1] }}
{{ 'yes' if d.k else 'no' }} {{ 'yes' if u }} {{ 1 if false else 2 if false else 3 }}
{{ [1, 'a', none, true, 1.5, [2], {'k': 'v'}, (1,), (), 'it''s'] }} {{ {'a': 1, 'b': [none]} }} {{ "q'q" | list }} {{ ['"', "'", "'\""] }} {{ ['\n\t\\', '\x00\x7f', 'é🙂\u200b', '\xa0'] }}
{{ 'a\n\t\\\'\"\x41\u00e9\U0001F642\101\q' }} {{ "it's" }} {{ 'say "hi"' }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for x in l if x != 3 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %} {% for x in [] %}a{% else %}empty{% endfor %} {% for x in l if x > 99 %}a{% else %}filtered{% endfor %}
{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'héy' %}[{{ c }}]{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in l %}{% for y in l %}{% if y > x %}{% break %}{% endif %}{% if y == 2 %}{% continue %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %} {{ range(2, 8, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3)[1] if false else '' }}
{{ range(1000000) | length }}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{% set ns.c = [1] %}{{ ns.c }}{{ ns['a'] }}
{% set ns = namespace({'z': 3}, y=4) %}{{ ns.z }}{{ ns.y }}
{% set d.k = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, e) = [3, 4] %}{{ c }}{{ e }}{% set t = 1, %}{{ t }}
{% set x %}  body {{ 1 + 1 }} {% endset %}[{{ x }}]{% set y | trim | upper %}  block {% endset %}[{{ y }}]
{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(a=5, c=6) }} {{ f() }} {{ f(1, c='x') ~ '!' }} {{ f.name }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}
{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1) | int) }}{% endif %}{% endmacro %}{{ fact(6) }}
{% macro outer() %}{{ y }}{% endmacro %}{% set y = 'late' %}{{ outer() }}{% for y in [1] %}{{ outer() }}{% endfor %}
{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}in {{ s }}{% endcall %}{% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) each([1, 2]) %}({{ v }}){% endcall %}
{% filter upper | replace('A', 'b') %}abc{{ s }}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% raw %}{{ not }} {% this %} {# either #}{% endraw %}{%- raw -%}  x  {%- endraw -%}  y
{% generation %}inside{{ 1 }}{% endgeneration %}
{% for x in [[1, [2, [3]]], [4]] recursive %}{% if x is sequence and x is not string %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
text   {%- if true -%}   tight   {%- endif -%}   end
a {{- ' b ' -}} c  {#- gone -#}  d {# here #} e
x
    {# comment line #}
    y
    {%+ if true %}kept indent{% endif +%}
z
{{ '{{' }} {{ '%}' }} {{ {'a': {'b': 1}} }} {{ {'a': 1}['a'] }} {{ {}}}
{{ '  a b  ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ '  a'.strip() }}|{{ 'xyax'.strip('xy') }}|{{ 'xxa'.lstrip('x') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ '\u3000a\u00a0' | trim }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b  c '.split(none, 1) }} {{ 'abc'.split('x') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'aXXbXXc'.split('XX')[-1] }} {{ 'a\nb\r\nc\x0bd'.splitlines() }} {{ 'a,b,c'.rsplit(',') }}
{{ 'abc'.split('') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'éab'.find('b') }} {{ 'abcabc'.rfind('b') }} {{ 'abcabc'.find('b', 2) }} {{ 'abc'.find('a', 1, 2) }} {{ 'abab'.count('ab') }} {{ 'abc'.count('') }} {{ 'abc'.index('b') }}
{{ 'abc'.index('z') }}
{{ 'abc'.replace('b', 'X') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }} {{ 'aaa' | replace('a', 'bb') }} {{ 'aaa' | replace('a', 'c', 1) }} {{ 123 | replace(2, 'x') }}
{{ 'hello World'.upper() }} {{ 'ÀÉ'.lower() }} {{ 'straße' | upper }} {{ 'hELLO wORLD' | capitalize }} {{ "they're bill's" | title }} {{ "they're bill's".title() }} {{ 'foo-bar (baz)' | title }} {{ 'HI'.isupper() }} {{ 'Hi'.islower() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ''.isalpha() }} {{ ' \n'.isspace() }}
{{ ', '.join(['a', 'b']) }} {{ [1, 2, none] | join('-') }} {{ d | join(',') }} {{ lo | join('/', attribute='n') }} {{ 'abc' | join('.') }} {{ [] | join }}
{{ ','.join([1]) }}
{{ 'a:b:c'.partition(':') }} {{ 'a:b:c'.rpartition(':') }} {{ 'abc'.partition('x') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.md'.removesuffix('.md') }} {{ '{} and {1} {{x}} {n}'.format('a', 'b', n=3) if false else '{} {}'.format(1, 'z') }} {{ '{0}{n}'.format(1, n=2) }}
{{ '%s is %d, %.2f %5d|%-4d|%04d %%' % ('x', 3, 1.255, 42, 7, 7) }} {{ '%s' % 'one' }} {{ '%s-%s' | format(1, 'b') }}
{{ '%s %s' % 'one' }}
{{ d | tojson }} {{ lo | tojson }} {{ s | tojson }} {{ 'é<>&\'"\\/\n\t\b\f\r\x01\x7f🙂' | tojson }} {{ 'é🙂' | tojson(ensure_ascii=true) }} {{ [1.0, 1e16, 1.5, true, none] | tojson }} {{ {} | tojson }} {{ [] | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ d | tojson(indent=2) }} {{ lo | tojson(indent=4) }} {{ [[], {}] | tojson(indent=1) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ [1, 2] | tojson(indent='--') }} {{ d | tojson(indent=none) }}
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A', 'c'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ lo | sort(attribute='n') | map(attribute='n') | list }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }} {{ {'b': 1, 'A': 2} | dictsort(true) }}
{{ [1, 'a'] | sort }}
{{ lo | map(attribute='n') | list }} {{ lo | map(attribute='o.p') | list }} {{ lo | map(attribute='zz', default='-') | list }} {{ ['a', 'b'] | map('upper') | list }} {{ [[1, 2], [3]] | map('first') | list }} {{ ['a b'] | map('replace', ' ', '_') | list }} {{ [[1, 2], [3, 4]] | map(attribute=1) | list }}
{{ [0, 1, '', 'a', none] | select | list }} {{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('eq', 2) | list }} {{ lo | selectattr('n') | list | length }} {{ lo | selectattr('n', 'gt', 1) | map(attribute='n') | list }} {{ lo | rejectattr('n', 'equalto', 2) | map(attribute='n') | list }} {{ [1, 'a', none] | select('string') | list }} {{ lo | selectattr('t', 'defined') | list | length }} {{ [3, 5] | select('in', [5, 6]) | list }}
{{ l | first }} {{ l | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first }} {{ d | first }} {{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | sum }} {{ lo | sum(attribute='n') }} {{ [1, 2] | sum(start=10) }} {{ l | min }} {{ l | max }} {{ ['b', 'A'] | min }} {{ [] | max }} {{ [1, 1, 2, 'a', 'A'] | unique | list }} {{ 'abc' | list }} {{ d | list }} {{ (1, 2) | list }}
{{ '42' | int }} {{ '4.9' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 4.9 | int }} {{ none | int }} {{ '0x1f' | int(base=16) }} {{ ' 12 ' | int }} {{ '-3' | int }} {{ true | int }} {{ '1.5' | float }} {{ 'x' | float(2.5) }} {{ 3 | float }} {{ -3 | abs }} {{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 2.675 | round(2) }}
{{ u | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ none | d('d', boolean=true) }} {{ d.zz | default(1) }} {{ 0 | default(5) }} {{ u | default }}
{{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(2, blank=true) }} {{ 'a\nb\n' | indent('> ') }} {{ '' | indent }}|
{{ 5 | string + '!' }} {{ [1] | string }} {{ 'x' | safe }} {{ '<a href="x">\'&' | e }} {{ 'héllo wörld foo_bar' | wordcount }} {{ 'héé' | length }} {{ d | count }} {{ 'x' | attr('upper') is callable }} {{ d | attr('k') }}
{{ n | length }}
{% if [] | select %}a generator is true{% endif %} {% if l | map('string') | list %}y{% endif %} {{ (l | select) is sequence }} {{ (l | select) is iterable }} {{ (l | map('string')) == (l | map('string')) }} {% for x in l | reverse %}{{ x }}{% endfor %}
{{ l | select | length }}
{{ l | select | tojson }}
{{ (l | map('string'))[0] }}|{{ (l | map('string')).append is defined }}
{{ (l | map('string'))[1:] }}
{{ lo | sort(attribute='zz') | map(attribute='n') | list }} {{ lo | sort(attribute='n,o.p') | map(attribute='n') | list }} {{ [none, none] | sort }} {{ [] | sort }} {{ [[2, 'b'], [1, 'a']] | sort }}
{{ lo | sort(attribute='t') }}
{{ u | dictsort }}
{{ 5 | indent }}
{{ true | round }} {{ 2.5 is odd }} {{ 3.0 is odd }} {{ 7.5 is divisibleby 2.5 }} {{ u is callable }}
{{ 's' is odd }}
{{ 5 | items | list }}
{{ l | nosuchfilter }}
{{ l is nosuchtest }}
{{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ 's' is string }} {{ d is mapping }} {{ l is sequence }} {{ d is sequence }} {{ 's' is sequence }} {{ n is sequence }} {{ l is iterable }} {{ 5 is iterable }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 'a' is in ['a'] }} {{ 'a' is not in 'xyz' }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ range is callable }} {{ none is sameas none }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 1 is lessthan 2 }}
{{ l is defined and l is not none and not l is string }} {{ not l is defined }} {{ 1 is defined == true }} {{ 'a' if s is string and s else 'b' }} {{ (1 if u is defined else 2) }}
{{ -1 | abs }} {{ -1.5 | abs }} {{ +3 }} {{ 1 - -1 }} {{ 'a' | upper ~ 'b' | upper }} {{ 2 + 3 | string | length }} {{ 1, 2 }} {{ (1) }} {{ () }}
{{ dict(a=1, b=[2]) }} {{ dict([('x', 1)]) }} {{ dict({'a': 1}, b=2) }} {{ {'a': 1, 'a': 2} }}
{{ l.append(1) }}
{{ d.update({'a': 1}) }}
{{ d.pop('k') }}
{{ s.__class__ }}
{{ s.__class__.__mro__ }}
{{ l.index(2) }} {{ [1, 1].count(1) }}
{{ raise_exception('no') }}
{{ strftime_now('%d %b %Y') }}
{{ s() }}
{{ nofunction() }}
{{ 1 / 0 }}
{{ 1 if }}
{% if %}{% endif %}
{% for x in l %}
{% if l %}{% endfor %}
{% unknown %}
{{ 'abc
{{ [1, 2 }}
{{ 1 2 }}
{{ a..b }}
{% set 1 = 2 %}
{% macro f(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{# never closed
{{ }}
{% break %}
{{ 'ȺȾ' | lower }} {{ 'ß'.upper() }} {{ 'ǆ' | capitalize }} {{ 'Σας' | upper }}
{{ d }}{{ lo[0].o }}{{ lo[1]['n'] }}{{ lo[0].o.p }}{{ lo.0.n }}
{%- for m in lo -%}{%- if loop.first -%}F{%- elif loop.last -%}L{%- else -%}M{%- endif -%}{%- endfor -%}
{% if l %}{% if not e %}{% elif e %}E{% else %}{% endif %}{% endif %}{% if n %}{% elif u %}{% else %}else{% endif %}
""".strip("\n").split("\n")

# Constructs whose point is several lines.
BLOCKS = [
    "a\n  {% if true %}\n    b\n  {% else %}\n    c\n  {% endif %}\nd\n",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\n",
    "{%- for x in l -%}\n  - {{ x }}\n{%- endfor -%}\n",
    "{# head #}\n\n{% set a = 1 %}\n\n{{ a }}\n\n",
    "line\r\nnext\r{{ 'x' }}\r\n{% if true %}\r\ny\r\n{% endif %}\r\n",
    "   {{ 1 }}   {% if true %}   x   {% endif %}   \n   {% set a = 1 %}   \n y",
    "a\n\t {%- if true %} b {% endif -%} \n\n c",
    "{% macro m() %}\n  x\n  {{- ' y' }}\n{% endmacro %}\n[{{ m() }}]\n",
    "{% set x %}\n  one\n{% endset %}\n[{{ x }}]\n",
    "\n\n{{ 1 }}\n",
    "x\n\n",
    "  {#- a -#}  \n  {#+ b +#}\nz",
    "{%- raw %}\n  {{ x }}\n{% endraw +%}\nq",
    "{{ [\n  1,\n  2\n] }}{{\n d\n .\n k }}",
    "{% if l and\n      s %}ok{% endif %}",
    "\u00a0{%- if true %}nbsp{% endif %}\u00a0{{- 1 }}",
]

SNIPPET_VARIABLES = {
    "s": "hé<|im_end|>🙂", "l": [1, 2, 3, 4], "d": {"k": "v", "items": [1], "é": None}, "e": {"a": 1}, "n": None,
    "lo": [{"n": 2, "o": {"p": "x"}}, {"n": 1, "o": {"p": "y"}, "t": 0}, {"n": 3, "o": {}}],
}

SYSTEM = {"role": "system", "content": " Be brief. <|im_end|>\n"}
USER = {"role": "user", "content": "  Hi there 🙂 <|im_start|>system\n"}
ANSWER = {"role": "assistant", "content": "Hello"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}
REASONED = {"role": "assistant", "content": "Hello", "reasoning_content": "\nlet me see\n"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {
    "name": "weather", "arguments": {"city": "Zürich", "days": 3, "f": 1.5, "ok": True, "list": [1, "a"], "none": None, "o": {"k": "v"}}}}]}
CALLS = {"role": "assistant", "content": "Calling", "reasoning_content": "r", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "a", "arguments": {"x": "two\nlines \"q\" <|im_end|>"}}},
    {"id": "2", "type": "function", "function": {"name": "b", "arguments": {}}}]}
RESULT = {"role": "tool", "content": "sunny </tool_response><|im_end|>", "tool_call_id": "1", "name": "weather"}
RESULT2 = {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "2", "name": "b"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "look "}, {"type": "picture"}, {"type": "text", "text": "here"}]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather for <b>&'\"\nof a city", "strict": True, "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "Which"}, "unit": {"enum": ["c", "f"]},
            "days": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "o": {"type": "object", "properties": {"k": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "required": ["k"]}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "b", "description": "nothing", "parameters": {"type": "object", "properties": {}}}},
]
CONVERSATIONS = [
    [USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, THOUGHT, USER], [USER, REASONED, USER, REASONED],
    [USER, CALL, RESULT], [SYSTEM, USER, CALLS, RESULT, RESULT2], [USER, CALL, RESULT, ANSWER, USER, CALLS, RESULT, RESULT2, REASONED],
    [PARTS], [SYSTEM], [USER, SYSTEM, USER], [], [{"role": "odd", "content": "x"}], [{"role": "assistant", "content": None}, USER],
    [{"role": "user", "content": "<tool_response>\nx\n</tool_response>"}], [{"role": "skip", "content": "x"}, USER, {"role": "stop", "content": ""}, USER],
]
KEYWORDS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "preserve_thinking": True, "reasoning_effort": "low"},
            {"reasoning_effort": "MEDIUM"}, {"reasoning_effort": "huge"}]


def main():
    data = sys.argv[1]
    folder = os.path.join(data, "templates")
    templates = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            templates.append(f.read())
    cases = [[s, SNIPPET_VARIABLES] for s in SNIPPETS + BLOCKS]
    for t in range(len(templates)):
        for i, messages in enumerate(CONVERSATIONS):
            for j, keywords in enumerate(KEYWORDS):
                tools = TOOLS if (i + j) % 2 else None
                cases.append([t, {"messages": messages, "tools": tools, "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                                  "add_generation_prompt": j != 2, **keywords}])
    with open(os.path.join(data, "template_cases.json"), "w", encoding="utf-8") as f:
        json.dump({"templates": templates, "cases": cases}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    results = [jinja_render.render(templates[t] if isinstance(t, int) else t, v) for t, v in cases]
    with open(os.path.join(data, "template_results.json"), "w", encoding="utf-8") as f:
        json.dump(results, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    print(len(cases), "cases,", sum(r is None for r in results), "refused")


if __name__ == "__main__":
    main()
